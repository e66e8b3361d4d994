"""What all sessions of one process share: the private cache folder, the environment, and the watches on torch.

torch's caches are process-wide, so the folder is one per process: 0700, locked from before the first compile until the
process ends, because live code reads it. A folder whose lock can be taken belonged to a process that died and is
removed; the lock is on the folder itself, so there is none without. Environment, watches and limits are put back when
the last session closes.
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
import threading
from collections.abc import Sequence
from pathlib import Path

from cachekit.errors import StoreError
from cachekit.runtime import kernels, recorder, torch_private

RECOMPILE_LIMIT = 64
"""Dynamo's own limit of 8 is too small for regional compiles: every block of every class shares one code object."""

MIN_FREE_BYTES = 128 << 20
"""Room for what one compile writes: a large U-Net's sources, kernels and artifacts took 105 MB."""

_NAME = re.compile(r"[0-9]+-\w+")
_ATTEMPTS = 100
_ENVIRONMENT = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class PrivateFolder:
    """A folder of this process alone, below ``parent``. Raises StoreError when it cannot be made."""

    def __init__(self, parent: Path) -> None:
        self.pid = os.getpid()
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_dead(parent)
            self.path, self._lock = _make(parent)
            atexit.register(_remove, self.path, self.pid)
            self.inductor.mkdir(mode=0o700)
            self.triton.mkdir(mode=0o700)
        except OSError as exc:
            name = errno.errorcode.get(exc.errno or 0, "?")
            raise StoreError(f"no private cache folder below {parent}: {exc.strerror} ({name})") from exc

    def become(self, other: PrivateFolder) -> None:
        """Use another folder from now on. What was loaded from this one stays loaded, and it goes with the process."""
        self.path, self._lock = other.path, other._lock

    @property
    def intact(self) -> bool:
        """Whether the folder is still there: one that was removed and made anew by torch is held by no lock."""
        try:
            found, held = os.lstat(self.path), os.fstat(self._lock)
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
        """Remove the folder, unless this is a forked child of the process that it belongs to."""
        _remove(self.path, self.pid)


def _make(parent: Path) -> tuple[Path, int]:
    """A new folder and the descriptor of its lock."""
    for _ in range(_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        try:
            lock = _lock(path)
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        # Somebody who starts now took it for a dead one's, between the making and the lock.
    raise BlockingIOError(errno.EAGAIN, "private folders are removed as soon as they are made")


def _lock(folder: Path) -> int:
    """A descriptor that holds the folder's lock. Raises BlockingIOError if another process does, OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _first_with_room(parents: Sequence[Path]) -> PrivateFolder:
    """A compile that cannot write its files fails in the engine's call: better another place than a full one."""
    reasons = []
    for parent in parents:
        try:
            folder = PrivateFolder(parent)
            free = shutil.disk_usage(folder.path).free
        except (StoreError, OSError) as exc:
            reasons.append(str(exc))
            continue
        if free >= MIN_FREE_BYTES:
            return folder
        folder.remove()
        reasons.append(f"only {free >> 20} MiB are free below {parent}")
    raise StoreError("; ".join(reasons))


def _remove_dead(parent: Path) -> None:
    """Remove siblings whose process is gone: those whose lock can be taken."""
    for path in parent.iterdir():
        if not _NAME.fullmatch(path.name):
            continue
        try:
            lock = _lock(path)
        except OSError:
            continue  # alive: the lock is held; or removed by somebody else meanwhile, or not ours to open
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


class SharedState:
    """Reference-counted set-up of folder, environment, watches and limits. One instance a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._undo = contextlib.ExitStack()
        self._folder: PrivateFolder | None = None
        self._parents: tuple[Path, ...] = ()

    def enter(self, *parents: Path) -> PrivateFolder:
        """Set up on the first call, count on later ones; the folder is made below the first parent that has room.

        Raises StoreError or UnsupportedError, leaving everything as it was.
        """
        with self._lock:
            self._parents = parents
            if self._folder is None:
                self._folder = _first_with_room(parents)
            elif self._folder.pid != os.getpid():  # a forked child: its parent's sessions never leave in it
                self._folder, self._users = _first_with_room(parents), 0
                self._undo.close()
            elif self._users == 0 and not self._folder.intact:
                self._folder.become(_first_with_room(parents))
            if self._users == 0:
                with contextlib.ExitStack() as stack:
                    _redirect(stack, self._folder)
                    recorder.watch_artifacts(stack)
                    kernels.watch(stack)
                    _raise_recompile_limit(stack)
                    self._undo = stack.pop_all()
            self._users += 1
            return self._folder

    @property
    def folder(self) -> PrivateFolder | None:
        """The folder that the environment names; None where no session of this process is open."""
        return self._folder if self._users and self._folder and self._folder.pid == os.getpid() else None

    def relocate(self) -> None:
        """Go on in another folder, because this one cannot be used any more: the last parent is tried first.

        Raises StoreError if there is none, leaving everything as it was.
        """
        with self._lock:
            folder = self.folder
            if folder is None:
                raise StoreError("no session is open")
            folder.become(_first_with_room(self._parents[::-1]))
            for name, path in zip(_ENVIRONMENT, (folder.inductor, folder.triton), strict=True):
                os.environ[name] = str(path)

    def leave(self) -> None:
        """Undo everything when the last user leaves; the folder stays until the process ends."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._undo.close()


def _redirect(stack: contextlib.ExitStack, folder: PrivateFolder) -> None:
    for name, path in zip(_ENVIRONMENT, (folder.inductor, folder.triton), strict=True):
        stack.callback(_restore_variable, name, os.environ.get(name))
        os.environ[name] = str(path)


def _restore_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _raise_recompile_limit(stack: contextlib.ExitStack) -> None:
    config = torch_private.dynamo_config()
    for name in ("recompile_limit", "accumulated_recompile_limit"):
        present = getattr(config, name, None)
        if present is not None and present < RECOMPILE_LIMIT:
            stack.callback(setattr, config, name, present)
            setattr(config, name, RECOMPILE_LIMIT)


shared = SharedState()
