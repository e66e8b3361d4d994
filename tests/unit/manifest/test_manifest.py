from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import cachekit
from cachekit.bundle import Bundle, Coverage, Entry, Shape, ShapeRow, Tombstone, Unit
from cachekit.bundle.signing import generate
from cachekit.errors import ManifestError
from cachekit.identity.fingerprint import Fingerprint
from cachekit.manifest import Manifest
from cachekit.manifest import manifest as module
from cachekit.store.local import DirectoryStore
from cachekit.store.memory import MemoryStore
from cachekit.store.publish import Contribution, publish
from tests.unit.store.world import FINGERPRINT, World, aot, autotune, covering, inductor

ROOT = Path(__file__).parents[3]
FID = FINGERPRINT.id


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty directory store with a key."""
    return World(DirectoryStore(tmp_path / "store"))


def _save_two_shapes(world: World) -> Bundle:
    a, b = (inductor("a", size=100_000), aot("a")), (inductor("b"), aot("b"), autotune("b"))
    world.save(*a, coverage=covering("512x512x1", *a, seconds=2.0))
    return world.save(*b, coverage=covering("768x512x2,frames=3,motion=false", *b, seconds=3.0)).bundle


def test_a_bundle_is_indexed_with_everything_it_says(manifest: Manifest, world: World) -> None:
    """Fingerprint, bundle, artifacts and shapes come back as the bundle has them."""
    bundle = _save_two_shapes(world)

    assert manifest.index(bundle) is True

    (fingerprint,) = manifest.fingerprints()
    assert (fingerprint.id, fingerprint.components) == (FID, FINGERPRINT.components)
    (record,) = manifest.bundles()
    assert (record.namespace, record.fingerprint_id, record.generation) == ("local", FID, 2)
    assert record.parent == bundle.parent
    assert (record.artifacts, record.shapes, record.seconds) == (5, 2, 5.0)
    assert record.raw_bytes == sum(entry.raw_size for entry in bundle.entries)
    assert record.stored_bytes == sum(entry.stored_size for entry in bundle.entries)
    assert record.producers == {"torch": "2.13.0"}
    artifacts = {artifact.identity: artifact for artifact in manifest.artifacts(FID)}
    for entry in bundle.entries:
        found = artifacts.pop(entry.identity.id)
        assert (
            found.kind,
            found.key,
            found.raw_digest,
            found.stored_size,
            found.inline,
            found.contribution,
        ) == (
            entry.kind,
            entry.key,
            entry.raw_digest,
            entry.stored_size,
            entry.inline is not None,
            entry.contribution,
        )
    assert artifacts == {}


def test_a_shape_names_its_units_and_the_artifacts_each_needs(manifest: Manifest, world: World) -> None:
    """Coverage can be asked for by shape: what runs, what it needs, what compiling it took."""
    manifest.index(_save_two_shapes(world))

    small, large = manifest.shapes()

    assert small.shape == Shape(512, 512, 1)
    assert small.needs == tuple(sorted([("inductor", inductor("a").key), ("aot_autograd", aot("a").key)]))
    assert large.shape == Shape.of(768, 512, 2, frames=3, motion=False)
    assert {kind for kind, _ in large.needs} == {"inductor", "aot_autograd", "autotune"}
    assert [unit.seconds for unit in large.units] == [3.0]
    assert large.seconds == 3.0


def test_requirements_and_guards_survive(manifest: Manifest, world: World) -> None:
    """An artifact for one kind of CPU says so in the manifest."""
    wanted = (("arch", "x86_64"), ("vector_isa", "avx512"))
    manifest.index(world.save(replace(inductor("a", requires=wanted), guards="s0 > 1")).bundle)

    (found,) = manifest.artifacts()
    assert (found.requires, found.guards) == (wanted, "s0 > 1")


def test_a_unit_that_is_there_for_two_hosts_counts_once(manifest: Manifest, world: World) -> None:
    """The same compile with other needs is an alternative, not a second compile to add up."""
    here, there = (inductor("a", requires=(("arch", arch),)) for arch in ("x86_64", "aarch64"))
    world.save(here, coverage=covering("512x512x1", here, seconds=4.0))
    manifest.index(world.save(there, coverage=covering("512x512x1", there, seconds=3.0)).bundle)

    (shape,) = manifest.shapes()
    assert len(shape.units) == 2
    assert shape.seconds == 3.0
    assert manifest.bundles()[0].seconds == 3.0


def test_a_shape_that_several_sets_of_units_run_is_there_for_each(manifest: Manifest, world: World) -> None:
    """Alternatives of a shape stay apart."""
    units = [Unit(dynamic=False, signature=f'"{n}"', needs=(inductor("a").identity.id,)) for n in range(3)]
    ids = [unit.id for unit in units]
    shape = Shape(512, 512, 1)
    rows = (ShapeRow(shape, tuple(sorted(ids[:2]))), ShapeRow(shape, (ids[2],)))
    manifest.index(world.save(inductor("a"), coverage=Coverage(tuple(units), rows)).bundle)

    assert sorted(sorted(unit.id for unit in record.units) for record in manifest.shapes()) == sorted(
        [sorted(ids[:2]), [ids[2]]]
    )
    assert manifest.bundles()[0].shapes == 1


def test_indexing_again_replaces(manifest: Manifest, world: World) -> None:
    """A newer generation takes the place of the older one; nothing of the older is left over."""
    first = world.save(inductor("a"), coverage=covering("512x512x1", inductor("a"))).bundle
    manifest.index(first)
    withdrawn = replace(first, generation=2, tombstones=(Tombstone(inductor("a").digest, "bad"),))
    manifest.index(replace(withdrawn, coverage=Coverage()))

    assert manifest.bundles()[0].tombstones == ((inductor("a").digest, "bad"),)
    assert manifest.counts() == {
        "fingerprints": 1,
        "bundles": 1,
        "artifacts": 0,
        "units": 0,
        "unit_artifacts": 0,
        "shapes": 0,
        "uses": 0,
        "events": 0,
    }


def test_an_older_generation_does_not_replace_a_newer_one(manifest: Manifest, world: World) -> None:
    """Two processes may publish in one order and index in the other."""
    first = world.save(inductor("a")).bundle
    second = world.save(inductor("b")).bundle

    assert manifest.index(second) is True
    assert manifest.index(first) is False
    assert manifest.bundles()[0].generation == 2


def test_a_store_that_began_again_is_indexed(manifest: Manifest, world: World) -> None:
    """A lower generation with something newer in it comes from an emptied store, and counts."""
    world.save(inductor("a"))
    manifest.index(world.save(inductor("b")).bundle)
    later = World(MemoryStore(), world.key, clock=time.time() + 10)

    assert manifest.index(later.save(inductor("c")).bundle) is True
    assert manifest.bundles()[0].generation == 1


def test_namespaces_are_told_apart(manifest: Manifest, world: World) -> None:
    """The same fingerprint in two namespaces is two bundles and one fingerprint."""
    manifest.index(world.save(inductor("a")).bundle)
    manifest.index(World(MemoryStore("team"), world.key).save(inductor("b")).bundle)

    assert [record.namespace for record in manifest.bundles(FID)] == ["local", "team"]
    assert [record.namespace for record in manifest.artifacts()] == ["local", "team"]
    assert len(manifest.fingerprints()) == 1


def test_asking_for_an_unknown_fingerprint_gives_nothing(manifest: Manifest, world: World) -> None:
    """An id that is not there is no error."""
    manifest.index(_save_two_shapes(world))

    assert manifest.bundles("0" * 64) == []
    assert manifest.artifacts("0" * 64) == []
    assert manifest.shapes("0" * 64) == []
    assert len(manifest.shapes(FID)) == 2


def test_events_are_a_diary(manifest: Manifest) -> None:
    """The newest come first, can be narrowed, and keep their data."""
    before = time.time_ns() // 1_000_000
    for n in range(3):
        manifest.add_event("saved", FID, {"n": n})
    manifest.add_event("started")

    assert [(event.kind, event.data) for event in manifest.events(2)] == [
        ("started", {}),
        ("saved", {"n": 2}),
    ]
    assert [event.data["n"] for event in manifest.events(kind="saved")] == [2, 1, 0]
    assert len(manifest.events(fid=FID)) == 3
    assert manifest.events()[0].at >= before
    assert manifest.events()[0].fingerprint_id is None


def test_the_diary_is_bounded(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old events make room for new ones."""
    monkeypatch.setattr(module, "KEPT_EVENTS", 5)
    for n in range(8):
        manifest.add_event("saved", data={"n": n})

    assert [event.data["n"] for event in manifest.events()] == [7, 6, 5, 4, 3]


