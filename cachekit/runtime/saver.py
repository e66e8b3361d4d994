"""Saving in the background: the generating thread only hands over.

One daemon thread per session works off requests in order; a request made while another waits is the same request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Saver:
    """Runs ``work`` on its own thread whenever asked; never concurrently with itself."""

    def __init__(self, work: Callable[[], None], *, name: str) -> None:
        self._work = work
        self._name = name
        self._wake = threading.Condition()
        self._requested = 0
        self._done = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def request(self) -> int:
        """Ask for a run; returns a ticket for :meth:`wait`."""
        with self._wake:
            self._requested += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify_all()
            return self._requested

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        """Wait until the run that ``ticket`` asked for has ended; False on time-out (seconds)."""
        with self._wake:
            return self._wake.wait_for(lambda: self._done >= ticket, timeout)

    def stop(self, timeout: float | None = None) -> bool:
        """Finish what was requested and end the thread; False if it is still at work after ``timeout`` seconds."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._requested > self._done or self._stopping)
                if self._requested == self._done:
                    return
                ticket = self._requested
            try:
                self._work()
            finally:
                with self._wake:
                    self._done = ticket
                    self._wake.notify_all()
