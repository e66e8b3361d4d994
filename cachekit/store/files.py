"""The file operations of the directory store: the one place where it meets the file system and its errors.

Folders are made 0700 and files 0600. Files are opened without following links. A file appears complete or not at
all: written beside its place under a temporary name, flushed to disk, renamed. Temporary names start with ``.tmp-``;
listings skip everything that starts with a dot, so what a killed writer leaves is never read. A temporary file is
locked while it is written: one whose lock can be taken is a left-over, whatever its age, and the next writer in its
folder removes it. Every `OSError` becomes a `StoreError` with the path and the errno's name; only a read may answer
`NotFoundError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cachekit.errors import LimitError, NotFoundError, StoreError
from cachekit.store import locks

LOCK_TIMEOUT_S = 10.0
"""A head move holds the lock for milliseconds; whoever keeps it this long is stopped or on a dead disk."""

_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_POLL_S = 0.005
TEMPORARY = ".tmp-"
_ATTEMPTS = 100


def describe(exc: OSError) -> str:
    """The errno's name and its text: ``ENOSPC: No space left on device``."""
    name = errno.errorcode.get(exc.errno, "") if exc.errno is not None else ""
    return f"{name or type(exc).__name__}: {exc.strerror or exc}"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Map what the file system says: absence to `NotFoundError`, everything else to `StoreError`."""
    try:
        yield
    except FileNotFoundError as exc:
        raise NotFoundError(f"{path} does not exist") from exc
    except OSError as exc:
        raise StoreError(f"cannot read {path}: {describe(exc)}") from exc


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Map what the file system says to `StoreError`: a folder that vanished meanwhile proves no absence."""
    try:
        yield
    except OSError as exc:
        raise StoreError(f"cannot write {path}: {describe(exc)}") from exc


