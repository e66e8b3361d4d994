"""Working beside a thread that generates, so that it hardly notices.

Two of the interpreter's settings decide how long a thread stands still while another one works in Python, and both
are the process's: how often the interpreter lock changes hands (5 ms, so each operator of an eager step may wait that
long), and when the garbage collector walks over everything (0.3 s with torch in memory; whoever allocates next pays).
While something of ours works in the background the first is short and the second waits; then both are put back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator

from cachekit.runtime.forks import renew_in_child

SWITCH_INTERVAL_S = 0.0005
"""A tenth of Python's own; a change of hands costs some microseconds."""


class _Manners:
    """Counted, as several sessions may save at once; a forked child, which has no background, starts anew."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._interval = 0.0
        self._collected = False
        renew_in_child(self)

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._interval = sys.getswitchinterval()
                self._collected = gc.isenabled()
                sys.setswitchinterval(min(self._interval, SWITCH_INTERVAL_S))
                gc.disable()
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._put_back()

    def forget(self) -> None:
        if self._users:
            self._users = 0
            self._put_back()

    def _put_back(self) -> None:
        sys.setswitchinterval(self._interval)
        if self._collected:
            gc.enable()


_manners = _Manners()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Around work on a thread of ours that may take long. Re-entrant, from several threads."""
    _manners.enter()
    try:
        yield
    finally:
        _manners.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_manners.forget)
