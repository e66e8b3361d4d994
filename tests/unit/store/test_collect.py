"""Collecting: what nobody needs goes, what does not fit goes least valuable first, and readers never see half of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cachekit.bundle import Coverage, Tombstone, canonical
from cachekit.bundle.bundle import SCHEMA
from cachekit.bundle.document import to_payload
from cachekit.bundle.eviction import Use
from cachekit.bundle.signing import generate, sign
from cachekit.errors import StoreError, UnsupportedError
from cachekit.store import guards, holdings
from cachekit.store.base import Head
from cachekit.store.holdings import KEPT_GENERATIONS, QUARANTINE_S
from tests.unit.store.shelves import KB, NOW, Shelves, fingerprint, graph, unit

pytestmark = pytest.mark.skipif(not guards.SUPPORTED, reason="folders cannot be locked here")


@pytest.fixture
def shelves(tmp_path: Path) -> Shelves:
    """An empty store."""
    return Shelves(tmp_path)


def _use(shelves: Shelves, pipeline: str, **starts: int) -> dict[tuple[str, str], dict[str, Use]]:
    """Uses of a pipeline's units by name, all of this minute."""
    ids = {name: unit(name).units[0].id for name in starts}
    return {("local", fingerprint(pipeline).id): {ids[name]: Use(n, NOW) for name, n in starts.items()}}


def test_nothing_goes_from_a_store_that_fits(shelves: Shelves) -> None:
    """Under the limit, and without one, a whole store is left byte for byte as it is."""
    shelves.save("a", "one")
    shelves.save("b", "two")
    before = sorted((path, path.read_bytes()) for path in shelves.root.rglob("*") if path.is_file())

    for limit in (None, shelves.size):
        done = shelves.collect(limit)
        assert (done.evicted, done.removed, done.rubbish, done.problems, done.kept) == ((), (), 0, (), ())
        assert done.before == done.after == shelves.size
        assert done.fits

    assert sorted((path, path.read_bytes()) for path in shelves.root.rglob("*") if path.is_file()) == before


def test_the_least_valuable_units_go_until_the_rest_fits(shelves: Shelves) -> None:
    """A unit that was used more stays; the bundle goes on in a new generation without what went, and its blobs go."""
    before = shelves.save("a", "one", "two", "three")
    gone = {entry.stored_digest for entry in before.entries}

    done = shelves.collect(250 * KB, uses=_use(shelves, "a", one=9, two=1, three=5))

    assert shelves.units("a") == ["one", "three"]
    assert [row.unit for row in done.evicted] == [unit("two").units[0].id]
    assert [row.shapes for row in done.evicted] == [(unit("two").shapes[0].shape.label,)]
    assert done.after == shelves.size <= 250 * KB
    after = shelves.fetch("a")
    assert after is not None
    assert after.generation == 2
    assert after.parent is not None
    assert done.bundles == (after,)
    assert shelves.blobs() == {entry.stored_digest for entry in after.entries} < gone
    assert shelves.documents("a") == [2]


def test_a_profile_with_nothing_left_goes_altogether(shelves: Shelves) -> None:
    """Folder, documents, statements and memory go; readers find absence, and a later save begins anew."""
    shelves.save("a", "one")
    shelves.save("b", "two", seconds=500.0)
    fid = fingerprint("a").id

    done = shelves.collect(150 * KB)

    assert done.removed == (("local", fid),)
    assert shelves.fetch("a") is None
    assert not shelves.folder("a").exists()
    assert shelves.seen("local").highest(fid) is None
    assert len(shelves.store.contributions()) == 1
    assert shelves.units("b") == ["two"]
    assert shelves.save("a", "one").generation == 1
    assert shelves.units("a") == ["one"]


def test_an_evicted_unit_does_not_come_back_by_itself(shelves: Shelves) -> None:
    """A later save of something else adds only that; the unit is back when it is compiled again."""
    shelves.save("a", "one", "two")
    shelves.collect(150 * KB, uses=_use(shelves, "a", one=9))
    assert shelves.units("a") == ["one"]

    shelves.save("a", "three")
    assert shelves.units("a") == ["one", "three"]
    shelves.save("a", "two")
    assert shelves.units("a") == ["one", "three", "two"]