def test_a_deleted_manifest_is_rebuilt_from_the_store(path: Path, world: World) -> None:
    """Everything but the diary can be read from the store again, exactly."""
    with Manifest(path) as manifest:
        manifest.index(_save_two_shapes(world))
        before = (manifest.fingerprints(), manifest.artifacts(), manifest.shapes())
    for file in path.parent.glob("manifest.sqlite3*"):
        file.unlink()

    with Manifest(path) as manifest:
        rebuilt = manifest.rebuild(world.store, world.trusted)

        assert (rebuilt.fingerprints, rebuilt.artifacts, rebuilt.shapes, rebuilt.problems) == (1, 5, 2, ())
        assert (manifest.fingerprints(), manifest.artifacts(), manifest.shapes()) == before


def test_a_damaged_manifest_is_set_aside_and_rebuilt(path: Path, world: World) -> None:
    """What cannot be opened is kept under another name, and a new manifest says what the store has."""
    world.save(inductor("a"))
    assert Manifest.set_aside(path) is None
    for n in (1, 2):
        path.write_bytes(b"no database, but long enough to be looked at as one")
        with pytest.raises(ManifestError):
            Manifest(path)

        kept = Manifest.set_aside(path)

        assert kept == path.with_name(f"manifest.sqlite3.damaged-{n}")
        assert kept.read_bytes().startswith(b"no database")
        with Manifest(path) as manifest:
            assert manifest.rebuild(world.store, world.trusted).artifacts == 1


