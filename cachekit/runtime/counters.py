"""What torch's own counters say happened: hits, misses and bypasses by kind of artifact.

A hit in the AOTAutograd cache implies one in the Inductor cache, so kinds are never added up. An
``autograd_cache_miss`` may be an attempt that was looked up, abandoned and restarted; what counts as missed is what
had to be made: ``autograd_cache_saved`` and ``fxgraph_cache_miss``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from cachekit.runtime import torch_private

_GROUPS = ("inductor", "aot_autograd")
_NAMES = {
    "hits": {"inductor": "fxgraph_cache_hit", "aot_autograd": "autograd_cache_hit"},
    "misses": {"inductor": "fxgraph_cache_miss", "aot_autograd": "autograd_cache_saved"},
    "bypasses": {"inductor": "fxgraph_cache_bypass", "aot_autograd": "autograd_cache_bypass"},
}

Snapshot = Mapping[str, Mapping[str, int]]


def snapshot() -> Snapshot:
    """The cache counters now."""
    counters = torch_private.compile_counters()
    # Copied at once: another thread may be compiling.
    return {g: {k: v for k, v in dict(counters[g]).items() if "cache" in k} for g in _GROUPS}


@dataclass(frozen=True)
class Outcome:
    """Whether something was hit, and whether something had to be made."""

    hit: bool = False
    missed: bool = False

    def __or__(self, other: Outcome) -> Outcome:
        return Outcome(self.hit or other.hit, self.missed or other.missed)


@dataclass
class Tally:
    """Hits, misses and bypasses by kind, summed over the compiles of one session."""

    hits: dict[str, int] = field(default_factory=dict)
    misses: dict[str, int] = field(default_factory=dict)
    bypasses: dict[str, int] = field(default_factory=dict)
    raw: dict[str, int] = field(default_factory=dict)

    def add(self, before: Snapshot, after: Snapshot) -> Outcome:
        """Count what happened between two snapshots."""
        with self._lock:
            self._add(before, after)
        moved = {
            outcome: any(after[g].get(name, 0) > before[g].get(name, 0) for g, name in names.items())
            for outcome, names in _NAMES.items()
        }
        return Outcome(moved["hits"], moved["misses"])

    def _add(self, before: Snapshot, after: Snapshot) -> None:
        for outcome, names in _NAMES.items():
            counts: dict[str, int] = getattr(self, outcome)
            for group, name in names.items():
                _bump(counts, group, after[group].get(name, 0) - before[group].get(name, 0))
        for group in _GROUPS:
            for name, value in after[group].items():
                _bump(self.raw, f"{group}.{name}", value - before[group].get(name, 0))

    _seen: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def add_each(self, kind: str, made: Mapping[str, bool]) -> None:
        """Count things that torch does not: by key, whether each had to be made now. Graphs share them: once each."""
        with self._lock:
            new = {key: now for key, now in made.items() if key not in self._seen}
            self._seen |= new.keys()
            _bump(self.misses, kind, sum(new.values()))
            _bump(self.hits, kind, len(new) - sum(new.values()))


class Meter(threading.local):
    """Adds to a tally what torch counts during the compiles of one session, on each thread for itself.

    A compile may start another one before it ends (a pass that calls something compiled): nothing is counted twice.
    One that fails never ends; ``depth``, which grows with each compile that is entered, tells that it is over.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._depths: list[int] = []
        self._mark: Snapshot = {}

    def begin(self, depth: int) -> None:
        """A compile begins, at this depth."""
        now = snapshot()
        self._depths = [outer for outer in self._depths if outer < depth]
        if self._depths:
            self._tally.add(self._mark, now)
        self._depths.append(depth)
        self._mark = now

    def end(self) -> Outcome:
        """The compile that began last is done."""
        now = snapshot()
        outcome = self._tally.add(self._mark, now)
        self._depths.pop()
        self._mark = now
        return outcome


def _bump(counts: dict[str, int], name: str, by: int) -> None:
    if by:
        counts[name] = counts.get(name, 0) + by
