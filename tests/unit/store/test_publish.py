from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from cachekit.bundle import Bundle, Shape, Tombstone, canonical, signing, to_payload
from cachekit.bundle.limits import Limits
from cachekit.bundle.signing import CONTRIBUTION_TYPE, generate
from cachekit.errors import ConflictError, LimitError, NewerSchemaError, StoreError, TrustError
from cachekit.store.base import Head, digest_of
from cachekit.store.local import DirectoryStore
from cachekit.store.memory import MemoryStore
from cachekit.store.publish import Contribution, fetch, publish, read_artifacts
from tests.unit.store.world import FINGERPRINT, World, aot, autotune, covering, inductor

ROOT = Path(__file__).parents[3]
FID = FINGERPRINT.id


def _data(world: World) -> dict[str, bytes]:
    """Everything a reader gets, by identity."""
    bundle = world.fetch()
    assert bundle is not None
    loaded = read_artifacts(world.store, bundle, lambda entry: True)
    assert loaded.problems == ()
    return {artifact.identity.id: artifact.data for artifact in loaded.artifacts}


def _files(world: World) -> dict[Path, int]:
    assert isinstance(world.store, DirectoryStore)
    return {path: path.stat().st_mtime_ns for path in world.store.root.rglob("*") if path.is_file()}


def _commit_by_hand(world: World, bundle: Bundle, key: signing.SigningKey) -> Head:
    """Make ``bundle`` the head, signed by ``key``, as another program would."""
    head = world.store.read_head(FID)
    envelope = signing.sign(to_payload(bundle), key)
    new = Head(bundle.generation, world.store.write_generation(FID, bundle.generation, envelope))
    world.store.move_head(FID, head, new)
    return new


def test_what_is_published_is_fetched(world: World) -> None:
    """A first save makes generation 1; a reader gets the same bundle and the same bytes."""
    artifacts = (inductor("a"), aot("a"), autotune("a"))
    published = world.save(*artifacts, coverage=covering("512x512x1", *artifacts))

    assert world.fetch() == published.bundle
    assert published.bundle.generation == 1
    assert published.bundle.parent is None
    assert published.new_entries == 3
    assert _data(world) == {artifact.identity.id: artifact.data for artifact in artifacts}
    assert published.bundle.coverage.covers(Shape.parse("512x512x1"))


def test_nothing_is_there_before_the_first_save(world: World) -> None:
    """Absence is None, not an error."""
    assert world.fetch() is None


def test_small_artifacts_travel_in_the_document(world: World) -> None:
    """What is at most 4 KiB as stored needs no blob; what is larger is one, named by its stored bytes."""
    big = inductor("big", size=200_000)
    zeros = replace(big, key=inductor("zeros").key, data=bytes(200_000))
    bundle = world.save(big, zeros, autotune("small")).bundle

    entries = {entry.key: entry for entry in bundle.entries}
    assert entries[autotune("small").key].inline is not None
    assert entries[big.key].inline is None
    assert entries[zeros.key].inline is not None  # 200,000 zeros are compressed to a few bytes
    assert {digest for digest in bundle.blobs if world.store.has_blob(digest)} == {
        entries[big.key].stored_digest
    }


def test_two_saves_keep_both_shapes(world: World) -> None:
    """A second save adds to the first: both shapes are covered and all artifacts are there."""
    world.save(inductor("a"), aot("a"), coverage=covering("512x512x1", inductor("a"), aot("a")))
    second = world.save(inductor("b"), aot("b"), coverage=covering("768x512x1", inductor("b"), aot("b")))

    assert second.bundle.generation == 2
    assert [row.shape.label for row in second.bundle.coverage.shapes] == ["512x512x1", "768x512x1"]
    assert len(_data(world)) == 4
    assert second.bundle.parent == world.store.generations(FID)[0].digest


def test_a_save_with_nothing_new_writes_nothing(world: World) -> None:
    """The same artifacts, in other bytes and with other facts, leave every file as it was."""
    coverage = covering("512x512x1", inductor("a"), seconds=3.0)
    world.save(inductor("a", by="first"), coverage=coverage)
    before = _files(world)

    again = world.save(inductor("a", by="second"), producer={"torch": "1"})
    faster = world.save(coverage=covering("512x512x1", inductor("a"), seconds=1.0))

    assert _files(world) == before
    assert (again.bytes_written, again.new_entries, again.bundle.generation) == (0, 0, 1)
    assert faster.bytes_written == 0
    assert _data(world) == {inductor("a").identity.id: inductor("a", by="first").data}