def test_a_save_that_relies_on_what_went_leaves_no_half_unit(shelves: Shelves) -> None:
    """A process that could not hold its bundle may save a unit whose artifacts went: the unit is left out."""
    kernel = graph("shared")
    shelves.publish("a", [kernel], unit("one", kernel))
    shelves.collect(1)
    own = graph("own")

    bundle = shelves.publish("a", [own], unit("two", kernel, own))

    assert bundle.coverage.units == ()
    assert {entry.key for entry in bundle.entries} == {own.key}


def test_what_is_in_use_stays(shelves: Shelves) -> None:
    """A bundle that a live process holds is not touched, whatever the limit; afterwards it goes."""
    shelves.save("a", "one")
    shelves.save("b", "two", seconds=900.0)
    held = shelves.store.use(fingerprint("a").id)
    assert held is not None

    done = shelves.collect(1)

    assert [(keep.fid, keep.reason) for keep in done.kept] == [
        (fingerprint("a").id, "in use by a live process")
    ]
    assert not done.fits
    assert shelves.units("a") == ["one"]
    assert shelves.fetch("b") is None
    held.release()
    assert shelves.collect(1).fits
    assert shelves.fetch("a") is None


def test_nothing_is_deleted_while_somebody_publishes(shelves: Shelves) -> None:
    """A publisher relies on blobs that it found; a namespace in which somebody publishes is left and named."""
    shelves.save("a", "one")
    shelves.store.write_blob(b"nobody names this yet")

    with shelves.store.publishing():
        done = shelves.collect(1)

    assert [(keep.namespace, keep.fid) for keep in done.kept] == [("local", "")]
    assert "published" in done.kept[0].reason
    assert (done.evicted, done.rubbish) == ((), 0)
    assert shelves.units("a") == ["one"]


def test_looking_changes_nothing_and_says_what_collecting_does(shelves: Shelves) -> None:
    """A dry run names the same units, profiles and bytes as the run after it."""
    shelves.save("a", "one", "two")
    shelves.save("b", "three", seconds=900.0)
    shelves.store.write_blob(b"nobody names this")
    uses = _use(shelves, "a", one=9)
    before = sorted((path, path.read_bytes()) for path in shelves.root.rglob("*") if path.is_file())

    for limit in (None, 250 * KB, 120 * KB):
        looked = shelves.collector(limit, uses=uses).look()
        assert sorted((p, p.read_bytes()) for p in shelves.root.rglob("*") if p.is_file()) == before

    done = shelves.collect(120 * KB, uses=uses)
    assert (looked.evicted, looked.removed, looked.before) == (done.evicted, done.removed, done.before)
    assert abs(looked.after - done.after) < 10 * KB


def test_beyond_the_limit_more_goes_than_just_enough(shelves: Shelves) -> None:
    """With a target below the limit, not every save after the first finds the store too large again."""
    for name in ("a", "b", "c", "d"):
        shelves.save(name, "one")

    assert len(shelves.collect(350 * KB, target=250 * KB).evicted) == 2
    assert shelves.collect(350 * KB, target=50 * KB).evicted == ()


def test_namespaces_share_the_limit(shelves: Shelves) -> None:
    """The limit is that of the folder: the least valuable goes wherever it is, and blobs are not shared."""
    shelves.save("a", "one", namespace="first", seconds=1.0)
    shelves.save("a", "one", namespace="second", seconds=99.0)

    done = shelves.collect(150 * KB)

    assert done.removed == (("first", fingerprint("a").id),)
    assert shelves.fetch("a", "second") is not None


# -- what nobody needs -------------------------------------------------------------------------------------------------


def test_blobs_and_statements_that_no_document_names_go(shelves: Shelves) -> None:
    """What a dead writer left is removed, whatever its age and without a limit; the rest stays readable."""
    shelves.save("a", "one")
    loose = {shelves.store.write_blob(b"blob"), shelves.store.write_contribution(b"statement")}

    done = shelves.collect(None)

    assert done.rubbish == len(b"blob") + len(b"statement")
    assert not loose & (shelves.blobs() | set(shelves.store.contributions()))
    assert shelves.units("a") == ["one"]