def test_a_rebuild_forgets_what_the_store_no_longer_has(manifest: Manifest, world: World) -> None:
    """What was indexed and is gone is gone; other namespaces and events stay."""
    manifest.index(world.save(inductor("a")).bundle)
    manifest.index(World(MemoryStore("team"), world.key).save(inductor("b")).bundle)
    manifest.add_event("saved", FID)

    rebuilt = manifest.rebuild(MemoryStore("local"), world.trusted)

    assert rebuilt.fingerprints == 0
    assert [record.namespace for record in manifest.bundles()] == ["team"]
    assert len(manifest.events()) == 1
    assert len(manifest.fingerprints()) == 1
    manifest.rebuild(MemoryStore("team"), world.trusted)
    assert manifest.fingerprints() == []


def test_a_rebuild_goes_on_past_what_it_cannot_read(manifest: Manifest, world: World) -> None:
    """A bundle by an unknown key is reported with the reason, and no longer indexed; the others are."""
    strange = Fingerprint.of({"pipeline": {"family": "strange"}})
    stranger = generate()
    contribution = Contribution(strange, (inductor("s"),))
    published = publish(world.store, contribution, stranger, {stranger.keyid: stranger.public})
    manifest.index(published.bundle)
    world.save(inductor("a"))

    rebuilt = manifest.rebuild(world.store, world.trusted)

    ((fid, reason),) = rebuilt.problems
    assert fid == strange.id
    assert stranger.keyid[:12] in reason
    assert [record.fingerprint_id for record in manifest.bundles()] == [FID]


def test_a_rebuild_takes_the_stores_word_over_the_manifests(manifest: Manifest, world: World) -> None:
    """A rebuild indexes the head even if something newer was indexed before."""
    bundle = world.save(inductor("a")).bundle
    manifest.index(replace(bundle, generation=9))

    manifest.rebuild(world.store, world.trusted)

    assert manifest.bundles()[0].generation == 1


def test_many_artifacts_are_indexed_at_once(manifest: Manifest) -> None:
    """A bundle of some thousand artifacts is more than one statement may bind, and is indexed whole."""
    entries = tuple(
        Entry(*inductor(f"{n}", size=16).identity, f"{n:064x}", 1, f"{n:064x}", 1, None, 1, "c" * 64, "p")
        for n in range(3000)
    )
    bundle = Bundle("local", FINGERPRINT.components, FID, entries=entries)

    manifest.index(bundle)

    assert manifest.bundles()[0].artifacts == 3000


def test_threads_can_share_one(manifest: Manifest, world: World) -> None:
    """A background saver and the main thread use the same object at once."""
    bundle = world.save(inductor("a")).bundle

    def work() -> None:
        for _ in range(5):
            manifest.index(bundle)
            manifest.add_event("saved")
            manifest.shapes()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(manifest.events()) == 20
    assert len(manifest.bundles()) == 1


def test_processes_can_share_one(path: Path, world: World) -> None:
    """Writers of several processes wait for each other; nothing is lost and nothing half indexed."""
    assert isinstance(world.store, DirectoryStore)
    Manifest(path)
    script = textwrap.dedent("""
        import sys
        from cachekit.bundle.signing import SigningKey
        from cachekit.manifest import Manifest
        from cachekit.store.local import DirectoryStore
        from tests.unit.store.world import World, covering, inductor

        path, root, key, name = sys.argv[1:]
        world, manifest = World(DirectoryStore(root), SigningKey(key.encode())), Manifest(path)
        for n in range(10):
            mine = inductor(f"{name}{n}")
            manifest.index(world.save(mine, coverage=covering(f"{64 + n}x{len(name)}x1", mine)).bundle)
            manifest.add_event("saved")
    """)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(world.store.root), world.key.pem.decode(), name],
            cwd=ROOT,
        )
        for name in ("a", "bb")
    ]
    with Manifest(path) as manifest:
        while any(process.poll() is None for process in processes):
            for record in manifest.bundles():
                assert record.artifacts == record.shapes == record.generation

        assert [process.returncode for process in processes] == [0, 0]
        assert [(record.generation, record.artifacts) for record in manifest.bundles()] == [(20, 20)]
        assert len(manifest.events()) == 20


