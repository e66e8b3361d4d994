"""What all sessions of one process share: the private cache folder, the environment, and the watches on torch.

torch's caches are process-wide, so the folder is one per process: 0700, held by a file lock from before the first
compile until the process ends, because live code reads it. A folder whose lock can be taken belonged to a process
that died and is removed. Environment, watches and limits are put back when the last session closes.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
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

_LOCK_NAME = ".lock"
_NEW_LOCK_NAME = ".lock.new"
_ENVIRONMENT = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class PrivateFolder:
    """A folder of this process alone, below ``parent``. Raises StoreError when it cannot be made."""

    def __init__(self, parent: Path) -> None:
        self.pid = os.getpid()
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_dead(parent)
            self.path = Path(tempfile.mkdtemp(prefix=f"{self.pid}-", dir=parent))
            new = self.path / _NEW_LOCK_NAME
            self._lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(self.path / _LOCK_NAME)  # others see the lock only once it is held
            self.inductor.mkdir(mode=0o700)
            self.triton.mkdir(mode=0o700)
        except OSError as exc:
            name = errno.errorcode.get(exc.errno or 0, "?")
            raise StoreError(f"no private cache folder below {parent}: {exc.strerror} ({name})") from exc
        atexit.register(self.remove)

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
        if os.getpid() == self.pid:
            shutil.rmtree(self.path, ignore_errors=True)


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
    for lock in parent.glob(f"*/{_LOCK_NAME}"):
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # removed by somebody else meanwhile, or not ours to open
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:
            pass  # alive: the lock is held
        finally:
            os.close(handle)


class SharedState:
    """Reference-counted set-up of folder, environment, watches and limits. One instance a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._undo = contextlib.ExitStack()
        self._folder: PrivateFolder | None = None

    def enter(self, *parents: Path) -> PrivateFolder:
        """Set up on the first call, count on later ones; the folder is made below the first parent that has room.

        Raises StoreError or UnsupportedError, leaving everything as it was.
        """
        with self._lock:
            if self._folder is None:
                self._folder = _first_with_room(parents)
            elif self._folder.pid != os.getpid():  # a forked child: its parent's sessions never leave in it
                self._folder, self._users = _first_with_room(parents), 0
                self._undo.close()
            if self._users == 0:
                with contextlib.ExitStack() as stack:
                    _redirect(stack, self._folder)
                    recorder.watch_artifacts(stack)
                    kernels.watch(stack)
                    _raise_recompile_limit(stack)
                    self._undo = stack.pop_all()
            self._users += 1
            return self._folder

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
