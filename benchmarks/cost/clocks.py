"""Instruments: how long a thread stood still, how much memory a process took. Linux only, as the library is."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

_SCHEDSTAT = "/proc/thread-self/schedstat"


class StandstillClock:
    """Runs a step over and over and tells its longest interruptions.

    An interruption that the operating system is to blame for (another process had the core) is told apart: the kernel
    counts how long a thread was ready to run and did not. What is left is waiting for the interpreter lock.
    """

    def __init__(self, step: Callable[[], Any]) -> None:
        self._step = step

    def run(self, until: Callable[[], bool]) -> dict[str, float]:
        """Step until ``until()``; seconds. Percentiles and maxima are of one step's duration."""
        descriptor = _open()
        times, waits = [time.perf_counter()], [_waited(descriptor)]
        try:
            while not until():
                self._step()
                times.append(time.perf_counter())
                waits.append(_waited(descriptor))
        finally:
            os.close(descriptor)
        spans = [after - before for before, after in pairwise(times)]
        queued = [after - before for before, after in pairwise(waits)]
        held = [max(0.0, span - wait) for span, wait in zip(spans, queued, strict=True)]
        return {
            "seconds": times[-1] - times[0],
            "steps": len(spans),
            "median_s": statistics.median(spans),
            "longest_s": max(spans),
            "longest_without_queueing_s": max(held),
            "queued_for_a_core_s": sum(queued),
        }


def _open() -> int:
    return os.open(_SCHEDSTAT, os.O_RDONLY)


def _waited(descriptor: int) -> float:
    """Seconds that this thread was ready to run and had no core."""
    return int(os.pread(descriptor, 100, 0).split()[1]) / 1e9


@contextmanager
def peak_memory(facts: dict[str, Any]) -> Iterator[None]:
    """Resident memory of this process at most, above where it was: adds ``before_bytes``, ``peak_bytes``  (above that)
    and ``left_bytes`` to ``facts``. Raises OSError where the kernel does not let a process reset its peak.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status()["VmRSS"]
    yield
    after = _status()
    facts |= {
        "before_bytes": before,
        "peak_bytes": after["VmHWM"] - before,
        "left_bytes": after["VmRSS"] - before,
    }


def _status() -> Mapping[str, int]:
    """``VmRSS`` and ``VmHWM`` in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    pairs = (line.split() for line in lines if line.startswith(("VmRSS", "VmHWM")))
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in pairs}
