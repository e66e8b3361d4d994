"""A whole store on disk whose files were changed by somebody who also holds the signing key."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cachekit.bundle import Artifact, Coverage, accepts, to_payload
from cachekit.bundle.signing import sign
from cachekit.errors import CachekitError
from cachekit.identity.fingerprint import Fingerprint
from cachekit.store.base import Head, digest_of
from cachekit.store.fetch import fetch, read_artifacts
from cachekit.store.local import DirectoryStore
from cachekit.store.packing import pack
from cachekit.store.publish import Contribution, publish
from tests.fuzz import mutate, samples

ROUNDS = 100
FID = samples.FINGERPRINT_ID
BLOB = digest_of(pack(samples.artifacts()[0].data))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, and beside it things that are none of its business."""
    root = tmp_path_factory.mktemp("world")
    store = DirectoryStore(root / "store", samples.NAMESPACE)
    store.write_profile(FID, Fingerprint.of(samples.COMPONENTS).canonical)
    for artifact in samples.artifacts():
        store.write_blob(pack(artifact.data))
    _commit(store, samples.payload())
    outside = root / "outside"
    shutil.copytree(root / "store" / samples.NAMESPACE, outside / "copy")
    (outside / "empty").mkdir()
    (outside / "head.json").write_bytes(Head(1, "0" * 64).to_bytes())
    (outside / "secret").write_bytes(b"nobody may read or change this")
    return root


def _commit(store: DirectoryStore, payload: bytes) -> None:
    digest = store.write_generation(FID, 1, sign(payload, samples.KEY))
    _profile(store).joinpath("head.json").write_bytes(Head(1, digest).to_bytes())


def _profile(store: DirectoryStore) -> Path:
    return store.root / samples.NAMESPACE / "profiles" / FID


def _blob(store: DirectoryStore, digest: str = BLOB) -> Path:
    return store.root / samples.NAMESPACE / "blobs" / "sha256" / digest[:2] / digest


def head_changed(store: DirectoryStore, rng: random.Random) -> None:
    """Other bytes in head.json."""
    path = _profile(store) / "head.json"
    path.write_bytes(mutate.of("head", path.read_bytes(), rng))


def envelope_changed(store: DirectoryStore, rng: random.Random) -> None:
    """Other bytes in the document; mostly under their right name, with a head that leads to them."""
    (path,) = (_profile(store) / "generations").iterdir()
    changed = mutate.of("envelope", path.read_bytes(), rng)
    path.write_bytes(changed)
    if rng.random() < 0.8:
        head = Head(1, digest_of(changed))
        path.rename(path.with_name(head.filename))
        (_profile(store) / "head.json").write_bytes(head.to_bytes())


def payload_changed(store: DirectoryStore, rng: random.Random) -> None:
    """Another document, signed."""
    _commit(store, mutate.of("document", samples.payload(), rng))


def blob_changed(store: DirectoryStore, rng: random.Random) -> None:
    """Other bytes in a blob."""
    path = _blob(store)
    path.write_bytes(mutate.damaged(path.read_bytes(), rng))


def artifact_changed(store: DirectoryStore, rng: random.Random) -> None:
    """Another artifact, or another compressed form of it, that a signed document names with its right digests."""
    whole = samples.bundle()
    number = rng.randrange(len(whole.entries))
    entry = whole.entries[number]
    data = next(one.data for one in samples.artifacts() if one.identity == entry.identity)
    if rng.random() < 0.7:
        data = mutate.of("pickle", data, rng)
        stored, claimed = pack(data), len(data)
    else:
        stored, claimed = mutate.damaged(pack(data), rng), rng.choice((len(data), 0, 2**31, 10**9))
    changed = dataclasses.replace(
        entry,
        raw_digest=digest_of(data),
        raw_size=claimed,
        stored_digest=digest_of(stored),
        stored_size=len(stored),
        inline=None,
    )
    path = _blob(store, digest_of(stored))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(stored)
    entries = (*whole.entries[:number], changed, *whole.entries[number + 1 :])
    _commit(store, to_payload(dataclasses.replace(whole, entries=entries)))


