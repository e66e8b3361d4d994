"""Lost, damaged and turned-back heads and documents: readers start cold, the next save mends, nothing is forgotten."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cachekit.bundle import Tombstone, signing
from cachekit.bundle.document import to_payload
from cachekit.errors import CachekitError, CorruptError, NewerSchemaError, RollbackError, TrustError
from cachekit.store.base import Head
from cachekit.store.fetch import fetch, read_artifacts
from cachekit.store.local import DirectoryStore
from cachekit.store.publish import Contribution, Published, publish
from cachekit.store.seen import Seen
from tests.unit.store.damage import DAMAGES
from tests.unit.store.world import FINGERPRINT, World, inductor

FID = FINGERPRINT.id


class Machine:
    """A world whose saves are remembered, as a session's are."""

    def __init__(self, world: World, seen: Seen) -> None:
        assert isinstance(world.store, DirectoryStore)
        self.world = world
        self.store = world.store
        self.seen = seen
        self.profile = world.store.root / "local/profiles" / FID

    def save(self, *names: str) -> Published:
        """Publish artifacts of these names, and remember that."""
        contribution = Contribution(FINGERPRINT, tuple(map(inductor, names)))
        world = self.world
        done = publish(self.store, contribution, world.key, world.trusted, seen=self.seen, now=world.now)
        assert done.head is not None
        self.seen.note(self.store, FID, done.head, done.bundle.tombstones)
        return done

    def keys(self) -> set[str]:
        """What a reader would install."""
        bundle = fetch(self.store, FID, self.world.trusted, seen=self.seen)
        assert bundle is not None
        return {artifact.key for artifact in read_artifacts(self.store, bundle, lambda entry: True).artifacts}


@pytest.fixture
def machine(world: World, tmp_path: Path) -> Machine:
    """Three generations: a, b, c."""
    made = Machine(world, Seen(tmp_path / "seen", "local"))
    for name in "abc":
        made.save(name)
    return made


def named(names: str) -> set[str]:
    """The keys of artifacts."""
    return {inductor(name).key for name in names}


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "halved", "zeros", "grown"])
def test_a_head_that_is_gone_or_damaged(machine: Machine, damage: str, remembered: bool) -> None:
    """A reader starts cold with a reason; the next save builds upon the newest whole document, one generation up."""
    DAMAGES[damage](machine.profile / "head.json")
    if not remembered:
        machine.seen.forget(FID)

    if damage == "missing" and not remembered:
        assert fetch(machine.store, FID, machine.world.trusted, seen=machine.seen) is None
    else:
        with pytest.raises(CorruptError, match="head"):
            fetch(machine.store, FID, machine.world.trusted, seen=machine.seen)
    saved = machine.save("d")

    assert saved.bundle.generation == 4
    assert machine.keys() == named("abcd")


def test_a_head_that_is_gone_mends_without_anything_new(machine: Machine) -> None:
    """A save that has nothing to add makes the bundle reachable again."""
    (machine.profile / "head.json").unlink()

    assert machine.save("a").bundle.generation == 4
    assert machine.keys() == named("abc")


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name not in ("link", "fifo", "folder")])
def test_a_document_that_is_gone_or_damaged(machine: Machine, damage: str) -> None:
    """The newest document that is whole counts; the memory of the damaged one only keeps the number."""
    head = machine.store.read_head(FID)
    assert head is not None
    DAMAGES[damage](machine.profile / "generations" / head.filename)

    with pytest.raises(CorruptError):
        fetch(machine.store, FID, machine.world.trusted, seen=machine.seen)
    saved = machine.save("d")

    assert saved.bundle.generation == 4
    assert machine.keys() == named("abd")


def foreign_head(machine: Machine) -> tuple[Head, World]:
    """What copying another machine's store over this one leaves: its documents beside ours, and its head."""
    stranger = World(DirectoryStore(machine.store.root.parent / "theirs"))
    head = stranger.save(inductor("z")).head
    assert head is not None
    shutil.copytree(stranger.store.root, machine.store.root, dirs_exist_ok=True)  # type: ignore[attr-defined]
    return head, stranger


def test_a_foreign_head_over_own_documents(machine: Machine) -> None:
    """A reader starts cold and says why; the next save builds upon the newest document of our own, above both."""
    head, stranger = foreign_head(machine)
    assert machine.store.read_head(FID) == head

    with pytest.raises(TrustError, match=f"{stranger.key.keyid[:12]}.*cachekit verify --repair"):
        fetch(machine.store, FID, machine.world.trusted, seen=machine.seen)
    saved = machine.save("d")

    assert saved.bundle.generation == 4
    assert machine.keys() == named("abcd")
    assert head in machine.store.generations(FID)


def turn_back(machine: Machine, *, keep_documents: bool) -> None:
    """Put generation 2 back, as a restored backup or a lost write does."""
    heads = machine.store.generations(FID)
    (machine.profile / "head.json").write_bytes(heads[1].to_bytes())
    if not keep_documents:
        (machine.profile / "generations" / heads[2].filename).unlink()


