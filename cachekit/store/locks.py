"""Locks on open files and folders, across threads and processes of this host; the system releases a dead holder's.

A forked child gets copies of its parent's descriptors, and a lock lasts until the last copy is closed: a child closes
them at once, or it would keep the locks of a parent that died. Used by `cachekit.store.files` and, shared, by
`cachekit.store.guards`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, *, shared: bool = False) -> None:  # noqa: ARG001
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # knows no shared locks

    def _unlock(descriptor: int) -> None:
        """Closing does it."""

else:
    import fcntl

    def _lock(descriptor: int, *, shared: bool = False) -> None:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


BUSY: type[OSError] = PermissionError if sys.platform == "win32" else BlockingIOError
"""What `take` raises when somebody else holds the lock."""

_held: set[int] = set()


def take(descriptor: int, *, shared: bool = False) -> None:
    """Lock the open file without waiting, alone or with others who share; `release` closes it.

    Raises `OSError`, `BUSY` if the lock is held.
    """
    _held.add(descriptor)
    try:
        _lock(descriptor, shared=shared)
    except BaseException:
        _held.discard(descriptor)
        raise


def release(descriptor: int) -> None:
    """Unlock and close. Never raises: there is nothing anyone could do about it, and nothing left unwritten."""
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        _unlock(descriptor)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock of the file; False where that cannot be found out, as on Windows."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # gone, or not ours to open
    try:
        _lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_if_free(path: Path) -> bool:
    """Remove the file if nobody holds its lock, which is held meanwhile; whether it was. Raises `OSError`."""
    if sys.platform == "win32":
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _lock(descriptor)
        path.unlink()
    except BUSY:
        return False
    finally:
        os.close(descriptor)
    return True


def _close_copies() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
