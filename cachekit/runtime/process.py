"""What all sessions of one process share: the private cache folder, the environment, and the watches on torch.

torch's caches are process-wide, so the folder is one per process and stays until the process ends, because live code
reads it. Environment, watches and limits are put back when the last session closes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from cachekit.errors import StoreError
from cachekit.runtime import kernels, recorder, torch_private, tuning
from cachekit.runtime.folder import PrivateFolder, first_fit
from cachekit.runtime.forks import renew_in_child

__all__ = ["RECOMPILE_LIMIT", "PrivateFolder", "SharedState", "shared"]

RECOMPILE_LIMIT = 64
"""Dynamo's own limit of 8 is too small for regional compiles: every block of every class shares one code object."""

_ENVIRONMENT = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class SharedState:
    """Reference-counted set-up of folder, environment, watches and limits. One instance a process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a dropped session leaves from wherever it is collected
        self._users = 0
        self._ready = False
        self._undo = contextlib.ExitStack()
        self._folder: PrivateFolder | None = None
        self._parents: tuple[Path, ...] = ()
        renew_in_child(self)

    def enter(self, *parents: Path) -> PrivateFolder:
        """Set up on the first call, count on later ones; the folder is made below the first parent that is fit for it.

        Raises StoreError or UnsupportedError, leaving everything as it was.
        """
        with self._lock:
            self._parents = parents
            self._users += 1  # at once: a finalizer that cuts in may have the only other session leave
            try:
                return self._set_up(parents)
            except BaseException:
                self._users -= 1
                raise

    def _set_up(self, parents: tuple[Path, ...]) -> PrivateFolder:
        if self._folder is None:
            self._folder = first_fit(parents)
        elif self._folder.pid != os.getpid():  # a forked child: its parent's sessions never leave in it
            self._folder, self._users = first_fit(parents), 1
            self._put_back()
        elif not self._ready and not self._folder.intact:
            self._folder.become(first_fit(parents))
        if not self._ready:
            with contextlib.ExitStack() as stack:
                _redirect(stack, self._folder)
                recorder.watch_artifacts(stack)
                kernels.watch(stack)
                tuning.watch(stack)
                _raise_recompile_limit(stack)
                self._undo = stack.pop_all()
            self._ready = True
        return self._folder

    @property
    def folder(self) -> PrivateFolder | None:
        """The folder that the environment names; None where no session of this process is open."""
        return self._folder if self._users and self._folder and self._folder.pid == os.getpid() else None

    def relocate(self) -> None:
        """Go on in another folder, because this one cannot be used any more: where it is now is tried last.

        Raises StoreError if there is none, leaving everything as it was.
        """
        with self._lock:
            folder = self.folder
            if folder is None:
                raise StoreError("no session is open")
            here = folder.path.parent
            folder.become(first_fit(sorted(self._parents, key=lambda parent: parent == here)))
            for name, path in zip(_ENVIRONMENT, (folder.inductor, folder.triton), strict=True):
                os.environ[name] = str(path)

    def leave(self) -> None:
        """Undo everything when the last user leaves; the folder stays until the process ends."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._put_back()

    def _put_back(self) -> None:
        self._ready = False
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
