"""A release whose fingerprints have other components finds what the release before kept, and takes it over.

There is one schema so far, so these tests invent the next: it tells a flag that the present one leaves out.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from cachekit.bundle import Artifact
from cachekit.identity import Fingerprint
from cachekit.runtime.library import Library
from cachekit.runtime.process import PrivateFolder
from cachekit.runtime.profile import Pending
from cachekit.settings import Settings
from tests.unit.runtime.helpers import FINGERPRINT, fixture_artifacts

# The package has a function of the module's name.
identity = importlib.import_module("cachekit.identity.fingerprint")


def _components_before(current: dict[str, Any]) -> dict[str, Any] | None:
    """What the one function of the next release will look like."""
    return current if current["toolchain"].pop("turbo") is False else None


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the release after this one."""
    monkeypatch.setattr(identity, "EARLIER", {identity.SCHEMA: _components_before})
    monkeypatch.setattr(identity, "SCHEMA", identity.SCHEMA + 1)


def _now(*, turbo: bool) -> Fingerprint:
    """``FINGERPRINT`` as the next release tells it."""
    components = FINGERPRINT.components
    del components["schema"]
    return Fingerprint.of({**components, "toolchain": {**components["toolchain"], "turbo": turbo}})


def _save(books: Library, fingerprint: Fingerprint, folder: Path, *artifacts: Artifact) -> Any:
    return books.publish(
        fingerprint, Pending(artifacts, frozenset(), (), ()), PrivateFolder(folder / "process")
    ).bundle


@pytest.fixture
def books(tmp_path: Path) -> Library:
    """A library in an empty folder."""
    return Library(Settings(dir=tmp_path / "cachekit"))


def test_this_release_has_no_earlier_one() -> None:
    """Each schema before the present one has its function, so that no upgrade forgets what is kept."""
    assert set(identity.EARLIER) == set(range(1, identity.SCHEMA))


def test_an_id_names_its_schema(next_release: None) -> None:
    """The same components under two schemas are two ids, and the earlier one is exactly what was stored then."""
    assert _now(turbo=False).earlier() == (FINGERPRINT,)
    assert _now(turbo=True).earlier() == ()


def test_what_the_release_before_kept_is_found(
    books: Library, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """After an upgrade the first start is warm where the old components still tell enough, and cold where not."""
    kept = _save(books, FINGERPRINT, tmp_path, *fixture_artifacts("single"))
    request.getfixturevalue("next_release")

    assert books.find(_now(turbo=False)) == kept
    assert books.find(_now(turbo=True)) is None


def test_the_first_save_takes_over_what_was_kept(
    books: Library, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing is lost by saving under the new id: it holds both, and the old profile stays for older releases."""
    kept = _save(books, FINGERPRINT, tmp_path, *fixture_artifacts("single"))
    request.getfixturevalue("next_release")
    current = _now(turbo=False)

    saved = _save(books, current, tmp_path, *fixture_artifacts("dynamic"))
    found = books.find(current)

    assert found == saved
    assert (saved.fingerprint_id, saved.generation) == (current.id, 1)
    assert {entry.identity for entry in kept.entries} < {entry.identity for entry in saved.entries}
    assert books.find(FINGERPRINT) == kept


def test_what_is_new_under_the_new_id_wins_over_the_earlier_one(
    books: Library, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Once the new id has a bundle of its own, nothing more is looked up under the old one."""
    request.getfixturevalue("next_release")
    mine = _save(books, _now(turbo=False), tmp_path, *fixture_artifacts("dynamic"))
    _save(books, FINGERPRINT, tmp_path, *fixture_artifacts("single"))

    assert books.find(_now(turbo=False)) == mine
