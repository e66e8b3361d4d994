"""Keeping the store within its limit: when a process looks, what it tells, and that it never fails a save."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cachekit.manifest import Manifest
from cachekit.runtime import housekeeping
from cachekit.runtime.housekeeping import RECOUNT, Ceiling
from cachekit.runtime.library import Library
from cachekit.settings import Settings
from cachekit.store import guards, keys
from tests.unit.store.shelves import KB, Shelves, fingerprint, unit

pytestmark = pytest.mark.skipif(not guards.SUPPORTED, reason="folders cannot be locked here")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A CACHEKIT_DIR of this test's own, with room for two units of 100 kB and a little."""
    return Settings(dir=tmp_path, max_size=250 * KB)


@pytest.fixture
def shelves(settings: Settings) -> Shelves:
    """Its store, signed by its key."""
    return Shelves(settings.dir, keys.load_or_create(settings.keys_root))


def test_a_save_within_the_limit_changes_nothing(settings: Settings, shelves: Shelves) -> None:
    """Nothing to tell, and everything stays."""
    shelves.save("a", "one")

    assert Ceiling(settings).after_save(100 * KB) == ()
    assert shelves.units("a") == ["one"]


def test_a_save_beyond_the_limit_evicts_and_says_so(settings: Settings, shelves: Shelves) -> None:
    """Down to below the limit, least used first; the manifest is told, and the next save need not collect again."""
    with Manifest(settings.manifest_path) as manifest:
        for name, starts in (("a", 3), ("b", 1), ("c", 2)):
            manifest.index(shelves.save(name, "one"))
            for _ in range(starts):
                manifest.add_uses("local", fingerprint(name).id, unit("one").unit_ids)
    ceiling = Ceiling(settings)

    (told,) = ceiling.after_save(1)

    assert "1 units were evicted" in told
    assert shelves.size <= 0.9 * 250 * KB
    assert shelves.fetch("b") is None
    with Manifest(settings.manifest_path) as manifest:
        assert {record.fingerprint_id for record in manifest.bundles()} == {
            fingerprint(name).id for name in "ac"
        }
        assert [event.fingerprint_id for event in manifest.events(kind="evicted")] == [fingerprint("b").id]
    assert ceiling.after_save(1) == ()


def test_the_store_is_not_walked_on_each_save(settings: Settings, shelves: Shelves) -> None:
    """What others wrote is seen after some saves at the latest; what this process wrote at once."""
    ceiling = Ceiling(settings)
    shelves.save("a", "one")
    assert ceiling.after_save(100 * KB) == ()
    shelves.save("b", "two", "three")

    told = [ceiling.after_save(1) for _ in range(RECOUNT + 1)]

    assert told[0] == ()
    assert [bool(each) for each in told].count(True) == 1
    shelves.save("c", "four", "five")
    assert ceiling.after_save(200 * KB) != ()


def test_without_a_limit_nothing_is_looked_at(settings: Settings, shelves: Shelves) -> None:
    """``none`` means none."""
    shelves.save("a", "one", "two", "three")

    assert Ceiling(replace(settings, max_size=None)).after_save(2**40) == ()
    assert shelves.units("a") == ["one", "three", "two"]


def test_what_goes_wrong_is_told_and_never_raised(
    settings: Settings, shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection that fails is a reason in the report."""
    shelves.save("a", "one", "two", "three")
    monkeypatch.setattr(housekeeping, "tidy", lambda *args, **options: 1 / 0)

    (told,) = Ceiling(settings).after_save(1)

    assert told == "the store was not collected: ZeroDivisionError: division by zero"


def test_where_all_is_in_use_it_says_so_and_rests(settings: Settings, shelves: Shelves) -> None:
    """A store that cannot become smaller is not surveyed on every save."""
    shelves.save("a", "one", "two", "three")
    held = shelves.store.use(fingerprint("a").id)
    ceiling = Ceiling(settings)

    first = ceiling.after_save(1)

    assert held is not None
    assert "is in use" in first[0]
    assert shelves.units("a") == ["one", "three", "two"]


def test_a_library_holds_what_it_found_until_it_is_closed(settings: Settings, shelves: Shelves) -> None:
    """From before the head is read; a bundle that was published first by this process, from then on."""
    shelves.save("a", "one")
    library = Library(settings)

    assert library.find(fingerprint("a")) is not None
    housekeeping.tidy(settings, limit=1)
    assert shelves.units("a") == ["one"]

    library.close()
    housekeeping.tidy(settings, limit=1)
    assert library.find(fingerprint("a")) is None


def test_a_library_counts_uses(settings: Settings, tmp_path: Path) -> None:
    """Each once; a manifest that cannot be written is told and not raised."""
    library = Library(settings)

    assert library.record_uses("f" * 64, ["a" * 64]) is None
    with Manifest(settings.manifest_path) as manifest:
        assert [(use.unit, use.starts) for use in manifest.uses()] == [("a" * 64, 1)]
    settings.manifest_path.write_bytes(b"this is not a database, only some text that is long enough")
    assert "not counted" in str(library.record_uses("f" * 64, ["a" * 64]))


def test_a_store_that_cannot_be_locked_is_used_all_the_same(
    settings: Settings, shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start goes on without the hold that it cannot have."""
    shelves.save("a", "one")
    monkeypatch.setattr(guards, "TIMEOUT_S", 0.0)
    claimed = guards.claim(shelves.folder("a"))

    assert claimed is not None
    assert Library(settings).find(fingerprint("a")) is not None