def test_an_empty_save_makes_no_profile(world: World) -> None:
    """Nothing to say about something unknown leaves no trace."""
    published = world.save()

    assert (published.bytes_written, published.bundle.generation) == (0, 0)
    assert world.store.profiles() == []
    assert world.fetch() is None


def test_a_save_never_shrinks_a_bundle(world: World) -> None:
    """A warm process that used a part of the bundle and adds one artifact keeps all that it did not use."""
    first = world.save(
        inductor("a"), inductor("b"), coverage=covering("512x512x1", inductor("a"), inductor("b"))
    )
    second = world.save(inductor("c"))

    assert {entry.identity for entry in first.bundle.entries} < {
        entry.identity for entry in second.bundle.entries
    }
    assert second.bundle.coverage == first.bundle.coverage
    assert second.new_entries == 1


def test_coverage_alone_is_worth_a_generation(world: World) -> None:
    """A new shape that existing artifacts serve is saved without any new artifact."""
    world.save(inductor("a"), coverage=covering("512x512x1", inductor("a")))
    second = world.save(coverage=covering("640x640x1", inductor("a")))

    assert second.new_entries == 0
    assert second.bundle.generation == 2
    assert second.bundle.coverage.covers(Shape.parse("640x640x1"))


def test_seconds_that_were_not_measured_before_are_worth_a_generation(world: World) -> None:
    """The first measurement of a compile is kept, because savings are reported against it."""
    world.save(inductor("a"), coverage=covering("512x512x1", inductor("a"), seconds=0.0))
    second = world.save(coverage=covering("512x512x1", inductor("a"), seconds=2.0))

    assert [unit.seconds for unit in second.bundle.coverage.units] == [2.0]


def test_what_lacks_its_partner_is_not_published(world: World) -> None:
    """An aot_autograd artifact without its inductor artifact is left out, with the shape that needs it, and no blob."""
    published = world.save(inductor("b"), aot("a"), coverage=covering("512x512x1", aot("a")))

    assert [entry.kind for entry in published.bundle.entries] == ["inductor"]
    assert published.bundle.coverage.shapes == ()
    later = world.save(inductor("a"), aot("a"), coverage=covering("512x512x1", aot("a")))
    assert later.bundle.coverage.covers(Shape.parse("512x512x1"))


def test_every_entry_names_a_signed_statement(world: World) -> None:
    """The contribution of an entry exists, is signed by its producer, and names the entry's bytes."""
    bundle = world.save(inductor("a"), autotune("a")).bundle

    for entry in bundle.entries:
        signed = signing.verify(
            world.store.read_contribution(entry.contribution), world.trusted, payload_type=CONTRIBUTION_TYPE
        )
        stated = {one["id"]: one["raw"]["sha256"] for one in canonical.loads(signed.payload)["artifacts"]}
        assert signed.keyid == entry.producer
        assert stated[entry.identity.id] == entry.raw_digest
    assert world.store.contributions() == sorted({entry.contribution for entry in bundle.entries})


def test_the_components_are_kept_beside_the_bundle(world: World) -> None:
    """A profile can be compared with others without reading its bundle."""
    world.save(inductor("a"))

    assert world.store.profiles() == [FID]
    assert world.store.read_profile(FID) == FINGERPRINT.canonical


def test_the_first_compile_of_an_identity_stays(world: World) -> None:
    """When two compiles of one identity meet, the one that was accepted first wins, even if the clock went back."""
    world.save(inductor("a", by="first"))
    world.clock -= 1_000_000
    world.save(inductor("a", by="second"), inductor("b"))

    assert _data(world)[inductor("a").identity.id] == inductor("a", by="first").data


def test_inside_one_contribution_the_first_of_an_identity_counts(world: World) -> None:
    """Artifacts that torch recorded twice are saved once."""
    published = world.save(inductor("a", by="first"), inductor("a", by="second"))

    assert published.new_entries == 1
    assert _data(world) == {inductor("a").identity.id: inductor("a", by="first").data}


def test_a_withdrawn_artifact_does_not_come_back(world: World) -> None:
    """The same bytes are refused after a tombstone; another compile of the same identity takes their place."""
    bad, good = inductor("a", by="bad"), inductor("a", by="good")
    bundle = world.save(bad).bundle
    withdrawn = replace(bundle, generation=2, tombstones=(Tombstone(bad.digest, "computes NaN"),))
    _commit_by_hand(world, withdrawn, world.key)

    assert world.save(bad).bytes_written == 0
    replaced = world.save(good)

    assert replaced.new_entries == 1
    assert _data(world) == {good.identity.id: good.data}
    assert replaced.bundle.tombstones == withdrawn.tombstones


