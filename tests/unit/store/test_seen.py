"""The memory of the newest generation: it rises, survives damage, and forgets on purpose only."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from cachekit.bundle import Tombstone
from cachekit.errors import ConfigurationError, StoreError
from cachekit.store.base import Head
from cachekit.store.local import DirectoryStore
from cachekit.store.seen import Seen
from tests.unit.store.damage import DAMAGES, ROOT
from tests.unit.store.world import FINGERPRINT, World, inductor

FID = FINGERPRINT.id


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    """A memory of nothing."""
    return Seen(tmp_path / "seen", "local")


def commits(world: World, count: int) -> list[Head]:
    """The heads of so many saves."""
    heads = []
    for number in range(count):
        head = world.save(inductor(f"of save {number}")).head
        assert head is not None
        heads.append(head)
    return heads


def test_looking_makes_nothing(seen: Seen) -> None:
    """A machine that saw nothing has no folder for it."""
    assert seen.highest(FID) is None
    assert seen.withdrawn(FID) == ()
    assert seen.known() == []
    seen.forget(FID)
    assert not seen.folder.exists()


def test_the_newest_head_is_remembered(world: World, seen: Seen) -> None:
    """It rises with what is noted, never falls, and is there for the next process."""
    first, second, third = commits(world, 3)

    assert seen.note(world.store, FID, second)
    assert not seen.note(world.store, FID, first)
    assert not seen.note(world.store, FID, second)
    assert seen.highest(FID) == second
    assert seen.note(world.store, FID, third)
    assert Seen(seen.folder.parent.parent, "local").highest(FID) == third
    assert seen.known() == [FID]


def test_namespaces_and_stores_are_remembered_apart(world: World, seen: Seen, tmp_path: Path) -> None:
    """A generation of one says nothing about another."""
    (head,) = commits(world, 1)
    seen.note(world.store, FID, head)

    assert Seen(tmp_path / "seen", "other").highest(FID) is None
    assert Seen(tmp_path / "seen", "local", store="fleet").highest(FID) is None
    with pytest.raises(ConfigurationError):
        Seen(tmp_path / "seen", "../keys")


def test_memory_is_for_its_user_only(world: World, seen: Seen) -> None:
    """Whoever could write there could make others' news look old."""
    seen.note(world.store, FID, commits(world, 1)[0])

    assert stat.S_IMODE(seen.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(seen.path(FID).stat().st_mode) == 0o600


def test_what_the_store_no_longer_has_is_not_remembered(world: World, seen: Seen) -> None:
    """A session that outlives an eviction must not make the empty store look turned back."""
    assert isinstance(world.store, DirectoryStore)
    (head,) = commits(world, 1)
    (world.store.root / "local/profiles" / FID / "head.json").unlink()

    assert not seen.note(world.store, FID, head)
    assert seen.highest(FID) is None


def test_forgetting_is_complete(world: World, seen: Seen) -> None:
    """After an eviction nothing is known of the profile, and it may begin at generation 1 again."""
    seen.note(world.store, FID, commits(world, 2)[1], [Tombstone("d" * 64, "wrong numbers")])

    seen.forget(FID)

    assert seen.highest(FID) is None
    assert seen.withdrawn(FID) == ()
    assert seen.known() == []


def test_what_was_withdrawn_is_remembered(world: World, seen: Seen) -> None:
    """Tombstones add up over generations."""
    first, second = commits(world, 2)
    seen.note(world.store, FID, first, [Tombstone("d" * 64, "wrong numbers")])
    seen.note(world.store, FID, second, [Tombstone("e" * 64, "stolen key")])

    assert set(seen.withdrawn(FID)) == {
        Tombstone("d" * 64, "wrong numbers"),
        Tombstone("e" * 64, "stolen key"),
    }


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_memory_is_as_good_as_none(
    world: World, seen: Seen, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns and locks nobody out; a regular file is replaced by the next note."""
    first, second = commits(world, 2)
    seen.note(world.store, FID, first)
    DAMAGES[damage](seen.path(FID))

    found = seen.highest(FID)

    if found is None:
        assert damage == "missing" or FID in caplog.text
    else:
        assert (damage, found.generation) == ("flipped", 1)  # another digest
    if damage == "folder":
        with pytest.raises(StoreError):
            seen.note(world.store, FID, second)
    else:
        assert seen.note(world.store, FID, second)
        assert seen.highest(FID) == second


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"x": "y"}', b"{", b'{"' + b"d" * 64 + b'": 1}', b"[" * 9999]
)
def test_damaged_tombstones_are_forgotten_with_a_warning(
    world: World, seen: Seen, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised for what a disk did to them."""
    seen.note(world.store, FID, commits(world, 1)[0], [Tombstone("d" * 64, "wrong numbers")])
    seen.path(FID).with_name(f"{FID}.withdrawn.json").write_bytes(content)

    assert seen.withdrawn(FID) == ()
    assert "forgotten" in caplog.text


def test_threads_note_in_any_order_and_the_highest_stays(world: World, seen: Seen) -> None:
    """Savers of several sessions write one memory."""
    heads = commits(world, 8)
    threads = [threading.Thread(target=seen.note, args=(world.store, FID, head)) for head in heads]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()

    assert seen.highest(FID) == heads[-1]


def test_processes_note_in_any_order_and_the_highest_stays(world: World, seen: Seen) -> None:
    """Each process notes every head it is given, in another order; a half-written memory is never read."""
    assert isinstance(world.store, DirectoryStore)
    heads = commits(world, 6)
    script = """
        import json, random, sys
        from cachekit.store.base import Head
        from cachekit.store.local import DirectoryStore
        from cachekit.store.seen import Seen

        root, folder, fid, heads, order = sys.argv[1:]
        heads = [Head(*pair) for pair in json.loads(heads)]
        random.Random(order).shuffle(heads)
        seen = Seen(folder, "local")
        for head in heads:
            before = seen.highest(fid)
            seen.note(DirectoryStore(root), fid, head)
            after = seen.read(fid)
            assert after.generation >= max(head.generation, before.generation if before else 0)
    """
    arguments = [
        str(world.store.root),
        str(seen.folder.parent.parent),
        FID,
        json.dumps([[head.generation, head.digest] for head in heads]),
    ]
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), *arguments, str(order)], cwd=ROOT)
        for order in range(3)
    ]

    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert seen.highest(FID) == heads[-1]


def test_a_memory_under_a_number_is_a_head(seen: Seen) -> None:
    """The file is the same as a head, so that people can compare both."""
    seen.folder.mkdir(parents=True, mode=0o700)
    seen.path(FID).write_bytes(Head(7, "a" * 64).to_bytes())

    assert seen.highest(FID) == Head(7, "a" * 64)
