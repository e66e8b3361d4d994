"""Saving in the background: the generating thread only hands over.

Requests are worked off in order on a daemon thread that ends when there is none left: an idle saver keeps nothing
alive, least of all the weights of a pipeline that its engine has dropped.
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
        self._change = threading.Condition()
        self._requested = 0
        self._done = 0
        self._thread: threading.Thread | None = None

    def request(self) -> int:
        """Ask for a run that begins from now on; returns a ticket for :meth:`wait`."""
        with self._change:
            self._requested += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            return self._requested

    def wait(self, ticket: int | None = None, timeout: float | None = None) -> bool:
        """Wait until the run that ``ticket`` asked for, or every one, has ended; False after ``timeout`` seconds."""
        with self._change:
            wanted = self._requested if ticket is None else ticket
            return self._change.wait_for(lambda: self._done >= wanted, timeout)

    def _run(self) -> None:
        while True:
            with self._change:
                ticket = self._requested
                if ticket == self._done:
                    self._thread = None
                    return
            try:
                self._work()
            except Exception:  # the next request must still find a thread, and nobody may hang
                log.exception("cachekit could not save")
            with self._change:
                self._done = ticket
                self._change.notify_all()