def test_a_lost_blob_is_replaced_by_the_next_compile(world: World) -> None:
    """An artifact that can no longer be read is published anew instead of being missed for ever."""
    lost = world.save(inductor("a", by="first")).bundle.entries[0]
    world.store.quarantine_blob(lost.stored_digest)

    healed = world.save(inductor("a", by="second"))

    assert healed.new_entries == 1
    assert _data(world) == {inductor("a").identity.id: inductor("a", by="second").data}
    assert healed.bundle.entries[0].epoch == lost.epoch + 1


def test_autotune_entries_follow_the_compile_that_replaces_a_lost_one(world: World) -> None:
    """Inductor and autotune entries come from one compile, also after the first one's blob was lost."""
    bundle = world.save(inductor("a", by="first"), autotune("a", by="first")).bundle
    (lost,) = bundle.blobs
    world.store.quarantine_blob(lost)

    world.save(inductor("a", by="second"), autotune("a", by="second"))

    assert _data(world)[autotune("a").identity.id] == autotune("a", by="second").data


class Impatient(DirectoryStore):
    """Waits for no turn, as one does that could not have it in time."""

    def in_turn(self, fid: str) -> AbstractContextManager[None]:
        """At once."""
        return nullcontext()


def test_another_process_in_between_loses_nothing(world: World) -> None:
    """When the head moves while a save is merging, both saves are in the bundle, in gapless generations."""
    assert isinstance(world.store, DirectoryStore)
    world.save(inductor("a"))
    quick = World(Impatient(world.store.root), world.key)

    class Slow(DirectoryStore):
        raced = 0

        def move_head(self, fid: str, expected: Head | None, new: Head) -> None:
            if self.raced < 3:
                self.raced += 1
                quick.save(inductor(f"quick {self.raced}"))
            super().move_head(fid, expected, new)

    slow = World(Slow(world.store.root), world.key)
    published = slow.save(inductor("slow"), inductor("quick 1", by="slow"))

    assert published.bundle.generation == 5
    assert published.new_entries == 1
    assert len(_data(world)) == 5
    assert {head.generation for head in world.store.generations(FID)} == {1, 2, 3, 4, 5}
    assert _data(world)[inductor("quick 1").identity.id] == inductor("quick 1").data


