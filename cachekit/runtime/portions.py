"""Handing a bundle over in portions: it is never in memory several times over, and reading overlaps with loading.

torch's loader makes copies of what it is given, and what it is given is made of ours. Of a whole bundle that is more
than twice its size at once; of a portion it is little. While one portion is loaded, the next ones are read, checked and
unpacked on other threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

from cachekit.bundle import Entry

PORTION_BYTES = 4 << 20
"""Raw bytes: small beside a bundle, large beside what a call of torch's loader costs by itself."""

READERS = 2
"""Threads that read ahead. Unpacking and hashing run beside each other, the scan of pickles does not."""

Portion = Sequence[Entry]
Read = TypeVar("Read")


def split(entries: Iterable[Entry], limit: int = PORTION_BYTES) -> Sequence[Portion]:
    """The entries in portions of at most ``limit`` raw bytes, or of one larger artifact.

    Alternatives for one key and guards stay together, because only one of them is given to torch.
    """
    portions: list[list[Entry]] = []
    size = limit
    for _, alternatives in groupby(sorted(entries, key=_slot), key=_slot):
        group = list(alternatives)
        added = _size(group)
        if size + added > limit:
            portions.append([])
            size = 0
        portions[-1] += group
        size += added
    return portions


def ahead(
    portions: Sequence[Portion], read: Callable[[Portion], Read], limit: int = PORTION_BYTES
) -> Iterator[Read]:
    """``read`` of each portion, in order; some of the next ones are read meanwhile, as far as ``limit`` bytes allow."""
    if len(portions) < 2:
        yield from map(read, portions)
        return
    waiting = deque(portions)
    reading: deque[tuple[int, Future[Read]]] = deque()
    with ThreadPoolExecutor(READERS, thread_name_prefix="cachekit-read") as pool:
        try:
            while waiting or reading:
                # The first is about to be handed over; what counts is what waits behind it.
                while (
                    waiting
                    and sum(size for size, _ in [*reading, (_size(waiting[0]), None)][1:]) <= READERS * limit
                ):
                    portion = waiting.popleft()
                    reading.append((_size(portion), pool.submit(read, portion)))
                yield reading.popleft()[1].result()
        finally:
            pool.shutdown(cancel_futures=True)


def _slot(entry: Entry) -> tuple[str, str, str]:
    return entry.kind, entry.key, entry.guards


def _size(entries: Iterable[Entry]) -> int:
    return sum(entry.raw_size for entry in entries)
