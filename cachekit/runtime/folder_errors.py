"""Which errors of a compile are the private folder's, and not the compiler's own.

The folder is ours: what fails there must not reach the engine, which would have compiled somewhere else without us.
Errors come wrapped: in torch's exceptions, as a C++ compiler's output, as the text of a worker process. Pure.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

_OURS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ESTALE,
        errno.EINTR,
        errno.EFBIG,
        errno.ENOLCK,
        errno.ENODEV,
        errno.ENOTCONN,
    }
)
"""What a file system answers that is full, broken, locked or gone; the rest says that a program is wrong."""

_NAMELESS = _OURS - {errno.EACCES, errno.EPERM, errno.EINTR}
"""Those that no other thing than a file answers, so that they count without a path."""

_UNLOADABLE = ("file too short", "failed to map segment", "invalid ELF header")
"""How the loader names a library that was cut short, or lies where none may be executed."""


def folder_error(error: BaseException, folder: Path, *, intact: bool) -> str | None:
    """What happened to the folder, with its path and the errno, if that is why a compile failed; else None.

    Args:
        error: what the compile raised.
        folder: the private folder.
        intact: whether the folder is still there; where it is not, a missing file is its fault too.
    """
    place = str(folder)
    for cause in _causes(error):
        found = _of_system(cause, place, intact=intact) if isinstance(cause, OSError) else None
        found = found or _of_text(str(cause), place, intact=intact)
        if found:
            return found
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything that it was raised from, the outermost first."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        cause = pending.pop(0)
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            pending += [getattr(cause, "inner_exception", None), cause.__cause__, cause.__context__]


def _of_system(error: OSError, place: str, *, intact: bool) -> str | None:
    if error.errno is None:
        return None
    names = [
        os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))
    ]
    ours = _OURS if intact else _OURS | {errno.ENOENT}
    if (names and error.errno in ours and any(_below(name, place) for name in names)) or (
        not names and error.errno in _NAMELESS
    ):
        return _told(names[0] if names else place, error.errno)
    return None


def _of_text(text: str, place: str, *, intact: bool) -> str | None:
    if not re.search(re.escape(place) + r"(?![\w-])", text):
        return None
    for number in sorted(_OURS if intact else _OURS | {errno.ENOENT}):
        if os.strerror(number) in text:
            return _told(place, number)
    found = next((words for words in _UNLOADABLE if words in text), None)
    return f"{place}: a library cannot be loaded from it: {found}" if found else None


def _below(name: str, place: str) -> bool:
    return name == place or name.startswith(place + os.sep)


def _told(name: str, number: int) -> str:
    return f"{name}: {errno.errorcode.get(number, str(number))}: {os.strerror(number)}"