def test_a_save_that_never_wins_gives_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries are bounded and end in a named error."""
    monkeypatch.setattr("cachekit.store.publish.time.sleep", lambda seconds: None)

    class Unlucky(MemoryStore):
        def move_head(self, fid: str, expected: Head | None, new: Head) -> None:
            raise ConflictError("somebody else was quicker")

    with pytest.raises(ConflictError, match="20 attempts"):
        World(Unlucky(), world.key).save(inductor("a"))


def test_an_answer_that_was_lost_is_looked_up(world: World) -> None:
    """If moving the head fails after it happened, the save succeeded; if it did not happen, it failed."""

    class LosesTheAnswer(MemoryStore):
        happens = True

        def move_head(self, fid: str, expected: Head | None, new: Head) -> None:
            if self.happens:
                super().move_head(fid, expected, new)
            raise StoreError("connection reset")

    store = LosesTheAnswer()
    lossy = World(store, world.key)
    assert lossy.save(inductor("a")).bundle.generation == 1

    store.happens = False
    with pytest.raises(StoreError, match="connection reset"):
        lossy.save(inductor("b"))
    assert len(_data(lossy)) == 1


def test_a_bundle_by_an_unknown_key_is_refused_and_kept(world: World) -> None:
    """Neither read nor built upon nor replaced; the error names the key and what to do."""
    stranger = World(world.store, generate())
    stranger.save(inductor("a"))
    head = world.store.read_head(FID)

    for use in (world.fetch, lambda: world.save(inductor("b"))):
        with pytest.raises(TrustError, match=stranger.key.keyid[:12]):
            use()
    assert world.store.read_head(FID) == head


def test_a_key_that_nobody_trusts_does_not_sign(world: World) -> None:
    """Publishing what the same machine could not read is refused before anything is written."""
    contribution = Contribution(FINGERPRINT, (inductor("a"),))

    with pytest.raises(TrustError, match=world.key.keyid):
        publish(world.store, contribution, world.key, {})
    assert world.store.profiles() == []


def test_a_document_moved_from_elsewhere_is_refused(world: World) -> None:
    """A signed document counts only for its own namespace, fingerprint and generation."""
    bundle = world.save(inductor("a")).bundle
    for moved in (replace(bundle, generation=7), replace(bundle, namespace="other")):
        head = world.store.read_head(FID)
        assert head is not None
        envelope = signing.sign(to_payload(moved), world.key)
        new = Head(head.generation + 1, world.store.write_generation(FID, head.generation + 1, envelope))
        world.store.move_head(FID, head, new)

        with pytest.raises(TrustError, match="moved it here"):
            world.fetch()


def test_a_contribution_cannot_pass_for_a_bundle(world: World) -> None:
    """A statement signed by a trusted key is not accepted where a bundle belongs."""
    bundle = world.save(inductor("a")).bundle
    envelope = signing.sign(
        to_payload(replace(bundle, generation=2)), world.key, payload_type=CONTRIBUTION_TYPE
    )
    world.store.move_head(
        FID, world.store.read_head(FID), Head(2, world.store.write_generation(FID, 2, envelope))
    )

    with pytest.raises(TrustError, match="contribution"):
        world.fetch()


def test_a_newer_bundle_is_left_untouched(world: World) -> None:
    """A document of a later schema is neither read nor replaced nor put aside."""
    bundle = world.save(inductor("a")).bundle
    document = canonical.loads(to_payload(replace(bundle, generation=2))) | {"schema": 9, "min_reader": 9}
    envelope = signing.sign(canonical.dumps(document), world.key)
    head = Head(2, world.store.write_generation(FID, 2, envelope))
    world.store.move_head(FID, world.store.read_head(FID), head)

    for use in (world.fetch, lambda: world.save(inductor("b"))):
        with pytest.raises(NewerSchemaError):
            use()
    assert world.store.read_generation(FID, head) == envelope
    assert world.store.read_head(FID) == head


def test_a_bundle_nobody_could_read_is_not_published(world: World) -> None:
    """A save that would pass the readers' limits fails, and the bundle before stays."""
    world.save(inductor("a"))
    contribution = Contribution(FINGERPRINT, (inductor("b"),))

    with pytest.raises(LimitError):
        publish(world.store, contribution, world.key, world.trusted, limits=Limits(max_artifacts=1))
    assert len(_data(world)) == 1


def test_one_bad_artifact_does_not_stop_a_save(world: World) -> None:
    """An artifact whose partners cannot be read is left out; the others are saved."""
    two_partners = b"".join(b"\x8c\x34" + inductor(name).key.encode() for name in ("a", "b"))
    broken = replace(aot("a"), data=two_partners + b"\x8c\x13fx_graph_guard_expr\x94\xff not a pickle")

    published = world.save(inductor("a"), broken)

    assert [entry.kind for entry in published.bundle.entries] == ["inductor"]


def test_facts_hold_no_path_of_this_machine(world: World) -> None:
    """What is signed and shared is what the caller gave: no host, user or folder comes in by the store."""
    assert isinstance(world.store, DirectoryStore)
    world.save(inductor("a"))
    head = world.store.read_head(FID)
    assert head is not None
    payload = signing.verify(world.store.read_generation(FID, head), world.trusted).payload

    assert str(world.store.root.parent).encode() not in payload
    assert b"/home" not in payload


@pytest.mark.parametrize("damage", [b"", b"{", b'{"payload": ""}', None])
def test_a_damaged_bundle_is_a_named_error_and_heals_with_the_next_save(
    world: World, damage: bytes | None
) -> None:
    """Truncated, altered or missing documents are told to readers; a writer builds on the newest whole generation."""
    assert isinstance(world.store, DirectoryStore)
    world.save(inductor("a"))
    world.save(inductor("b"))
    head = world.store.read_head(FID)
    assert head is not None
    path = world.store.root / "local/profiles" / FID / "generations" / head.filename
    path.unlink() if damage is None else path.write_bytes(damage)

    for _ in range(2):
        with pytest.raises(Exception, match=r"generation|sha256") as caught:
            world.fetch()
        assert caught.value.code == "corrupt"  # type: ignore[attr-defined]
    healed = world.save(inductor("c"))

    assert healed.bundle.generation == 3
    assert set(_data(world)) == {inductor("a").identity.id, inductor("c").identity.id}
    assert path.exists() is False


