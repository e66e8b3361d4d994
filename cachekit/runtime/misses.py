"""Why calls compiled although a bundle was found for them: by kind, each call named once, and only so many.

Pure bookkeeping below ``facts``. Why there was no bundle at all is told by ``profiles``.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable

from cachekit.runtime.profile import Profile

MAX_KEPT = 64
MAX_TOLD = 6


class Why(enum.Enum):
    """What became of a call whose fingerprint has a bundle; the value takes the calls' names."""

    UNCOVERED = "the installed bundle does not cover {}"
    UNUSABLE = "the bundle covers {}, but not all that it needs was installed on this host"
    UNFOUND = "the installed bundle covers {}, and torch made something of it all the same"


class Misses:
    """Those of one session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._names: dict[Why, dict[str, None]] = {}

    def add(self, profile: Profile, units: Iterable[str], name: str) -> None:
        """Something was made for a call with these units; ``name`` is what people call it."""
        units = set(units)
        if not profile.found:
            return
        why = Why.UNFOUND if profile.usable(units) else Why.UNUSABLE
        if not units or not profile.covers(units):
            why = Why.UNCOVERED
        with self._lock:
            names = self._names.setdefault(why, {})
            if len(names) < MAX_KEPT:
                names.setdefault(name)

    @property
    def told(self) -> list[str]:
        """A reason for each kind that there was."""
        with self._lock:
            return [why.value.format(_listed(list(self._names[why]))) for why in Why if why in self._names]


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_TOLD
    and_more = f" and {'at least ' if len(names) == MAX_KEPT else ''}{more} more" if more > 0 else ""
    return ", ".join(names[:MAX_TOLD]) + and_more
