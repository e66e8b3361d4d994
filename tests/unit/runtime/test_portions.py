"""Portions of a bundle: complete, in order, and never more of them in memory than asked for."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachekit.bundle import Artifact, Entry
from cachekit.runtime import portions, torch_private
from cachekit.runtime.installer import install
from cachekit.runtime.portions import Portion, ahead, split
from cachekit.runtime.process import PrivateFolder
from cachekit.store.local import DirectoryStore
from cachekit.store.memory import MemoryStore
from tests.unit.store.world import World, inductor

SMALL, LARGE = 40_000, 3_000_000


@pytest.fixture
def folder(tmp_path: Path) -> PrivateFolder:
    """A private folder, in which nothing here looks."""
    return PrivateFolder(tmp_path / "process")


def entry(name: str, size: int, *, isa: str = "") -> Entry:
    """An entry of this raw size; ``isa`` makes alternatives of one key."""
    return Entry(
        kind="inductor",
        key="f" + name.rjust(51, "a"),
        guards="",
        requires=(("vector_isa", isa),) if isa else (),
        raw_digest="0" * 64,
        raw_size=size,
        stored_digest="1" * 64,
        stored_size=size // 5,
        inline=None,
        accepted=1,
        contribution="",
        producer="",
    )


def test_portions_hold_everything_once_and_are_small() -> None:
    """No portion is larger than asked for, unless a single artifact is."""
    entries = [entry(f"b{number % 7}{chr(97 + number // 7)}", 10 + number) for number in range(100)]
    entries.append(entry("huge", 5000))
    found = split(entries, 300)

    assert Counter(one for portion in found for one in portion) == Counter(entries)
    assert all(len(portion) == 1 or sum(one.raw_size for one in portion) <= 300 for portion in found)
    assert len(found) < 40


def test_alternatives_stay_together() -> None:
    """Of two artifacts for one key torch is given one, which takes seeing both."""
    pair = [entry("pair", 200, isa="avx2"), entry("pair", 200, isa="avx512")]
    found = split([entry("a", 90), *pair, entry("z", 90)], 100)

    assert pair in found


def test_no_entries_no_portions() -> None:
    """Nothing is read for nothing."""
    assert split([]) == []
    assert list(ahead([], lambda portion: pytest.fail("read"))) == []


def test_what_was_read_comes_in_order() -> None:
    """Reading ahead changes nothing about the order."""
    found = split([entry(name, 10) for name in "gfedcba"], 10)

    assert list(ahead(found, lambda portion: portion[0].key[-1], 10)) == list("abcdefg")


def test_reading_ahead_is_bounded() -> None:
    """While one portion is used, no more than two portions' bytes were begun behind it."""
    found = split([entry(name, 10) for name in "abcdefghij"], 10)
    begun: list[Portion] = []

    def read(portion: Portion) -> int:
        begun.append(portion)
        return len(begun)

    for number, _ in enumerate(ahead(found, read, 10)):
        assert len(begun) <= number + 1 + portions.READERS


def test_an_error_ends_it_at_the_portion_that_had_it() -> None:
    """What was read before is used; the error is the reader's own."""
    found = split([entry(name, 10) for name in "abcdef"], 10)
    used: list[str] = []

    def read(portion: Portion) -> str:
        if portion[0].key.endswith("c"):
            raise OSError("gone")
        return portion[0].key[-1]

    def use_all() -> None:
        for one in ahead(found, read, 10):
            used.append(one)  # noqa: PERF402  what was used before the error counts

    with pytest.raises(OSError, match="gone"):
        use_all()
    assert used == ["a", "b"]


@pytest.fixture
def artifacts() -> list[Artifact]:
    """Many small ones and a few large ones that do not compress, 32 MB in all."""
    return [
        *(inductor(f"small {number}", size=SMALL) for number in range(200)),
        *(inductor(f"large {number}", size=LARGE) for number in range(8)),
    ]


def test_installing_takes_less_memory_than_the_bundle_has(
    monkeypatch: pytest.MonkeyPatch, folder: PrivateFolder, artifacts: list[Artifact]
) -> None:
    """Ours and torch's copies together are bounded by portions, however large the bundle."""
    store = MemoryStore()
    bundle = World(store).save(*artifacts).bundle
    raw = sum(len(artifact.data) for artifact in artifacts)
    given: list[int] = []

    def load(data: bytes) -> int:
        copies = data[4:], data[8:]  # as torch makes them, for its checksum and of what is inside
        given.append(len(copies[0]))
        return 1

    monkeypatch.setattr(torch_private, "load_artifacts", load)
    artifacts.clear()
    torch_private.import_loader()  # modules take memory once, whatever is installed
    with traced() as peak:
        done = install(store, bundle, folder, {})

    assert (done.counts["inductor"], done.problems) == (208, [])
    assert sum(given) > raw
    assert peak() < raw


def test_saving_takes_no_second_copy_of_what_torch_recorded(
    tmp_path: Path, artifacts: list[Artifact]
) -> None:
    """Also of what does not compress, a save holds at most what it writes and what it is packing."""
    world = World(DirectoryStore(tmp_path / "store"))
    world.save(inductor("before"))
    raw = sum(len(artifact.data) for artifact in artifacts)
    with traced() as peak:
        published = world.save(*artifacts)

    assert published.new_entries == 208
    assert peak() < 1.5 * raw


@contextlib.contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """What Python allocated at most inside, in bytes above what there was."""
    gc.collect()
    tracemalloc.start()
    peaks: list[int] = []
    try:
        yield lambda: peaks[0]
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