def test_a_damaged_head_heals_with_the_next_save(world: World) -> None:
    """A head that cannot be parsed is put aside; nothing that was committed is lost, and generations go on rising."""
    assert isinstance(world.store, DirectoryStore)
    world.save(inductor("a"))
    world.save(inductor("b"))
    (world.store.root / "local/profiles" / FID / "head.json").write_bytes(b"\0" * 40)

    with pytest.raises(Exception, match=r"head\.json") as caught:
        world.fetch()
    assert caught.value.code == "corrupt"  # type: ignore[attr-defined]
    healed = world.save(inductor("b"))

    assert healed.bundle.generation == 3
    assert len(_data(world)) == 2


def test_a_profile_of_which_nothing_is_whole_starts_again(world: World) -> None:
    """With every document damaged the next save begins anew, above all generations that were used."""
    assert isinstance(world.store, DirectoryStore)
    world.save(inductor("a"))
    world.save(inductor("b"))
    for path in (world.store.root / "local/profiles" / FID / "generations").iterdir():
        path.write_bytes(path.read_bytes()[:100])

    healed = world.save(inductor("c"))

    assert healed.bundle.generation == 3
    assert set(_data(world)) == {inductor("c").identity.id}


def test_what_a_dead_writer_left_is_merged_over(world: World) -> None:
    """A document that was written and never committed does not disturb the next save."""
    bundle = world.save(inductor("a")).bundle
    orphan = signing.sign(to_payload(replace(bundle, generation=2)), world.key)
    world.store.write_generation(FID, 2, orphan)
    world.store.write_blob(b"an unreferenced blob")

    second = world.save(inductor("b"))

    assert second.bundle.generation == 2
    assert world.store.read_head(FID) != Head(2, digest_of(orphan))
    assert len(_data(world)) == 2


STEPS = (
    "write_blob",
    "write_contribution",
    "write_profile",
    "write_generation",
    "move_head",
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_dies_at_any_step_leaves_a_whole_bundle(world: World, step: str, after: bool) -> None:
    """A process that is killed before or after any write leaves the old state or the new one; the next save works."""
    assert isinstance(world.store, DirectoryStore)
    world.save(inductor("a"))
    script = """
        import os, signal, sys
        from cachekit.bundle.signing import SigningKey
        from cachekit.store.local import DirectoryStore
        from tests.unit.store.world import World, inductor

        root, key, step, after = sys.argv[1:]
        works = getattr(DirectoryStore, step)

        def dies(*arguments):
            if after == "True":
                works(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(DirectoryStore, step, dies)
        World(DirectoryStore(root), SigningKey(key.encode())).save(inductor("b"))
    """
    arguments = [str(world.store.root), world.key.pem.decode(), step, str(after)]
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments], cwd=ROOT, timeout=60, check=False
    )

    assert killed.returncode == -signal.SIGKILL
    committed = step == "move_head" and after
    assert len(_data(world)) == (2 if committed else 1)
    saved = world.save(inductor("b"), inductor("c"))
    assert saved.bundle.generation == (3 if committed else 2)
    assert len(_data(world)) == 3


SAVE_SHAPES = """
    import sys
    from cachekit.bundle.signing import SigningKey
    from cachekit.store.local import DirectoryStore
    from tests.unit.store.world import World, aot, covering, inductor

    root, name, key = sys.argv[1:]
    world = World(DirectoryStore(root), SigningKey(key.encode()))
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(1, 6):
        mine = inductor(f"{name}{n}"), aot(f"{name}{n}")
        ours = inductor(f"both{n}", by=name)
        world.save(*mine, ours, coverage=covering(f"{64 * n}x{64 if name == 'a' else 128}x1", *mine))
"""


def test_two_processes_publish_different_shapes_at_once(world: World) -> None:
    """Both processes' shapes and artifacts are there, generations are gapless, and a reader sees only whole states."""
    assert isinstance(world.store, DirectoryStore)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SAVE_SHAPES), str(world.store.root), name, world.key.pem],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    sizes = [0]
    while any(writer.poll() is None for writer in writers):
        if world.fetch() is not None:
            sizes.append(len(_data(world)))
    for writer in writers:
        writer.communicate()

    assert [writer.returncode for writer in writers] == [0, 0]
    assert sizes == sorted(sizes)
    bundle = fetch(world.store, FID, world.trusted)
    assert bundle is not None
    assert bundle.generation == 10
    assert len(bundle.coverage.shapes) == 10
    assert len(_data(world)) == 2 * 5 * 2 + 5
    assert {head.generation for head in world.store.generations(FID)} == set(range(1, 11))
