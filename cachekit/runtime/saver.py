"""Saving in the background: the generating thread only hands over.

Requests are worked off in order on a daemon thread that ends when there is none left: an idle saver keeps nothing
alive, least of all the weights of a pipeline that its engine has dropped. A request survives whatever keeps its thread
from starting: an interrupt, a limit on threads, an interpreter that ends. Whoever waits starts it, or does the work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("cachekit")


class Saver:
    """Runs ``work`` on a thread of its own whenever asked; never concurrently with itself."""

    def __init__(self, work: Callable[[], None], *, name: str) -> None:
        self._work = work
        self._name = name
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._requested = 0
        self._done = 0
        self._working = False

    def request(self) -> int:
        """Ask for a run that begins from now on; returns a ticket for :meth:`wait`."""
        with self._lock:
            self._requested += 1
            ticket = self._requested
            self._start()
            return ticket

    def wait(self, ticket: int | None = None, timeout: float | None = None) -> bool:
        """Wait until the run that ``ticket`` asked for, or every one, has ended; False after ``timeout`` seconds.

        Where no thread can be started the work is done here, however long it takes.
        """
        with self._lock:
            wanted = self._requested if ticket is None else ticket
            started = self._start()
        if not started:
            self._run()
        with self._lock:
            return self._change.wait_for(lambda: self._done >= wanted, timeout)

    def _start(self) -> bool:
        """Have somebody at work if there is any; False if no thread can be started. The lock is held.

        Only the thread itself says that it works, so that an interrupt leaves nothing half started; one too many ends
        at once.
        """
        if self._working or self._done == self._requested:
            return True
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError as exc:  # too many threads, or the interpreter ends
            log.debug("no thread to save on: %s", exc)
            return False
        return True

    def _run(self) -> None:
        with self._lock:
            if self._working:
                return
            self._working = True
        try:
            while self._next():
                self._work_once()
        except BaseException:
            with self._lock:
                self._working = False
            raise

    def _next(self) -> bool:
        """Whether there is something to do; if not, this thread works no longer, at the same moment."""
        with self._lock:
            self._working = self._done < self._requested
            return self._working

    def _work_once(self) -> None:
        with self._lock:
            ticket = self._requested
        try:
            self._work()
        except Exception:  # the next request must still find a thread
            log.exception("cachekit could not save")
        finally:  # and nobody may hang
            with self._lock:
                self._done = ticket
                self._change.notify_all()