def test_the_last_documents_are_kept_for_recovery(shelves: Shelves) -> None:
    """Of many generations the newest few stay: a writer can build upon them when the newest is damaged."""
    for n in range(KEPT_GENERATIONS + 3):
        shelves.save("a", f"unit {n}", size=5 * KB)

    shelves.collect(None)

    newest = KEPT_GENERATIONS + 3
    assert shelves.documents("a") == list(range(newest - KEPT_GENERATIONS + 1, newest + 1))
    head = shelves.store.read_head(fingerprint("a").id)
    assert head is not None
    (shelves.folder("a") / "generations" / head.filename).write_bytes(b"damaged")
    assert shelves.save("a", "another", size=5 * KB).coverage.unit_ids > {unit("unit 0").units[0].id}


def test_older_documents_go_before_anything_that_saves_seconds(shelves: Shelves) -> None:
    """What is kept just in case is given up when the store is too large."""
    for n in range(4):
        shelves.save("a", f"unit {n}", size=5 * KB)
    documents = sorted((shelves.folder("a") / "generations").iterdir())
    spare = sum(path.stat().st_size for path in documents[:-1])

    done = shelves.collect(shelves.size - spare)

    assert done.evicted == ()
    assert shelves.documents("a") == [4]


def test_a_profile_that_was_never_committed_goes(shelves: Shelves) -> None:
    """Whoever wrote its document died before the head; a lost head, however, is not taken for that."""
    fid = fingerprint("a").id
    shelves.store.write_profile(fid, b"{}")
    shelves.store.write_generation(fid, 1, b"a document")
    shelves.save("b", "two")
    (shelves.folder("b") / "head.json").unlink()

    done = shelves.collect(None)

    assert not shelves.folder("a").exists()
    assert [keep.fid for keep in done.kept] == [fingerprint("b").id]
    assert "head is missing" in done.kept[0].reason
    assert shelves.save("b", "three").coverage.unit_ids == {unit(n).units[0].id for n in ("two", "three")}


def test_leftovers_of_dead_writers_go_and_those_of_live_ones_stay(shelves: Shelves) -> None:
    """A temporary file is removed once nobody holds its lock, wherever it lies, also beside a bundle in use."""
    import fcntl

    shelves.save("a", "one")
    held = shelves.store.use(fingerprint("a").id)
    dead = [shelves.folder("a") / ".tmp-1-aa", shelves.root / "store/local/blobs/sha256/.tmp-1-bb"]
    live = shelves.folder("a") / "generations" / ".tmp-1-cc"
    for path in (*dead, live):
        path.write_bytes(b"half")

    with live.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = shelves.collect(None)

    assert held is not None
    assert done.rubbish == 8
    assert [path.exists() for path in (*dead, live)] == [False, False, True]


def test_quarantine_is_kept_for_a_month(shelves: Shelves) -> None:
    """Damaged files stay for people to look at, unless the store is too large."""
    shelves.save("a", "one")
    quarantine = shelves.root / "store/local/quarantine"
    quarantine.mkdir()
    old, new = (quarantine / f"{int((NOW - age) * 1e9):020d}-ab-x" for age in (QUARANTINE_S + 60, 60))
    for path in (old, new):
        path.write_bytes(b"damaged")

    shelves.collect(None)
    assert (old.exists(), new.exists()) == (False, True)
    done = shelves.collect(shelves.size - 7)

    assert not new.exists()
    assert done.evicted == ()


def test_folders_that_were_put_away_are_removed(shelves: Shelves) -> None:
    """A process that died after it put a profile away left a folder that no listing shows."""
    shelves.save("a", "one")
    shelves.folder("a").rename(shelves.folder("a").with_name(".gone-abc"))

    done = shelves.collect(None)

    assert list((shelves.root / "store/local/profiles").iterdir()) == []
    assert done.after == shelves.size == 0


# -- what is not ours to judge -----------------------------------------------------------------------------------------


def test_a_bundle_that_is_not_trusted_is_left_with_its_blobs(shelves: Shelves) -> None:
    """What cannot be verified here may be somebody's: it stays, readable for whoever trusts its key."""
    stranger = Shelves(shelves.root, generate())
    stranger.save("a", "one")
    shelves.save("b", "two")

    done = shelves.collect(1)

    assert [keep.fid for keep in done.kept] == [fingerprint("a").id]
    assert "untrusted" in done.kept[0].reason
    assert stranger.units("a") == ["one"]
    assert shelves.fetch("b") is None


