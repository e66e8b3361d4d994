"""How sessions end: what they changed is put back once, and those that were forgotten are closed at exit.

An exit may come as the interpreter's end, in a child of ``multiprocessing`` (which runs no ``atexit``), or after a
fork; each process closes only its own sessions.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

EXIT_TIMEOUT_S = 60.0
"""How long the interpreter's exit waits for saves in progress, all sessions together."""


class Undo:
    """Changes to put back, the last one first. Thread-safe; each is put back once, whoever asks and however often."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changes: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def add(self, function: Callable[..., Any], *args: Any) -> None:
        """``function(*args)`` puts a change back."""
        self._changes.append((function, args))

    def run(self) -> list[Exception]:
        """Put everything back; what failed is returned, and the rest is put back all the same."""
        failed = []
        with self._lock:  # whoever comes second finds everything put back
            while self._changes:
                change = self._changes[-1]
                function, args = change
                try:
                    function(*args)
                except Exception as exc:
                    failed.append(exc)
                if self._changes and self._changes[-1] is change:
                    self._changes.pop()  # only now: an interrupt leaves it to whoever comes next
        return failed


class Closable(Protocol):
    """A session, seen from the exit."""

    def close(self, *, timeout: float | None = None) -> None:
        """Last save and putting back; nothing to do for one that was closed, unless it is still saving."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()
_pid = 0
"""The process whose exit is arranged for."""


def close_at_exit(session: Closable) -> None:
    """Close the session, if nobody else does, when this process exits."""
    global _pid  # noqa: PLW0603  a forked child arranges for its own exit
    _open.add(session)
    if _pid == os.getpid():
        return
    _pid = os.getpid()
    # After the private folder's own, and therefore run before it, in a forked child too.
    atexit.register(_close_all)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for session in list(_open):
        session.close(timeout=max(0.0, deadline - time.monotonic()))
