"""Where the time goes: seconds by step, for the report of a start."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Adds up seconds by step. Steps on several threads run beside each other, so their sum can exceed the clock's."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Count what happens inside towards ``step``, also if it fails."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append((step, time.perf_counter() - started))  # atomic, so nothing to lock

    @property
    def seconds(self) -> dict[str, float]:
        """By step, in the order in which each was first finished."""
        total: dict[str, float] = {}
        for step, seconds in list(self._spans):
            total[step] = total.get(step, 0.0) + seconds
        return total
