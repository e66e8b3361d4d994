"""The private folder of one process: 0700, locked from before the first compile, removed when nobody can need it.

A folder whose lock can be taken belonged to a process that died. The lock is on the folder itself, so there is none
without. Process ids tell nothing (containers that share a folder have the same ones); they are there for people.

Children: a forked one inherits the lock, and a started one the environment that names the folder. Neither has it
removed from under it, by its parent's end or by the next process to start.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cachekit.errors import StoreError
from cachekit.runtime import places
from cachekit.store import files

_NAME = re.compile(r"[0-9]+-\w+")
_ATTEMPTS = 100


class _Lock:
    """A lock on a folder, held until released or until the last process that inherited it ends.

    Raises BlockingIOError if another process holds it, OSError.
    """

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # An engine that was started without standard streams may still open them: 0 to 2 are not ours.
            self.descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
        finally:
            os.close(descriptor)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go, as far as this process is concerned."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PrivateFolder:
    """A folder of this process alone, below ``parent``. Raises StoreError when it cannot be made."""

    def __init__(self, parent: Path) -> None:
        self.pid = os.getpid()
        self.passed_over: tuple[str, ...] = ()
        try:
            files.make_folder(parent)
            _check_safe(parent)
            remove_dead(parent)
            self.path, self._lock = _make(parent)
            atexit.register(_remove, self.path, self.pid, self._lock)
            self._furnish()
        except OSError as exc:
            raise StoreError(f"no private folder below {parent}: {files.describe(exc)}") from exc
        except StoreError as exc:
            raise StoreError(f"no private folder below {parent}: {exc}") from exc

    def _furnish(self) -> None:
        try:
            for made in (self.inductor, self.triton):
                made.mkdir()
                made.chmod(0o700)  # whatever the umask took away
        except OSError:
            self.remove()  # or it would be held, and of no use, until this process ends
            raise

    def become(self, other: PrivateFolder) -> None:
        """Use another folder from now on. What was loaded from this one stays loaded, and it goes with the process."""
        self.path, self._lock = other.path, other._lock

    @property
    def intact(self) -> bool:
        """Whether the folder is still there: one that was removed and made anew by torch is held by no lock."""
        try:
            found, held = os.lstat(self.path), os.fstat(self._lock.descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    @property
    def inductor(self) -> Path:
        """What ``TORCHINDUCTOR_CACHE_DIR`` names."""
        return self.path / "inductor"

    @property
    def triton(self) -> Path:
        """What ``TRITON_CACHE_DIR`` names."""
        return self.path / "triton"

    def remove(self) -> None:
        """Remove the folder, unless a child may use it or is what runs this."""
        _remove(self.path, self.pid, self._lock)


def first_fit(parents: Sequence[Path]) -> PrivateFolder:
    """A folder below the first parent where torch can work; ``passed_over`` tells of the ones before.

    Raises StoreError that names every place, why it would not do, and what to set.
    """
    reasons: list[str] = []
    for parent in parents:
        unfit = places.unfit_path(parent)
        if not unfit:
            try:
                folder = PrivateFolder(parent)
            except StoreError as exc:
                unfit = str(exc)
            else:
                unfit = places.unfit_folder(folder.path)
                if not unfit:
                    folder.passed_over = tuple(reasons)
                    return folder
                folder.remove()
        reasons.append(unfit)
    raise StoreError(
        f"no place for the private folder of this process: {'; '.join(reasons)}; {places.ADVICE}"
    )


def _check_safe(parent: Path) -> None:
    unsafe = places.unsafe_parent(parent)
    if unsafe:
        raise StoreError(unsafe)


def _make(parent: Path) -> tuple[Path, _Lock]:
    """A new folder and its lock."""
    for _ in range(_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        lock = None
        try:
            path.chmod(0o700)  # whatever the umask took away
            lock = _Lock(path)
            if os.fstat(lock.descriptor).st_nlink:
                return path, lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            _delete(path)
            if lock is not None:
                lock.release()  # what could not be deleted is the next process's to remove
            raise
        if lock is not None:
            lock.release()
        # Somebody who starts now took it for a dead one's, between the making and the lock.
    raise BlockingIOError(errno.EAGAIN, "private folders are removed as soon as they are made")


def remove_dead(parent: Path, *, dry_run: bool = False) -> int:
    """Remove private folders that no process can need any more; how many, or how many there are. Raises OSError."""
    return sum(
        _remove_unused(path, dry_run=dry_run) for path in parent.iterdir() if _NAME.fullmatch(path.name)
    )


def _remove(path: Path, pid: int, lock: _Lock) -> None:
    """This process needs the folder no more; a forked child that runs its parent's exit handlers removes nothing."""
    if os.getpid() == pid:
        lock.release()
        _remove_unused(path)


def _remove_unused(path: Path, *, dry_run: bool = False) -> bool:
    try:
        lock = _Lock(path)
    except OSError:
        return False  # a process or a forked child of it lives; or it is gone meanwhile, or not ours to open
    try:
        unused = not _is_inherited(path)
        if unused and not dry_run:
            _delete(path)
        return unused
    finally:
        lock.release()


def _delete(path: Path) -> None:
    """What cannot be removed now is tried again by the next process."""
    with contextlib.suppress(OSError):  # some pass through, also where rmtree is to ignore errors
        shutil.rmtree(path, ignore_errors=True)


def _is_inherited(path: Path) -> bool:
    """Whether a process that was started by the folder's owner, and not forked, still compiles into it."""
    named = os.fsencode(path)
    try:
        processes = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
    except OSError:
        return False
    for process in processes:
        try:
            if named in (process / "environ").read_bytes():
                return True
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return False