def read(
    path: Path, *, max_bytes: int | None = None, check: Callable[[os.stat_result], None] | None = None
) -> bytes:
    """All bytes of a regular file. Raises `NotFoundError`, `LimitError` beyond ``max_bytes``, `StoreError`.

    ``check`` sees the open file's status before anything is read, and may raise what it likes.
    """
    with reading(path):
        # Without O_NONBLOCK, a FIFO in a file's place would block for ever.
        descriptor = os.open(path, os.O_RDONLY | _OPEN | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise StoreError(f"{path} is not a regular file")
            if check is not None:
                check(found)
            if max_bytes is not None and found.st_size > max_bytes:
                raise LimitError(f"{path} has {found.st_size} bytes, more than the {max_bytes} it may have")
            return file.read(found.st_size)


def is_file(path: Path) -> bool:
    """Whether a regular file (not a link to one) is there."""
    with reading(path):
        try:
            return stat.S_ISREG(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False


def names(folder: Path) -> list[str]:
    """What the folder holds, sorted, without names that start with a dot; a missing folder holds nothing."""
    with reading(folder):
        try:
            found = [entry.name for entry in folder.iterdir()]
        except FileNotFoundError:
            return []
    return sorted(name for name in found if not name.startswith("."))


def folders(folder: Path) -> list[str]:
    """As `names`, but only of folders, links to some left out."""
    with reading(folder):
        try:
            with os.scandir(folder) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
    return sorted(name for name in found if not name.startswith("."))


def inside(root: Path, *names: str) -> Path:
    """The folder below ``root``, there or not; raises `StoreError` if a link on the way leads elsewhere."""
    folder = root
    for name in names:
        folder = folder / name
        with reading(folder):
            try:
                found = os.lstat(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
        if stat.S_ISLNK(found.st_mode):
            raise StoreError(f"{folder} is a link: a store keeps its files in folders of its own")
    return folder


def make_folder(folder: Path) -> None:
    """Make the folder and its missing parents, each 0700 and flushed into its parent."""
    with writing(folder):
        _make_folder(folder)


def _make_folder(folder: Path) -> None:
    try:
        _make_one(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        _make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):  # somebody else was quicker
            _make_one(folder)
    flush_folder(folder.parent)


def _make_one(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    if folder.stat().st_mode & 0o700 != 0o700:  # the umask took rights away from the user himself
        folder.chmod(0o700)


def _keep_rights(descriptor: int) -> None:
    """The same for a file that may just have been made."""
    if hasattr(os, "fchmod") and os.fstat(descriptor).st_mode & 0o600 != 0o600:
        os.fchmod(descriptor, 0o600)


def check_private(folder: Path) -> bool:
    """Whether the folder exists; raises `StoreError` if others could plant files in it.

    It must be a folder, not a link to one, that neither group nor others can write, and belong to this user or to root
    (root itself may read anybody's, as it does in a container with a mounted folder).
    """
    with reading(folder):
        try:
            found = os.lstat(folder)
        except FileNotFoundError:
            return False
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{folder} must be a folder, and not a link to one")
    if os.name != "posix":
        return True
    if found.st_mode & 0o022:
        raise StoreError(
            f"{folder} can be written by other users: run chmod 700 on it, or use another folder"
        )
    if os.geteuid() != 0 and found.st_uid not in {0, os.geteuid()}:
        raise StoreError(
            f"{folder} belongs to user {found.st_uid}, not to {os.geteuid()}: use another folder"
        )
    return True


def write(path: Path, data: bytes) -> None:
    """Put the bytes at ``path`` in one step, replacing what is there; durable when this returns."""
    make_folder(path.parent)
    remove_leftovers(path.parent)
    with writing(path):
        descriptor, temporary = _new_temporary(path.parent)
        try:
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
                if sys.platform != "win32":  # where an open file cannot be renamed
                    temporary.replace(path)
            finally:
                locks.release(descriptor)
            if sys.platform == "win32":
                temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                temporary.unlink()
            raise
        flush_folder(path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _new_temporary(folder: Path) -> tuple[int, Path]:
    """A new file, open for writing and locked."""
    for _ in range(_ATTEMPTS):
        path = folder / f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
        try:
            _keep_rights(descriptor)
            locks.take(descriptor)
            if os.fstat(descriptor).st_nlink:
                return descriptor, path
        except locks.BUSY:
            pass
        except BaseException:
            locks.release(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        locks.release(descriptor)  # somebody took it for a left-over, between the opening and the lock
    raise BlockingIOError(errno.EAGAIN, "temporary files are removed as soon as they are made")


def leftovers(folder: Path, *, below: bool = False) -> list[Path]:
    """Temporary files whose writer is gone, sorted; with ``below`` also those in all folders below.

    What cannot be looked at is left out. Always empty on Windows, where such a file cannot be told.
    """
    found: list[Path] = []
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith(TEMPORARY):
                        if locks.is_free(Path(entry.path)):
                            found.append(Path(entry.path))
                    elif below and entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
        except OSError:
            continue  # a left-over costs room and nothing else: no reason to fail
    return sorted(found)


def remove_leftovers(folder: Path, *, below: bool = False) -> int:
    """Remove what `leftovers` finds; how many files that were. Never raises."""
    removed = 0
    for path in leftovers(folder, below=below):
        with contextlib.suppress(OSError):
            removed += locks.remove_if_free(path)
    return removed


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold an exclusive lock on the file, across threads and processes of this host; a killed holder releases it.

    Raises `StoreError` if the lock is not free within ``timeout_s`` seconds.
    """
    make_folder(path.parent)
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
        _keep_rights(descriptor)
    try:
        _lock(descriptor, path, time.monotonic() + timeout_s)
        yield
    finally:
        locks.release(descriptor)


def _lock(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            locks.take(descriptor)
        except locks.BUSY as exc:
            if time.monotonic() >= deadline:
                raise StoreError(f"cannot lock {path}: another process has held it for too long") from exc
            time.sleep(_POLL_S)
        except OSError as exc:
            raise StoreError(f"cannot lock {path}: {describe(exc)}") from exc
        else:
            return


def flush_folder(folder: Path) -> None:
    """Make renames and removals in the folder durable. Raises `OSError`: call it inside `writing`."""
    if os.name != "posix":  # Windows cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno not in {
            errno.EINVAL,
            errno.ENOTSUP,
            errno.EBADF,
        }:  # file systems that cannot flush folders
            raise
    finally:
        os.close(descriptor)
