"""The session's way to what is kept: found, published, explained in one line, and never raised over a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cachekit.bundle import Artifact, Shape, ShapeRow
from cachekit.errors import CorruptError, TrustError
from cachekit.identity import Fingerprint
from cachekit.manifest import Manifest
from cachekit.runtime import kernels
from cachekit.runtime.library import MAX_TOLD, MAX_TOLD_LENGTH, Library
from cachekit.runtime.process import PrivateFolder
from cachekit.runtime.profile import Pending
from cachekit.settings import Settings
from tests.unit.runtime.helpers import ELF, FINGERPRINT, KERNEL, kernel, unit

MACHINE = {"arch": "x86_64"}
COMMAND = {**MACHINE, "command": "c" * 32}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of an empty folder."""
    return Settings(dir=tmp_path / "cachekit")


@pytest.fixture
def books(settings: Settings) -> Library:
    """A library of nothing."""
    return Library(settings)


@pytest.fixture
def folder(tmp_path: Path) -> PrivateFolder:
    """A private folder."""
    return PrivateFolder(tmp_path / "process")


def pending(*artifacts: Artifact, **others: Any) -> Pending:
    """What a session adds."""
    values: dict[str, Any] = {"kernel_paths": frozenset(), "units": (), "shapes": ()}
    return Pending(artifacts, **{**values, **others})


def changed(**components: Any) -> Fingerprint:
    """``FINGERPRINT`` with other toolchain components."""
    whole = FINGERPRINT.components
    return Fingerprint.of({**whole, "toolchain": {**whole["toolchain"], **components}})


# --- finding and publishing ----------------------------------------------------------------------------------------


def test_a_machine_that_saved_nothing_finds_nothing(books: Library, settings: Settings) -> None:
    """Looking makes neither a store nor keys."""
    assert books.find(FINGERPRINT) is None
    assert not settings.dir.exists()


