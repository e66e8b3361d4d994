"""Who uses what in a directory store, so that nothing is collected that somebody relies on.

The locks are on the folders themselves: nothing has to be made to hold one, a store that is read-only can be guarded,
and the system lets go of what a dead process held. In the order in which they are taken:

    1  the namespace's folder   shared by whoever publishes, while it publishes; alone by whoever collects
    2  a profile's folder       shared by whoever uses the bundle (a session from before it reads the head until it
                                closes, a verb while it reads); alone by whoever evicts from it
    3  ``.lock`` in a profile's folder   alone, while the head is moved (`cachekit.store.files.locked`)

Nobody waits for a lock of this list while holding a later one. Where folders cannot be locked (Windows) nothing is
guarded, and nothing is collected.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from cachekit.errors import StoreError
from cachekit.store import files, locks, mounts

TIMEOUT_S = 10.0
"""Publishing takes seconds at most, and so does what collecting does alone; a start waits no longer for either."""

SUPPORTED = sys.platform != "win32"
"""Whether folders can be locked here."""

_POLL_S = 0.005

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
"""What a file system answers that has no such locks."""


class Hold:
    """A lock on a folder that lasts until `release`, or until nobody refers to this any more."""

    def __init__(self, descriptor: int) -> None:
        self._finalizer = weakref.finalize(self, _release, descriptor, os.getpid())
        self._finalizer.atexit = False  # the end of the process lets go

    def release(self) -> None:
        """Let go. Idempotent; never raises."""
        self._finalizer()


def share(folder: Path, *, timeout_s: float | None = None) -> Hold | None:
    """Keep the folder from being collected; None if there is no such folder, or folders cannot be locked.

    Raises `StoreError` if somebody who collects does not let go within ``timeout_s`` seconds (`TIMEOUT_S`).
    """
    patience = TIMEOUT_S if timeout_s is None else timeout_s
    return _hold(folder, time.monotonic() + patience, shared=True) if SUPPORTED else None


def claim(folder: Path, *, timeout_s: float = 0.0) -> Hold | None:
    """Have the folder alone; None if others still use it after ``timeout_s`` seconds, or it is gone.

    Raises `StoreError` if the folder cannot be opened, or is on a network one: users there are not seen.
    """
    _refuse_network(folder)
    try:
        return _hold(folder, time.monotonic() + timeout_s, shared=False) if SUPPORTED else None
    except _BusyError:
        return None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Have the folder alone, if nobody uses it at this moment; whether that is so. Raises `StoreError`."""
    held = claim(folder)
    try:
        yield held is not None
    finally:
        if held is not None:
            held.release()


@contextlib.contextmanager
def publishing(namespace: Path) -> Iterator[None]:
    """Nothing of the namespace is collected meanwhile, so that a blob that is there stays there.

    Makes the folder. Raises `StoreError` if somebody collects and does not let go in time, or if the folder is on a
    network file system.
    """
    _refuse_network(namespace)
    files.make_folder(namespace)
    held = share(namespace)
    try:
        yield
    finally:
        if held is not None:
            held.release()


class _BusyError(StoreError):
    """Somebody else holds the lock."""


def _hold(folder: Path, deadline: float, *, shared: bool) -> Hold | None:
    while True:
        descriptor = _open(folder)
        if descriptor is None:
            return None
        try:
            locks.take(descriptor, shared=shared)
            if _is_at(descriptor, folder):
                return Hold(descriptor)
        except locks.BUSY as exc:
            if time.monotonic() >= deadline:
                locks.release(descriptor)
                raise _BusyError(f"{folder} is in use: another process holds its lock") from exc
            time.sleep(_POLL_S)
        except OSError as exc:
            locks.release(descriptor)
            if shared and exc.errno in _NO_LOCKS:
                return None  # nobody can collect there either
            raise StoreError(f"cannot lock {folder}: {files.describe(exc)}") from exc
        locks.release(descriptor)  # held by others, or removed while we waited: look again


def _refuse_network(folder: Path) -> None:
    unsafe = mounts.unsafe_to_write(folder)
    if unsafe:
        raise StoreError(unsafe)


def _open(folder: Path) -> int | None:
    with files.reading(folder):
        try:
            return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None


def _is_at(descriptor: int, folder: Path) -> bool:
    """Whether the open folder still is the one at this path."""
    held = os.fstat(descriptor)
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)


def _release(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has closed its copy, and the number may be another file's
        locks.release(descriptor)
