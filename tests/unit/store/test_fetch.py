from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from cachekit.bundle import Bundle
from cachekit.errors import CorruptError, LimitError, NotFoundError, StoreError
from cachekit.store import fetch as fetch_module
from cachekit.store import quarantine
from cachekit.store.fetch import pack, read_artifacts, unpack
from cachekit.store.local import DirectoryStore
from tests.unit.store.world import World, autotune, inductor


def _blob(world: World, bundle: Bundle, key: str) -> Path:
    assert isinstance(world.store, DirectoryStore)
    digest = next(entry.stored_digest for entry in bundle.entries if entry.key == key)
    return world.store.root / "local/blobs/sha256" / digest[:2] / digest


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_packing_is_undone_by_unpacking(size: int) -> None:
    """Bytes come back from their zstd frame exactly."""
    data = bytes(size)

    assert unpack(pack(data), size) == data


def test_packing_is_the_same_every_time() -> None:
    """Equal bytes give equal blobs, so that they are stored once."""
    assert pack(b"abc" * 1000) == pack(b"abc" * 1000)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"not zstd at all",
        pack(b"x" * 100)[:-1],
        pack(b"x" * 100) + b"more",
        pack(b"x" * 101),
        pack(b""),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100),
    ],
)
def test_a_frame_that_is_not_what_it_should_be_is_corrupt(stored: bytes) -> None:
    """Garbage, truncation, trailing bytes and other sizes are our error, whatever zstandard says."""
    with pytest.raises(CorruptError):
        unpack(stored, 100)


def test_a_frame_that_claims_too_much_is_not_unpacked() -> None:
    """A small blob that would unpack to a gigabyte is refused by what it claims, before memory is taken."""
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 * 2**20))
    assert len(bomb) < 100_000

    with pytest.raises(CorruptError, match="claims to unpack"):
        unpack(bomb, 1000)


def test_only_what_is_wanted_is_read(world: World) -> None:
    """The predicate sees each entry and decides; the others' blobs are not touched."""
    bundle = world.save(inductor("a"), inductor("b")).bundle
    _blob(world, bundle, inductor("b").key).unlink()

    loaded = read_artifacts(world.store, bundle, lambda entry: entry.key == inductor("a").key)

    assert loaded.artifacts == (inductor("a"),)
    assert loaded.problems == ()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"y" + data[1:]]
)
def test_a_damaged_blob_is_reported_and_the_rest_loads(
    world: World, monkeypatch: pytest.MonkeyPatch, damage: object, many: bool
) -> None:
    """Truncated, grown or altered: the artifact is left out and named, its blob put aside, and the others are there."""
    assert callable(damage)
    assert isinstance(world.store, DirectoryStore)
    monkeypatch.setattr(fetch_module, "_PARALLEL_BYTES", 0 if many else 2**40)
    bundle = world.save(inductor("a"), inductor("b"), inductor("c"), autotune("d")).bundle
    path = _blob(world, bundle, inductor("b").key)
    path.write_bytes(damage(path.read_bytes()))

    loaded = read_artifacts(world.store, bundle, lambda entry: True)

    assert {artifact.key for artifact in loaded.artifacts} == {
        inductor("a").key,
        inductor("c").key,
        autotune("d").key,
    }
    (problem,) = loaded.problems
    assert problem.identity == inductor("b").identity
    assert isinstance(problem.error, CorruptError)
    assert inductor("b").key in str(problem)
    assert not path.exists()
    (kept,) = quarantine.kept(world.store.quarantine)
    assert kept.path.name.endswith(path.name)
    assert inductor("b").key in kept.why


def test_a_blob_that_is_repaired_meanwhile_is_used(world: World) -> None:
    """A reader that met damage looks again before it puts anything aside: a writer may have been quicker."""
    assert isinstance(world.store, DirectoryStore)
    bundle = world.save(inductor("a")).bundle
    path = _blob(world, bundle, inductor("a").key)
    whole = path.read_bytes()
    path.write_bytes(b"damaged")

    class Repaired(DirectoryStore):
        def read_blob(self, digest: str, *, max_bytes: int | None = None) -> bytes:
            try:
                return super().read_blob(digest, max_bytes=max_bytes)
            except CorruptError:
                path.write_bytes(whole)
                raise

    loaded = read_artifacts(Repaired(world.store.root), bundle, lambda entry: True)

    assert loaded.artifacts == (inductor("a"),)
    assert loaded.problems == ()


def test_a_blob_that_grew_is_not_read_whole(world: World) -> None:
    """The bundle says how large a blob is; more is refused by size."""
    bundle = world.save(inductor("a")).bundle
    with _blob(world, bundle, inductor("a").key).open("ab") as file:
        file.truncate(2**32)  # sparse

    (problem,) = read_artifacts(world.store, bundle, lambda entry: True).problems

    assert isinstance(problem.error, LimitError)


def test_a_missing_blob_is_reported(world: World) -> None:
    """Absence is told as such."""
    bundle = world.save(inductor("a")).bundle
    _blob(world, bundle, inductor("a").key).unlink()

    (problem,) = read_artifacts(world.store, bundle, lambda entry: True).problems

    assert isinstance(problem.error, NotFoundError)


def test_a_blob_that_cannot_be_read_is_reported_and_stays(world: World) -> None:
    """An error of the disk proves no damage: the blob is not put aside."""
    bundle = world.save(inductor("a"), inductor("b")).bundle
    path = _blob(world, bundle, inductor("a").key)
    path.unlink()
    path.mkdir()

    loaded = read_artifacts(world.store, bundle, lambda entry: True)

    assert loaded.artifacts == (inductor("b"),)
    assert type(loaded.problems[0].error) is StoreError
    assert path.is_dir()


@pytest.mark.parametrize("wrong", [{"raw_digest": "0" * 64}, {"raw_size": 9_999}, {"raw_size": 10_001}])
def test_bytes_that_unpack_to_something_else_are_refused(world: World, wrong: dict[str, object]) -> None:
    """A bundle that lies about what a blob contains gets nothing installed from it."""
    bundle = world.save(inductor("a")).bundle
    lying = replace(bundle, entries=(replace(bundle.entries[0], **wrong),))  # type: ignore[arg-type]

    loaded = read_artifacts(world.store, lying, lambda entry: True)

    assert loaded.artifacts == ()
    assert isinstance(loaded.problems[0].error, CorruptError)


def test_a_lying_inline_artifact_is_refused(world: World) -> None:
    """Artifacts inside the document are checked like blobs, and there is nothing to put aside."""
    bundle = world.save(autotune("a")).bundle
    lying = replace(bundle, entries=(replace(bundle.entries[0], inline=pack(b"something else")),))

    (problem,) = read_artifacts(world.store, lying, lambda entry: True).problems

    assert isinstance(problem.error, CorruptError)


def test_a_store_that_cannot_be_written_is_still_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a damaged blob cannot be put aside, reading goes on without it."""
    bundle = world.save(inductor("a"), inductor("b")).bundle
    _blob(world, bundle, inductor("a").key).write_bytes(b"damaged")
    assert isinstance(world.store, DirectoryStore)
    (world.store.root / "local/quarantine").write_bytes(b"a file in the folder's place")

    loaded = read_artifacts(world.store, bundle, lambda entry: True)

    assert loaded.artifacts == (inductor("b"),)
    assert len(loaded.problems) == 1