def test_what_was_published_is_found(
    books: Library, settings: Settings, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """Another process, with the key that the first save made, finds the same bundle."""
    made = unit("one", needs=[artifact.identity.id for artifact in artifacts], seconds=5.0)
    shape = Shape(1024, 1024, 1)

    published = books.publish(
        FINGERPRINT,
        pending(*artifacts, units=((made, frozenset()),), shapes=(ShapeRow(shape, (made.id,)),)),
        folder,
    )

    found = Library(settings).find(FINGERPRINT)
    assert found == published.bundle
    assert found.generation == 1
    assert found.coverage.covers(shape)
    assert published.new_entries == 4


def test_another_fingerprint_finds_nothing(
    books: Library, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """A bundle is for exactly one fingerprint."""
    books.publish(FINGERPRINT, pending(*artifacts), folder)

    assert books.find(changed(torch="2.14.0")) is None


def test_a_namespace_is_a_library_of_its_own(
    books: Library, settings: Settings, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """Nothing is shared across namespaces."""
    books.publish(FINGERPRINT, pending(*artifacts), folder)

    assert Library(Settings(dir=settings.dir, namespace="other")).find(FINGERPRINT) is None


def test_a_bundle_of_a_lost_key_is_not_trusted(
    books: Library, settings: Settings, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """Nobody vouches for it any more."""
    books.publish(FINGERPRINT, pending(*artifacts), folder)
    for key in settings.keys_root.rglob("*"):
        if key.is_file():
            key.unlink()

    with pytest.raises(TrustError):
        books.find(FINGERPRINT)


def test_a_producer_is_told_without_host_user_or_path(
    books: Library, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """Only components of the toolchain that everybody may know."""
    fingerprint = changed(host="secret-host", python="3.11", config="/home/somebody")

    published = books.publish(fingerprint, pending(*artifacts), folder)

    assert published.bundle.producers == {
        "torch": "2.13.0",
        "python": "3.11",
        "cpu": {"vector_isa": "avx512"},
    }


def test_kernels_are_published_with_the_units_that_need_them(
    books: Library,
    folder: PrivateFolder,
    no_answers: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine code is read from the private folder; its unit needs it and the probes, under their identities."""
    monkeypatch.setattr(kernels, "host_requirements", lambda: MACHINE)
    monkeypatch.setattr(kernels, "kernel_requirements", lambda: COMMAND)
    no_answers["0" * 64] = True
    kernels.write_libraries([kernel()], folder.inductor)
    made = unit("one")

    first = books.publish(
        FINGERPRINT,
        pending(kernel_paths=frozenset({KERNEL}), units=((made, frozenset({KERNEL})),)),
        folder,
    )
    again = books.publish(FINGERPRINT, pending(units=((unit("two"), frozenset({KERNEL})),)), folder)

    identities = {
        kernel(KERNEL, ELF, **COMMAND).identity.id,
        kernel("0" * 64 + ".isa", b"1", **MACHINE).identity.id,
    }
    assert {entry.identity.id for entry in first.bundle.entries} == identities
    assert [set(found.needs) for found in again.bundle.coverage.units] == [identities, identities]


def test_a_kernel_that_vanished_does_not_keep_the_rest_from_being_saved(
    books: Library, folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file that is gone costs that kernel, not the save."""
    monkeypatch.setattr(kernels, "kernel_requirements", lambda: COMMAND)
    monkeypatch.setattr(kernels, "host_requirements", lambda: COMMAND)
    kept = f"aa/c{'b' * 51}.main.so"
    kernels.write_libraries([Artifact("kernel", kept, b"code")], folder.inductor)

    books.publish(FINGERPRINT, pending(kernel_paths=frozenset({KERNEL, kept})), folder)

    bundle = books.find(FINGERPRINT)
    assert bundle is not None
    assert kept in {entry.key for entry in bundle.entries}
    assert KERNEL not in {entry.key for entry in bundle.entries}


# --- explaining ----------------------------------------------------------------------------------------------------


def stored(books: Library, *fingerprints: Fingerprint) -> None:
    """Let these fingerprints have something stored."""
    for fingerprint in fingerprints:
        books.store.write_profile(fingerprint.id, fingerprint.canonical)


def test_an_empty_store_says_so(books: Library) -> None:
    """There is nothing to compare with."""
    assert books.explain(FINGERPRINT, None) == (
        "no bundle for this fingerprint; no other fingerprint is stored"
    )


def test_the_nearest_is_named_with_what_differs(books: Library) -> None:
    """Of several stored fingerprints, the one with the fewest differences, and each difference with both values."""
    near, far = changed(torch="2.14.0"), changed(torch="2.14.0", python="3.10")
    stored(books, far, near)

    assert books.explain(FINGERPRINT, None) == (
        f"no bundle for this fingerprint; nearest is {near.id[:12]}, which differs in "
        'toolchain.torch: "2.13.0" / "2.14.0"'
    )


def test_a_fingerprint_is_not_its_own_nearest(
    books: Library, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """When its own bundle got no hit, another one is what to compare with."""
    own = books.publish(FINGERPRINT, pending(*artifacts), folder).bundle
    other = changed(torch="2.14.0")
    stored(books, other)

    text = books.explain(FINGERPRINT, own)

    assert text.startswith(f"the bundle got no hit; nearest is {other.id[:12]}")


def test_many_differences_are_cut_short(books: Library) -> None:
    """The first six are told, the rest counted: a log line is no place for a whole toolchain."""
    stored(books, changed(**{f"option{n}": n for n in range(20)}))

    text = books.explain(FINGERPRINT, None)

    assert text.count("toolchain.option") == MAX_TOLD
    assert text.endswith(f" and {20 - MAX_TOLD} more components")


def test_as_many_differences_as_are_told_are_not_counted(books: Library) -> None:
    """With exactly six there are no more."""
    stored(books, changed(**{f"option{n}": n for n in range(MAX_TOLD)}))

    assert "more" not in books.explain(FINGERPRINT, None)


def test_long_values_are_cut_short(books: Library) -> None:
    """A value that fills a page is told by its beginning."""
    stored(books, changed(config="x" * 10_000, other="y" * 10_000))

    text = books.explain(FINGERPRINT, None)

    told = text.split("differs in ")[1].split(", ")
    assert [len(part) for part in told] == [MAX_TOLD_LENGTH + 1] * 2
    assert all(part.endswith("…") for part in told)


def test_a_store_that_cannot_be_read_is_told(
    books: Library, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Explaining is for people: its own failure is one more thing to say."""

    def fail() -> list[str]:
        raise CorruptError("damaged")

    monkeypatch.setattr(books.store, "profiles", fail)

    assert books.explain(FINGERPRINT, None) == (
        "no bundle for this fingerprint; the store cannot be searched: damaged"
    )


def test_a_damaged_profile_is_passed_over(books: Library) -> None:
    """Components that are not JSON neither end a session nor hide the other fingerprints."""
    books.store.write_profile(changed(torch="2.14.0").id, b"{")
    stored(books, changed(torch="2.12.0"))

    assert "2.12.0" in books.explain(FINGERPRINT, None)


# --- the manifest --------------------------------------------------------------------------------------------------


def test_events_reach_the_manifest(
    books: Library, settings: Settings, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """The bundle is indexed, and what happened is noted with its generation."""
    own = books.publish(FINGERPRINT, pending(*artifacts), folder).bundle

    assert books.record("saved", own, bytes=7) is None

    (event,) = Manifest(settings.manifest_path).events(limit=10)
    assert (event.kind, event.fingerprint_id) == ("saved", FINGERPRINT.id)
    assert event.data == {"generation": 1, "bytes": 7}


def test_a_broken_manifest_is_told_and_not_raised(
    books: Library, settings: Settings, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """It can be rebuilt, and a session does not need it."""
    own = books.publish(FINGERPRINT, pending(*artifacts), folder).bundle
    settings.manifest_path.write_bytes(os.urandom(8192))

    problem = books.record("saved", own)

    assert problem is not None
    assert problem.startswith("manifest not updated: ")
