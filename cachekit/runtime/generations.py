"""Which calls were seen, which belong to the generation in progress, and which still wait for a label.

Pure bookkeeping, thread-safe. A generation may run several calls (steps, two denoisers); what it ran is registered
only when it ends well. Without hooks that tell a generation's start, each call is one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from cachekit.bundle import Shape
from cachekit.runtime.profile import Profile

Ran = tuple[Profile, tuple[str, ...]]
"""The profile of a call, and the units it ran."""

MAX_KNOWN_CALLS = 4096
"""Distinct calls remembered; an engine that passes another float at every step must not fill the memory."""


class Generations:
    """Calls go by their key (``signature.call_key``)."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[Hashable, Ran] = {}
        self._open: dict[Hashable, tuple[Ran, Shape | None]] = {}
        self._unlabelled: dict[Hashable, Ran] = {}
        self._delimited = False

    def knows(self, key: Hashable) -> bool:
        """Whether a call with this key ran before."""
        return key in self._known

    def learn(self, key: Hashable, ran: Ran) -> None:
        """A call's units, from its first run or a recompile."""
        with self._lock:
            self._known[key] = ran
            if len(self._known) > MAX_KNOWN_CALLS:
                del self._known[next(iter(self._known))]

    def is_new(self, key: Hashable) -> bool:
        """Whether the generation in progress has not run this call yet."""
        return key not in self._open

    def add(self, key: Hashable, shape: Shape | None) -> bool:
        """A call of the generation in progress; whether that generation is just this call."""
        with self._lock:
            ran = self._known.get(key)
            if ran is not None:
                self._open[key] = (ran, shape)
            return not self._delimited

    def start(self) -> None:
        """A generation begins; what an earlier one left unfinished is forgotten."""
        with self._lock:
            self._open.clear()
            self._delimited = True

    def abandon(self) -> None:
        """The generation in progress failed."""
        with self._lock:
            self._open.clear()
            self._delimited = False

    def finish(self) -> None:
        """The generation in progress ended well: its shapes are registered, or wait for a label."""
        with self._lock:
            for key, (ran, shape) in self._open.items():
                if shape is None:
                    self._unlabelled[key] = ran
                else:
                    ran[0].add_shape(shape, ran[1])
            self.abandon()

    def label(self, shape: Shape) -> bool:
        """Give everything that waits for one this label; whether anything did."""
        with self._lock:
            waiting, self._unlabelled = self._unlabelled, {}
        for profile, units in waiting.values():
            profile.add_shape(shape, units)
        return bool(waiting)
