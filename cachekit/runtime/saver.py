"""Saving in the background: the generating thread only hands over.

Requests are worked off in order on a daemon thread that ends when there is none left: an idle saver keeps nothing
alive, least of all the weights of a pipeline that its engine has dropped. A request survives whatever keeps its thread
from starting or kills it: an interrupt, a limit on threads, an interpreter that ends. Whoever waits starts another, or
does the work.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator

from cachekit.logs import Log, said

log = Log("cachekit")


class Saver:
    """Runs ``work`` on a thread of its own whenever asked; never concurrently with itself.

    Work that raises, or returns False, failed.
    """

    def __init__(self, work: Callable[[], object], *, name: str) -> None:
        self._work = work
        self._name = name
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._requested = 0
        self._done = 0
        self._succeeded = 0
        self._deaths = 0
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
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            wanted = self._requested if ticket is None else ticket
        while True:
            with self._lock:
                deaths, started = self._deaths, self._start()
            if not started:
                self._run()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._lock:
                moved = self._change.wait_for(functools.partial(self._moved, wanted, deaths), left)
                if self._done >= wanted or not moved:
                    return self._done >= wanted

    def _moved(self, wanted: int, deaths: int) -> bool:
        return self._done >= wanted or self._deaths != deaths

    def succeeded(self, ticket: int) -> bool:
        """Whether the run that ``ticket`` asked for went well, or a later one, which does all that it left."""
        return self._succeeded >= ticket

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
            log.debug("no thread to save on: %s", said(exc))
            return False
        return True

    def _run(self) -> None:
        with self._lock:
            if self._working:
                return
            self._working = True
        with self._handing_over():
            while self._next():
                self._work_once()

    @contextlib.contextmanager
    def _handing_over(self) -> Iterator[None]:
        """Whatever kills a thread at work, what was asked for meanwhile finds another one, or those who wait do it."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._working = False
                self._deaths += 1
                self._change.notify_all()
                self._start()
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
            if self._work() is not False:
                self._succeeded = ticket
        except Exception:  # the next request must still find a thread
            log.exception("cachekit could not save")
        finally:  # and nobody may hang
            with self._lock:
                self._done = ticket
                self._change.notify_all()
