"""Working beside another thread, so that neither waits long for the other.

Two of the interpreter's settings decide how long a thread stands still while another one works in Python, and both
are the process's: how often the interpreter lock changes hands (5 ms, so each operator of an eager step may wait that
long, and each file that one thread writes while another scans), and when the garbage collector walks over everything
(0.3 s with torch in memory, and all threads wait). While we work the first is short and the second waits; then both
are put back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator

from cachekit.runtime.forks import renew_in_child

SWITCH_INTERVAL_S = 0.0005
"""A tenth of Python's own; a change of hands costs some microseconds."""

_LET_GO_S = 0.0001
_NEVER = 1 << 30
"""So many collections of the younger generations before the whole heap is looked at."""


class _Manners:
    """Counted, as several sessions may save at once; a forked child, which has no background, starts anew."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._interval = 0.0
        self._threshold = 0
        renew_in_child(self)

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            self._interval = sys.getswitchinterval()
            young, middle, self._threshold = gc.get_threshold()
            sys.setswitchinterval(min(self._interval, SWITCH_INTERVAL_S))
            # Not off: what is young is cheap to look at as long as it is looked at often.
            gc.set_threshold(young, middle, _NEVER)
        # Who waits for the interpreter lock already does so by the old interval, unless it is let go once.
        time.sleep(_LET_GO_S)

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
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, self._threshold)


_manners = _Manners()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Around work beside another thread that may take long. Re-entrant, from several threads."""
    _manners.enter()
    try:
        yield
    finally:
        _manners.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_manners.forget)
