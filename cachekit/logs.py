"""Telling the log, and people, without ever failing: below everything else, standard library only.

Handlers and filters are the engine's, and a cache must never break the engine: an exception of theirs ends here. So
does one of ``str(error)``. Interrupts pass.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

_TO_THE_CALLER = 3
"""Frames from `logging` to whoever logs: `_say` and the method before it."""


class Log:
    """The logger of this name, as all of cachekit uses it: a handler or filter that raises is passed over."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def tells(self, level: int) -> bool:
        """Whether anybody hears that level."""
        with contextlib.suppress(Exception):
            return self._logger.isEnabledFor(level)
        return False

    def log(self, level: int, message: str, *values: Any, **options: Any) -> None:
        """As `logging.Logger.log`."""
        self._say(level, message, values, options)

    def debug(self, message: str, *values: Any, **options: Any) -> None:
        """As `logging.Logger.debug`."""
        self._say(logging.DEBUG, message, values, options)

    def info(self, message: str, *values: Any, **options: Any) -> None:
        """As `logging.Logger.info`."""
        self._say(logging.INFO, message, values, options)

    def warning(self, message: str, *values: Any, **options: Any) -> None:
        """As `logging.Logger.warning`."""
        self._say(logging.WARNING, message, values, options)

    def exception(self, message: str, *values: Any) -> None:
        """As `logging.Logger.exception`."""
        self._say(logging.ERROR, message, values, {"exc_info": True})

    def _say(self, level: int, message: str, values: tuple[Any, ...], options: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # where it would be told is what raised it
            self._logger.log(level, message, *values, stacklevel=_TO_THE_CALLER, **options)


def said(error: BaseException) -> str:
    """The type of an error and, if it says anything, what: one that cannot even say it has its type."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a foreign class
        text = ""
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__
