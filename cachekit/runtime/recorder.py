"""Who compiled what: artifacts and kernels are filed with the session on whose behalf the compiler runs.

A :class:`Scope` is opened on the calling thread around a denoiser's forward and around the session's compiler
backend. Whatever torch's caches look up or make inside it, hits included, belongs to the scope's recording:
attribution does not depend on folders, on Dynamo's memory or on torch's own process-wide list.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cachekit.runtime import torch_private


@dataclass
class Window:
    """What was looked up or made since the last :meth:`Recording.take`."""

    artifacts: list[tuple[str, str, bytes]] = field(default_factory=list)
    """(kind, key, bytes) in torch's words."""
    kernels: dict[str, bool] = field(default_factory=dict)
    """Path of a C++ kernel inside the cache folder -> whether it had to be compiled."""

    def __bool__(self) -> bool:
        return bool(self.artifacts or self.kernels)


class Recording(threading.local):
    """A collector of artifacts and kernels; holds references to torch's bytes, never copies.

    Each thread has a window of its own: what one call compiles is never taken for what another one used.
    """

    def __init__(self) -> None:
        self._window = Window()

    def add_artifact(self, kind: str, key: str, data: bytes) -> None:
        """File one artifact."""
        self._window.artifacts.append((kind, key, data))

    def add_kernel(self, path: str, *, compiled: bool) -> None:
        """File one C++ kernel by its path relative to the cache folder."""
        self._window.kernels[path] = compiled or self._window.kernels.get(path, False)

    @property
    def waiting(self) -> bool:
        """Whether this thread filed anything since its last :meth:`take`."""
        return bool(self._window)

    def take(self) -> Window:
        """Everything that this thread filed since its last call."""
        taken, self._window = self._window, Window()
        return taken


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[Recording] = []


_scopes = _Scopes()


def current() -> Recording | None:
    """The recording that this thread's compiles belong to, if any."""
    return _scopes.stack[-1] if _scopes.stack else None


def depth() -> int:
    """How many scopes this thread is in."""
    return len(_scopes.stack)


@contextlib.contextmanager
def scope(recording: Recording) -> Iterator[None]:
    """Attribute what this thread compiles to ``recording``."""
    _scopes.stack.append(recording)
    try:
        yield
    finally:
        _scopes.stack.pop()


def watch_artifacts(stack: contextlib.ExitStack) -> None:
    """Have torch's artifact manager tell the current scope too; undone when ``stack`` closes."""
    manager = torch_private.artifact_manager()
    original = manager.__dict__["record_artifact"]

    def record_artifact(cls: Any, artifact_type: str, key: str, content: Any) -> None:
        original.__func__(cls, artifact_type, key, content)
        recording = current()
        if recording is not None:
            # Types other than bytes (autotune's dict) are encoded as torch would store them.
            data = content if isinstance(content, bytes) else _encoded(artifact_type, key, content)
            recording.add_artifact(artifact_type, key, data)

    manager.record_artifact = classmethod(record_artifact)
    stack.callback(setattr, manager, "record_artifact", original)


def _encoded(artifact_type: str, key: str, content: Any) -> bytes:
    data: bytes = torch_private.artifact_factory().encode_create(artifact_type, key, content).content
    return data
