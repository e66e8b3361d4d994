"""One `Backend` per store implementation; every test of this folder runs against each of them.

To add an implementation: write a `Backend` and put it in `BACKENDS`. Nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from cachekit.store.base import Head, Store
from cachekit.store.local import DirectoryStore
from cachekit.store.memory import MemoryStore


class Backend(Protocol):
    """A store under test, and what no store offers: handles on the same data, and damage."""

    store: Store

    def open(self, namespace: str = "local") -> Store:
        """Another handle on the same storage, as a second process would have."""

    def spoil_blob(self, digest: str, data: bytes) -> None:
        """Replace a blob's bytes behind the store's back."""

    def spoil_head(self, fid: str, data: bytes) -> None:
        """Replace a head's bytes behind the store's back."""

    def spoil_generation(self, fid: str, head: Head, data: bytes) -> None:
        """Replace a document's bytes behind the store's back."""


class DirectoryBackend:
    """A folder of this test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store: Store = DirectoryStore(root)

    def open(self, namespace: str = "local") -> Store:
        """A second object on the same folder."""
        return DirectoryStore(self.root, namespace)

    def spoil_blob(self, digest: str, data: bytes) -> None:
        """Write over the file."""
        (self.root / "local" / "blobs" / "sha256" / digest[:2] / digest).write_bytes(data)

    def spoil_head(self, fid: str, data: bytes) -> None:
        """Write over the file."""
        (self.root / "local" / "profiles" / fid / "head.json").write_bytes(data)

    def spoil_generation(self, fid: str, head: Head, data: bytes) -> None:
        """Write over the file."""
        (self.root / "local" / "profiles" / fid / "generations" / head.filename).write_bytes(data)


class MemoryBackend:
    """Dictionaries: a second handle is the same object, and another namespace a new one."""

    def __init__(self, _root: Path) -> None:
        self._memory = MemoryStore()
        self.store: Store = self._memory

    def open(self, namespace: str = "local") -> Store:
        """The same object, or an empty one for another namespace."""
        return self._memory if namespace == "local" else MemoryStore(namespace)

    def spoil_blob(self, digest: str, data: bytes) -> None:
        """Replace the value."""
        self._memory._blobs[digest] = data

    def spoil_head(self, fid: str, data: bytes) -> None:
        """Replace the value."""
        self._memory._heads[fid] = data

    def spoil_generation(self, fid: str, head: Head, data: bytes) -> None:
        """Replace the value."""
        self._memory._generations[fid][head] = data


BACKENDS: dict[str, Callable[[Path], Backend]] = {"directory": DirectoryBackend, "memory": MemoryBackend}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """An empty store of each implementation, with the means to damage it."""
    return BACKENDS[request.param](tmp_path / "store")


@pytest.fixture
def store(backend: Backend) -> Store:
    """An empty store of each implementation."""
    return backend.store