def profile_changed(store: DirectoryStore, rng: random.Random) -> None:
    """Other bytes in the components."""
    path = _profile(store) / "profile.json"
    path.write_bytes(mutate.of("fingerprint", path.read_bytes(), rng))


def something_else(store: DirectoryStore, rng: random.Random) -> None:
    """A pipe, a folder, a file or nothing in the place of a file or folder."""
    path = rng.choice(_places(store))
    _remove(path)
    rng.choice((os.mkfifo, os.mkdir, Path.touch, lambda gone: None))(path)


def linked(store: DirectoryStore, rng: random.Random) -> None:
    """A symbolic link that leads out of the store in the place of a file or folder."""
    path, outside = rng.choice(_places(store)), store.root.parent / "outside"
    same = outside / "copy" / path.relative_to(store.root / samples.NAMESPACE)
    _remove(path)
    path.symlink_to(rng.choice((same, same, outside / "empty", outside / "secret", outside / "nothing")))


def _places(store: DirectoryStore) -> list[Path]:
    return sorted((store.root / samples.NAMESPACE).rglob("*"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


CHANGES = (
    head_changed,
    envelope_changed,
    payload_changed,
    payload_changed,
    blob_changed,
    artifact_changed,
    artifact_changed,
    profile_changed,
    something_else,
    linked,
)


def _snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Everything outside the store: names, types and contents; not followed through links."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_relative_to(root / "store"):
            continue
        kind = stat.S_IFMT(path.lstat().st_mode)
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(kind) else ""
        found[str(path.relative_to(root))] = (kind, content)
    return found


def _use(store: DirectoryStore) -> None:
    """What a start does, and then what a save does."""
    try:
        bundle = fetch(store, FID, samples.TRUSTED)
    except CachekitError:
        bundle = None
    if bundle is not None:
        loaded = read_artifacts(store, bundle, lambda entry: True)
        assert len(loaded.artifacts) + len(loaded.problems) == len(bundle.entries)
        assert all(accepts(unit, samples.signature(2, 64)) in (True, False) for unit in bundle.coverage.units)
    fingerprint = Fingerprint.of(samples.COMPONENTS)
    more = Artifact("autotune", samples.key_of("autotune", 9), b'{"XBLOCK": 128}')
    contribution = Contribution(fingerprint, (more,), Coverage(), {"torch": "2.13.0"}, created=1)
    try:
        done = publish(store, contribution, samples.KEY, samples.TRUSTED)
    except CachekitError:
        return
    assert more.identity in {entry.identity for entry in done.bundle.entries}
    again = fetch(store, FID, samples.TRUSTED)
    assert again is not None
    assert again == done.bundle


@pytest.mark.parametrize("change", sorted(set(CHANGES), key=lambda change: change.__name__))
def test_store_that_was_changed_harms_nobody(
    change: Callable[[DirectoryStore, random.Random], None], template: Path, tmp_path: Path
) -> None:
    """Reading and saving gives a value or our error, what a save acknowledged is there, and nothing outside changes."""
    untouched = _snapshot(template)
    rounds = ROUNDS // len(CHANGES) * CHANGES.count(change)
    for number in range(rounds):
        world = tmp_path / str(number)
        shutil.copytree(template, world, symlinks=True)
        store = DirectoryStore(world / "store", samples.NAMESPACE)
        change(store, random.Random(f"{change.__name__} {number}"))
        try:
            _use(DirectoryStore(world / "store", samples.NAMESPACE))
        except BaseException as exc:
            exc.add_note(f"{change.__name__} {number}") if hasattr(exc, "add_note") else None
            raise
        assert _snapshot(world) == untouched, f"{change.__name__} {number}"
        shutil.rmtree(world)