@pytest.mark.parametrize("keep_documents", [True, False])
def test_a_store_that_was_turned_back(
    machine: Machine, keep_documents: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not installed, and says why; the next save goes on above what was seen, with all that is whole."""
    turn_back(machine, keep_documents=keep_documents)

    for _ in range(2):
        with pytest.raises(
            RollbackError, match=f"generation 2.*{machine.world.key.keyid[:12]}.*generation 3 was seen"
        ):
            fetch(machine.store, FID, machine.world.trusted, seen=machine.seen)
    assert fetch(machine.store, FID, machine.world.trusted) is not None
    with caplog.at_level(logging.WARNING):
        saved = machine.save("d")

    assert saved.bundle.generation == 4
    assert machine.keys() == named("abcd" if keep_documents else "abd")
    assert "built upon generation" in caplog.text


def test_what_was_withdrawn_does_not_come_back_with_a_backup(machine: Machine) -> None:
    """An old generation that still has it is built upon without it."""
    head = machine.store.read_head(FID)
    bundle = fetch(machine.store, FID, machine.world.trusted)
    assert head is not None
    assert bundle is not None
    stone = Tombstone(inductor("a").digest, "wrong numbers")
    withdrawn = replace(bundle, tombstones=(stone,), generation=4, parent=head.digest)
    envelope = signing.sign(to_payload(withdrawn), machine.world.key)
    new = Head(4, machine.store.write_generation(FID, 4, envelope))
    machine.store.move_head(FID, head, new)
    machine.seen.note(machine.store, FID, new, withdrawn.tombstones)
    assert machine.keys() == named("bc")
    (machine.profile / "generations" / new.filename).unlink()
    (machine.profile / "head.json").write_bytes(head.to_bytes())

    saved = machine.save("d")

    assert saved.bundle.generation == 5
    assert machine.keys() == named("bcd")


def test_a_store_that_was_emptied_goes_on_above(machine: Machine) -> None:
    """Without the store but with the memory: cold, and generations rise, so that no other machine sees a rollback."""
    shutil.rmtree(machine.store.root)

    with pytest.raises(CorruptError, match="generation 3 was seen"):
        fetch(machine.store, FID, machine.world.trusted, seen=machine.seen)
    assert machine.save("d").bundle.generation == 4
    assert machine.keys() == named("d")


def test_an_evicted_profile_is_no_alarm(machine: Machine) -> None:
    """Who removes a profile forgets it, too: it is absent, and begins anew."""
    shutil.rmtree(machine.profile)
    machine.seen.forget(FID)

    assert fetch(machine.store, FID, machine.world.trusted, seen=machine.seen) is None
    assert machine.save("d").bundle.generation == 1


def test_an_eviction_between_memory_and_head_is_no_alarm(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that had looked at the memory already looks again when it finds no head."""
    read_head = machine.store.read_head

    def evicted(fid: str) -> Head | None:
        (machine.profile / "head.json").unlink()
        machine.seen.forget(fid)
        return read_head(fid)

    monkeypatch.setattr(machine.store, "read_head", evicted)

    assert fetch(machine.store, FID, machine.world.trusted, seen=machine.seen) is None


def test_a_save_between_memory_and_head_is_no_alarm(machine: Machine) -> None:
    """The memory is read first, so a head that others move meanwhile is only ever newer."""

    class Slow(Seen):
        def highest(self, fid: str) -> Head | None:
            found = super().highest(fid)
            machine.save("d")
            return found

    slow = Slow(machine.seen.folder.parent.parent, "local")
    bundle = fetch(machine.store, FID, machine.world.trusted, seen=slow)

    assert bundle is not None
    assert bundle.generation == 4


def test_a_writer_that_died_before_its_first_head_is_built_upon(world: World, tmp_path: Path) -> None:
    """What it left is signed and whole; the next save takes it in."""
    done = world.save(inductor("a"))
    machine = Machine(world, Seen(tmp_path / "seen", "local"))
    (machine.profile / "head.json").unlink()

    saved = machine.save("b")

    assert done.bundle.generation == 1
    assert saved.bundle.generation == 2
    assert machine.keys() == named("ab")


def test_a_newer_release_without_its_head_is_left_untouched(machine: Machine) -> None:
    """A document of a later schema among those that wait for a head: nothing is written over it."""
    bundle = fetch(machine.store, FID, machine.world.trusted)
    assert bundle is not None
    text = to_payload(replace(bundle, generation=9)).replace(b'"min_reader":1', b'"min_reader":9')
    envelope = signing.sign(text.replace(b'"schema":1', b'"schema":9'), machine.world.key)
    machine.store.write_generation(FID, 9, envelope)
    (machine.profile / "head.json").unlink()
    before = sorted(path.name for path in machine.profile.rglob("*"))

    with pytest.raises(NewerSchemaError):
        machine.save("d")
    assert sorted(path.name for path in machine.profile.rglob("*")) == before


@pytest.mark.parametrize("damage", ["link", "fifo", "folder"])
@pytest.mark.parametrize("which", ["head.json", "document"])
def test_something_else_in_a_files_place_is_a_named_error(machine: Machine, which: str, damage: str) -> None:
    """Not followed, not waited for: readers and writers are told, and `verify --repair` can move it."""
    head = machine.store.read_head(FID)
    assert head is not None
    path = machine.profile / ("head.json" if which == "head.json" else f"generations/{head.filename}")
    DAMAGES[damage](path)

    with pytest.raises(CachekitError, match=path.name):
        fetch(machine.store, FID, machine.world.trusted, seen=machine.seen)
    with pytest.raises(CachekitError, match=path.name):
        machine.save("d")