def test_a_namespace_with_a_newer_bundle_is_left_untouched(shelves: Shelves) -> None:
    """What a newer release needs cannot be known, so nothing in its namespace goes."""
    bundle = shelves.save("a", "one")
    shelves.save("b", "two")
    loose = shelves.store.write_blob(b"named in a way that we do not know")
    fid, store = bundle.fingerprint_id, shelves.store
    head = store.read_head(fid)
    document = canonical.loads(to_payload(replace(bundle, generation=2)))
    payload = canonical.dumps({**document, "schema": SCHEMA + 1})
    new = Head(2, store.write_generation(fid, 2, sign(payload, shelves.key)))
    store.move_head(fid, head, new)

    done = shelves.collect(1)

    assert "newer release" in done.kept[0].reason
    assert (done.evicted, done.removed) == ((), ())
    assert loose in shelves.blobs()
    assert shelves.units("b") == ["two"]


def test_a_damaged_bundle_keeps_what_a_writer_can_build_upon(shelves: Shelves) -> None:
    """A document that cannot be read is no reason to delete the older ones and their blobs."""
    shelves.save("a", "one")
    shelves.save("a", "two")
    head = shelves.store.read_head(fingerprint("a").id)
    assert head is not None
    (shelves.folder("a") / "generations" / head.filename).write_bytes(b"damaged")

    done = shelves.collect(1)

    assert "corrupt" in done.kept[0].reason
    assert shelves.save("a", "three").coverage.unit_ids >= {unit("one").units[0].id}
    assert "one" in shelves.units("a")


def test_what_was_withdrawn_stays_withdrawn(shelves: Shelves) -> None:
    """An eviction of everything leaves a bundle that still says which bytes must not be used."""
    bundle = shelves.save("a", "one")
    fid, store = bundle.fingerprint_id, shelves.store
    stone = Tombstone(bundle.entries[0].raw_digest, "wrong picture")
    withdrawn = replace(bundle, tombstones=(stone,), generation=2, coverage=Coverage())
    new = Head(2, store.write_generation(fid, 2, sign(to_payload(withdrawn), shelves.key)))
    store.move_head(fid, store.read_head(fid), new)

    shelves.collect(1)

    left = shelves.fetch("a")
    assert left is not None
    assert left.tombstones == (stone,)
    assert shelves.save("a", "one").entries == ()


# -- what can go wrong -------------------------------------------------------------------------------------------------