def test_a_transaction_that_fails_leaves_what_was_there(manifest: Manifest, world: World) -> None:
    """An index that breaks in the middle is undone as a whole, and the error is ours."""
    bundle = world.save(inductor("a"), coverage=covering("512x512x1", inductor("a"))).bundle
    manifest.index(bundle)
    broken = replace(bundle, generation=2)
    object.__setattr__(broken, "entries", (bundle.entries[0], bundle.entries[0]))

    with pytest.raises(ManifestError, match="UNIQUE"):
        manifest.index(broken)

    assert manifest.bundles()[0].generation == 1
    assert len(manifest.artifacts()) == 1


def test_a_manifest_that_stays_busy_is_reported(
    manifest: Manifest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that never lets go ends in our error, with the path, after a bounded wait."""
    monkeypatch.setattr("cachekit.manifest.engine.BUSY_TIMEOUT_S", 0.05)
    blocked = Manifest(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    with pytest.raises(ManifestError, match="locked") as caught:
        blocked.add_event("saved")
    holder.close()

    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, Exception)


def test_a_manifest_that_vanished_is_reported(manifest: Manifest, path: Path) -> None:
    """A file damaged or replaced while it is open is our error, not SQLAlchemy's."""
    for file in path.parent.glob("manifest.sqlite3*"):
        file.unlink()
    path.write_bytes(b"no database any more, but long enough to be looked at")

    with pytest.raises(ManifestError, match=str(path)):
        manifest.shapes()
    with pytest.raises(ManifestError, match=str(path)):
        manifest.add_event("saved")


def test_what_is_no_json_is_refused(manifest: Manifest) -> None:
    """Data that cannot be kept is our error and leaves no row."""
    with pytest.raises(ManifestError):
        manifest.add_event("saved", data={"key": b"bytes"})
    assert manifest.events() == []


def test_no_connection_stays_open(manifest: Manifest, world: World) -> None:
    """Between calls nothing is held that a forked child could inherit."""
    manifest.index(world.save(inductor("a")).bundle)
    manifest.shapes()

    if Path("/proc/self/fd").is_dir():
        opened = {os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()}
        assert not {name for name in opened if name.startswith(str(manifest.path))}


def test_the_face_has_it(manifest: Manifest) -> None:
    """``cachekit.Manifest`` is this class, and its repr names the file."""
    assert cachekit.Manifest is Manifest
    assert str(manifest.path) in repr(manifest)


def test_uses_are_counted_by_unit(manifest: Manifest) -> None:
    """Each start counts once for each unit it ran, and the last one is remembered."""
    manifest.add_uses("local", FID, ["a" * 64, "b" * 64, "a" * 64])
    manifest.add_uses("local", FID, ["a" * 64])
    manifest.add_uses("other", FID, ["a" * 64])
    manifest.add_uses("local", FID, [])

    found = manifest.uses()

    assert [(use.namespace, use.unit[0], use.starts) for use in found] == [
        ("local", "a", 2),
        ("local", "b", 1),
        ("other", "a", 1),
    ]
    assert all(abs(use.last - time.time() * 1000) < 60_000 for use in found)
    assert found[0].last >= found[1].last


def test_uses_survive_generations_and_a_rebuild(manifest: Manifest, world: World) -> None:
    """The index is made anew from the store; what only the manifest knows stays."""
    manifest.index(_save_two_shapes(world))
    manifest.add_uses("local", FID, ["a" * 64])
    manifest.index(world.save(inductor("c")).bundle)

    manifest.rebuild(world.store, world.trusted)

    assert [use.starts for use in manifest.uses()] == [1]


def test_an_eviction_is_told_and_counts_anew(manifest: Manifest, world: World) -> None:
    """What is left is indexed, also over a higher generation; a unit that comes back begins at its first start."""
    bundle = _save_two_shapes(world)
    manifest.index(bundle)
    first, second = sorted(bundle.coverage.unit_ids)
    manifest.add_uses("local", FID, [first, second])
    left = replace(bundle, generation=bundle.generation + 1, coverage=Coverage())

    manifest.evicted("local", FID, [first], left=left)
    assert [use.unit for use in manifest.uses()] == [second]
    assert manifest.bundles()[0].generation == left.generation

    manifest.evicted("local", FID, [second], left=None)
    assert (manifest.uses(), manifest.bundles(), manifest.fingerprints()) == ([], [], [])
    assert manifest.index(replace(bundle, generation=1)) is True


def test_processes_count_uses_at_once(manifest: Manifest) -> None:
    """No start is lost when several end together."""
    threads = [
        threading.Thread(target=lambda: [manifest.add_uses("local", FID, ["a" * 64]) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [use.starts for use in manifest.uses()] == [80]
