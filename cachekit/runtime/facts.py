"""What happened in one session, gathered as it happens; ``Report`` is what people get to see of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from cachekit.runtime.counters import Outcome, Tally
from cachekit.runtime.installer import Installed
from cachekit.runtime.misses import Misses
from cachekit.runtime.profile import Needs
from cachekit.runtime.report import gain
from cachekit.runtime.stopwatch import Stopwatch

MAX_REASONS = 64


class Facts:
    """Counts, times (seconds) and reasons of one session. Thread-safe."""

    def __init__(self) -> None:
        self.installed: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.tally = Tally()
        self.load_s = 0.0
        self.steps = Stopwatch()
        self.calls_s = 0.0
        self.warm_calls_s = 0.0
        self.cold_s: float | None = None
        self.covered_hit = False
        """Whether a covered call hit anything; what this session hit of its own making does not count."""
        self.saved: list[int] = []
        self.misses = Misses()
        self.reasons: list[str] = []
        self._untold = 0
        self._lock = threading.RLock()

    def note(self, reason: str) -> None:
        """Keep a reason, once; beyond `MAX_REASONS` they are counted."""
        with self._lock:
            if reason in self.reasons:
                return
            if len(self.reasons) < MAX_REASONS:
                self.reasons.append(reason)
            else:
                self._untold += 1

    def told(self) -> list[str]:
        """What was noted, why calls compiled although there was a bundle, and what was not installed."""
        with self._lock:
            found = [*self.reasons, *self.misses.told]
            if self._untold:
                found.insert(len(self.reasons), f"and {self._untold} more reasons")
            if self.skipped and (self.misses.told or not self.installed):
                text, _ = self.skipped.most_common(1)[0]
                found.append(f"{self.skipped.total()} artifacts were not installed on this host: {text}")
        return found

    def add_installed(self, done: Installed) -> None:
        """What one installation did."""
        with self._lock:
            self.installed += done.counts
            self.skipped += done.skipped
        for problem in done.problems:
            self.note(problem)

    def count(self, needs: Needs) -> Outcome:
        """Kernels and autotuning results, which torch's counters leave out."""
        self.tally.add_each("kernel", needs.kernels)
        self.tally.add_each("autotune", needs.tuned)
        made = [*needs.kernels.values(), *needs.tuned.values()]
        return Outcome(hit=not all(made), missed=any(made))

    def add_call(self, seconds: float, recorded: Iterable[float] | None, *, hit: bool) -> None:
        """A call that compiled; ``recorded`` are its units' cold seconds where the installed bundle covered it.

        ``hit`` tells whether it found anything in torch's caches.
        """
        with self._lock:
            self.calls_s += seconds
            if recorded is not None:
                self.warm_calls_s += seconds
                self.cold_s = (self.cold_s or 0.0) + sum(recorded)
                self.covered_hit |= hit

    @property
    def hits(self) -> dict[str, int]:
        """What torch's caches found, by kind."""
        return dict(self.tally.hits)

    @property
    def inert(self) -> bool:
        """A bundle was installed, what it covers ran, and nothing was hit."""
        return self.cold_s is not None and bool(self.installed) and not self.covered_hit

    @property
    def saved_s(self) -> float:
        """Seconds saved against the recorded cold compile; 0 unless it is ``effective``."""
        return self._gain if self.effective else 0.0

    @property
    def _gain(self) -> float:
        return gain(self.cold_s or 0.0, load_s=self.load_s, covered_calls_s=self.warm_calls_s)

    @property
    def effective(self) -> bool | None:
        """Whether the covered calls and the load took less time than recorded; None until one ran."""
        if self.cold_s is None:
            return None
        return self.covered_hit and self._gain > 0