def test_one_bundle_that_cannot_be_written_does_not_keep_the_others(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is told, the bundle concerned is whole as it was, and the rest is collected."""
    shelves.save("a", "one", "two")
    shelves.save("b", "three")
    uses = _use(shelves, "a", one=9)
    monkeypatch.setattr(
        "cachekit.store.local.DirectoryStore.write_generation",
        lambda *args: (_ for _ in ()).throw(StoreError("ENOSPC: disk full")),
    )

    done = shelves.collect(150 * KB, uses=uses)

    assert any("ENOSPC" in problem for problem in done.problems)
    assert shelves.units("a") == ["one", "two"]
    assert shelves.fetch("b") is None


def test_a_folder_that_others_can_write_is_named_and_left(shelves: Shelves) -> None:
    """A namespace that cannot be looked at is a problem, and the others are collected."""
    shelves.save("a", "one")
    shelves.save("b", "two", namespace="open")
    (shelves.root / "store" / "open").chmod(0o777)

    done = shelves.collect(1)

    assert any("open" in problem for problem in done.problems)
    assert shelves.fetch("a") is None
    (shelves.root / "store" / "open").chmod(0o700)
    assert shelves.fetch("b", "open") is not None


def test_no_store_is_an_empty_one(shelves: Shelves) -> None:
    """A machine that never saved anything has nothing to collect, and gets no folder for it."""
    assert shelves.collect(1).after == 0
    assert shelves.collector(1).look().before == 0
    assert not (shelves.root / "store").exists()


def test_where_folders_cannot_be_locked_nothing_is_collected(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks nobody can be told to be alone."""
    shelves.save("a", "one")
    monkeypatch.setattr(guards, "SUPPORTED", False)

    with pytest.raises(UnsupportedError, match="locked"):
        shelves.collect(1)
    assert shelves.units("a") == ["one"]


def test_a_network_file_system_is_not_collected(shelves: Shelves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other hosts may use the same files, a lock of this host says nothing."""
    shelves.save("a", "one")
    monkeypatch.setattr("cachekit.store.mounts.network_type", lambda folder: "nfs4")

    with pytest.raises(UnsupportedError, match="nfs4"):
        shelves.collect(1)
    with pytest.raises(UnsupportedError, match="nfs4"):
        shelves.collector(1).look()
    assert shelves.units("a") == ["one"]


@pytest.mark.parametrize("step", range(0, 20, 4))
def test_a_collection_that_is_killed_leaves_a_whole_store(shelves: Shelves, step: int) -> None:
    """kill -9 before any change to the store: what is there reads whole, and the next collection finishes the work."""
    shelves.save("a", "one", "two")
    shelves.save("a", "three")
    shelves.save("b", "four")
    pem = shelves.root / "key.pem"
    pem.write_bytes(shelves.key.pem)
    script = """
import os, shutil, signal, sys
from pathlib import Path
from cachekit.bundle.signing import SigningKey
from tests.unit.store.shelves import KB, Shelves
left = int(sys.argv[2])
def dying(function):
    def run(*args, **kwargs):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*args, **kwargs)
    return run
for owner, name in ((os, "fsync"), (shutil, "rmtree"), (Path, "rename"), (Path, "replace"), (Path, "unlink")):
    setattr(owner, name, dying(getattr(owner, name)))
shelves = Shelves(Path(sys.argv[1]), SigningKey(Path(sys.argv[1], "key.pem").read_bytes()))
shelves.collect(150 * KB)
"""
    died = subprocess.run(
        [sys.executable, "-c", script, str(shelves.root), str(step)],
        cwd=Path(__file__).parents[3],
        check=False,
        timeout=60,
    )

    assert died.returncode == -signal.SIGKILL
    assert set(shelves.units("a")) <= {"one", "two", "three"}
    assert set(shelves.units("b")) <= {"four"}
    done = shelves.collect(150 * KB)
    assert done.problems == ()
    assert done.kept == ()
    assert shelves.size <= 150 * KB
    assert len(shelves.blobs()) == len(shelves.units("a") + shelves.units("b")) == 1


def test_every_step_of_a_collection_leaves_a_whole_store(
    shelves: Shelves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each change to a file: readers see a bundle whole or none, and no document names a blob that is gone."""
    shelves.save("a", "one", "two")
    shelves.save("a", "three")
    shelves.save("b", "four")
    steps = 0

    def check() -> None:
        nonlocal steps
        steps += 1
        blobs = shelves.blobs()
        for name in "ab":
            profile, fid = shelves.folder(name), fingerprint(name).id
            head = shelves.store.read_head(fid)
            for document in (profile / "generations").glob("*.json"):
                assert all(digest in blobs for digest in made & holdings.named(document.read_bytes()))
            assert head is None or (profile / "generations" / head.filename).is_file()
            assert head is not None or not profile.exists()

    def watched(function: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            done = function(*args, **kwargs)
            check()
            return done

        return run

    made = shelves.blobs()
    for owner, name in ((os, "unlink"), (os, "rmdir"), (Path, "rename"), (Path, "replace"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    done = shelves.collect(150 * KB)
    monkeypatch.undo()

    assert done.removed != ()
    assert done.bundles != ()
    assert steps > 5
    assert len(shelves.units("a") + shelves.units("b")) == 1


def test_looking_at_a_large_store_is_quick(shelves: Shelves) -> None:
    """Some thousand files are surveyed in well under a second, documents read once."""
    store = shelves.store
    shelves.save("a", "one")
    for n in range(2000):
        path = store.folder / "blobs" / "sha256" / f"{n % 256:02x}" / f"{n:064x}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    surveyor = holdings.Surveyor(shelves.root / "store", shelves.trusted)
    surveyor.look()

    started = time.process_time()
    found = surveyor.look()

    assert time.process_time() - started < 1.0
    assert found.total == shelves.size
