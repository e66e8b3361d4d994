"""`MemoryStore`: the store interface over dictionaries, for tests and for looking at a bundle without writing one.

It lives as long as the object and is safe across threads, not across processes.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

from cachekit.errors import ConfigurationError, ConflictError, CorruptError, LimitError, NotFoundError
from cachekit.store.base import (
    MAX_DOCUMENT_BYTES,
    Head,
    check_bytes,
    check_digest,
    check_fingerprint_id,
    check_namespace,
    digest_of,
)


class MemoryStore:
    """A store in memory. The methods are those of `cachekit.store.base.Store`; none raises `StoreError` itself."""

    def __init__(self, namespace: str = "local") -> None:
        self._namespace = check_namespace(namespace)
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes] = {}
        self._contributions: dict[str, bytes] = {}
        self._profiles: dict[str, bytes] = {}
        self._generations: dict[str, dict[Head, bytes]] = {}
        self._heads: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore {self._namespace!r}: {len(self._heads)} heads, {len(self._blobs)} blobs>"

    @property
    def namespace(self) -> str:
        """The namespace this store reads and writes."""
        return self._namespace

    def publishing(self) -> AbstractContextManager[None]:
        """Nothing is ever collected here."""
        return nullcontext()

    def in_turn(self, fid: str) -> AbstractContextManager[None]:
        """Nobody waits here: merging again is cheap."""
        return nullcontext()

    def read_head(self, fid: str) -> Head | None:
        """The committed head, or None. Raises `CorruptError` if it cannot be parsed."""
        data = self._heads.get(check_fingerprint_id(fid))
        return None if data is None else Head.from_bytes(data)

    def move_head(self, fid: str, expected: Head | None, new: Head) -> None:
        """Commit ``new`` if the head is still ``expected``.

        Raises `ConflictError`, `NotFoundError` if its document was never written, `ConfigurationError` if it would go
        back, `CorruptError` if the present head cannot be parsed.
        """
        if expected is not None and new.generation <= expected.generation:
            raise ConfigurationError(f"a head moves up, not from {expected.generation} to {new.generation}")
        with self._lock:
            if new not in self._generations.get(check_fingerprint_id(fid), {}):
                raise NotFoundError(f"{new.filename} must be written before the head can name it")
            found = self.read_head(fid)
            if found != expected:
                raise ConflictError(f"head of {fid} is at {found}, no longer at {expected}")
            self._heads[fid] = new.to_bytes()

    def discard_head(self, fid: str) -> None:
        """Forget a head that cannot be parsed; a readable one stays."""
        with self._lock:
            try:
                self.read_head(fid)
            except CorruptError:
                del self._heads[fid]

    def generations(self, fid: str) -> list[Head]:
        """Every document present, committed or not, in ascending order."""
        with self._lock:
            present = list(self._generations.get(check_fingerprint_id(fid), {}))
        return sorted(present, key=lambda head: (head.generation, head.digest))

    def read_generation(self, fid: str, head: Head, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """The document, its digest checked. Raises `NotFoundError`, `CorruptError`, `LimitError`."""
        data = self._generations.get(check_fingerprint_id(fid), {}).get(head)
        return _checked(data, head.digest, f"generation {head.generation} of {fid}", max_bytes)

    def write_generation(self, fid: str, generation: int, data: bytes) -> str:
        """Keep a document that no head names yet; returns its digest."""
        head = Head(generation, digest_of(data))
        with self._lock:
            self._generations.setdefault(check_fingerprint_id(fid), {})[head] = data
        return head.digest

    def quarantine_generation(self, fid: str, head: Head, *, why: str = "damaged") -> None:
        """Forget a damaged document; absent is fine."""
        with self._lock:
            self._generations.get(check_fingerprint_id(fid), {}).pop(head, None)

    def has_blob(self, digest: str) -> bool:
        """Whether the blob is present."""
        return check_digest(digest) in self._blobs

    def read_blob(self, digest: str, *, max_bytes: int | None = None) -> bytes:
        """The blob, its digest checked. Raises `NotFoundError`, `CorruptError`, `LimitError`."""
        return _checked(self._blobs.get(check_digest(digest)), digest, f"blob {digest}", max_bytes)

    def write_blob(self, data: bytes) -> str:
        """Keep the bytes and return their digest."""
        digest = digest_of(data)
        self._blobs[digest] = data
        return digest

    def quarantine_blob(self, digest: str, *, why: str = "damaged") -> None:
        """Forget a damaged blob; absent is fine."""
        self._blobs.pop(check_digest(digest), None)

    def contributions(self) -> list[str]:
        """Digests of all contributions, sorted."""
        return sorted(self._contributions)

    def read_contribution(self, digest: str) -> bytes:
        """A contribution, its digest checked. Raises `NotFoundError`, `CorruptError`, `LimitError`."""
        data = self._contributions.get(check_digest(digest))
        return _checked(data, digest, f"contribution {digest}", MAX_DOCUMENT_BYTES)

    def write_contribution(self, data: bytes) -> str:
        """Keep a statement and return its digest."""
        digest = digest_of(data)
        self._contributions[digest] = data
        return digest

    def profiles(self) -> list[str]:
        """Fingerprint ids that have anything stored, sorted."""
        with self._lock:
            return sorted({*self._profiles, *self._generations, *self._heads})

    def read_profile(self, fid: str) -> bytes | None:
        """The components as written, or None."""
        return self._profiles.get(check_fingerprint_id(fid))

    def write_profile(self, fid: str, data: bytes) -> None:
        """Keep the components of a fingerprint."""
        self._profiles[check_fingerprint_id(fid)] = data


def _checked(data: bytes | None, digest: str, what: str, max_bytes: int | None) -> bytes:
    if data is None:
        raise NotFoundError(f"{what} does not exist")
    if max_bytes is not None and len(data) > max_bytes:
        raise LimitError(f"{what} has {len(data)} bytes, more than the {max_bytes} it may have")
    return check_bytes(data, digest, what)
