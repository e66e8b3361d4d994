"""Which calls were seen, which belong to the generation in progress, and which still wait for a label.

Pure bookkeeping, thread-safe. A generation may run several calls (steps, two denoisers) on one thread; what it ran is
registered only when it ends well, and what another thread generates meanwhile is no part of it. Without hooks that
tell a generation's start, each call is one of its own.
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


class _InProgress(threading.local):
    """The generation that the calling thread is in."""

    def __init__(self) -> None:
        self.calls: dict[Hashable, tuple[Ran, Shape | None]] = {}
        self.delimited = False
        self.any = False
        """Whether this thread ever ran a call."""


class Generations:
    """Calls go by their key (``signature.call_key``)."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[Hashable, Ran] = {}
        self._unlabelled: dict[tuple[int, Hashable], Ran] = {}
        """By the thread that ran it, too: each thread names its own."""
        self._now = _InProgress()

    def knows(self, key: Hashable) -> bool:
        """Whether a call with this key ran before."""
        return key in self._known

    def learn(self, key: Hashable, ran: Ran) -> None:
        """A call's units, from its first run or a recompile."""
        with self._lock:
            self._known[key] = ran
            _forget_oldest(self._known)

    def is_new(self, key: Hashable) -> bool:
        """Whether the generation in progress has not run this call yet."""
        return key not in self._now.calls

    def add(self, key: Hashable, shape: Shape | None) -> bool:
        """A call of the generation in progress; whether that generation is just this call."""
        ran = self._known.get(key)
        self._now.any = True
        if ran is not None:
            self._now.calls[key] = (ran, shape)
        return not self._now.delimited

    def start(self) -> None:
        """A generation begins; what an earlier one left unfinished is forgotten."""
        self._now.calls.clear()
        self._now.delimited = True

    def abandon(self) -> None:
        """The generation in progress failed."""
        self._now.calls.clear()
        self._now.delimited = False

    def finish(self) -> None:
        """The generation in progress ended well: its shapes are registered, or wait for a label."""
        thread = threading.get_ident()
        for key, (ran, shape) in self._now.calls.items():
            if shape is not None:
                ran[0].add_shape(shape, ran[1])
                continue
            with self._lock:
                self._unlabelled[thread, key] = ran
                _forget_oldest(self._unlabelled)
        self.abandon()

    def label(self, shape: Shape) -> bool:
        """Give what waits for one this label; whether anything did.

        That is what the calling thread ran, or, if it never runs any, what all threads did: the engine may name shapes
        elsewhere than it generates.
        """
        thread = threading.get_ident()
        with self._lock:
            chosen = [key for key in self._unlabelled if key[0] == thread or not self._now.any]
            waiting = [self._unlabelled.pop(key) for key in chosen]
        for profile, units in waiting:
            profile.add_shape(shape, units)
        return bool(waiting)


def _forget_oldest(calls: dict[Hashable, Ran] | dict[tuple[int, Hashable], Ran]) -> None:
    if len(calls) > MAX_KNOWN_CALLS:
        del calls[next(iter(calls))]  # type: ignore[arg-type]
