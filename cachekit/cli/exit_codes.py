"""What the exit status of every verb means, and which error gets which; the one place that says so."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from cachekit.errors import (
    CachekitError,
    ConfigurationError,
    NotFoundError,
    TrustError,
)


class ExitCode(IntEnum):
    """The exit status of ``cachekit``; stable, so scripts may rely on it."""

    FINE = 0
    FOUND = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREADABLE = 4
    UNTRUSTED = 5
    DEFECT = 70
    """As ``EX_SOFTWARE`` of sysexits.h: far from the others, so that it is not taken for an answer."""

    @classmethod
    def of(cls, error: Exception) -> ExitCode:
        """The status of a verb that ``error`` ended."""
        for kind, code in _BY_ERROR:
            if isinstance(error, kind):
                return code
        return cls.DEFECT


MEANINGS: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.FINE: "fine",
        ExitCode.FOUND: "something is not as it should be, and is named: a failed check, a miss, a difference",
        ExitCode.USAGE: "the command line or a setting is wrong",
        ExitCode.NOT_FOUND: "what was asked for is not there",
        ExitCode.UNREADABLE: "the store, the manifest or a document in them cannot be read or written",
        ExitCode.UNTRUSTED: "a signature is wrong, missing, or by a key that is not trusted",
        ExitCode.DEFECT: "a defect in cachekit; --debug shows where",
    }
)

# The first that fits: special errors before those they are kinds of.
_BY_ERROR: tuple[tuple[type[Exception], ExitCode], ...] = (
    (ConfigurationError, ExitCode.USAGE),
    (NotFoundError, ExitCode.NOT_FOUND),
    (TrustError, ExitCode.UNTRUSTED),
    (CachekitError, ExitCode.UNREADABLE),
)


def epilog() -> str:
    """The paragraph at the end of every ``--help``; Typer keeps a line apart only after an empty one."""
    lines = [f"{code.value:>2}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n\n".join(["Exit status:", *lines])
