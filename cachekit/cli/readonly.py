"""A store that cannot be changed, so that looking at one changes nothing.

Reading a damaged document or blob through ``cachekit.store`` puts it into quarantine, as a session should. A person who
asks what is wrong must get the same answer when asking again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from cachekit.errors import ConfigurationError
from cachekit.store.base import MAX_DOCUMENT_BYTES, Head, Store


class ReadOnlyStore:
    """``store`` without its writing half: quarantining does nothing, everything else raises `ConfigurationError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def namespace(self) -> str:
        """The namespace this store reads."""
        return self._store.namespace

    def publishing(self) -> AbstractContextManager[None]:
        """Refuse."""
        raise _refusal()

    def in_turn(self, fid: str) -> AbstractContextManager[None]:
        """Refuse."""
        raise _refusal()

    def read_head(self, fid: str) -> Head | None:
        """As the store does."""
        return self._store.read_head(fid)

    def generations(self, fid: str) -> list[Head]:
        """As the store does."""
        return self._store.generations(fid)

    def read_generation(self, fid: str, head: Head, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """As the store does."""
        return self._store.read_generation(fid, head, max_bytes=max_bytes)

    def has_blob(self, digest: str) -> bool:
        """As the store does."""
        return self._store.has_blob(digest)

    def read_blob(self, digest: str, *, max_bytes: int | None = None) -> bytes:
        """As the store does."""
        return self._store.read_blob(digest, max_bytes=max_bytes)

    def contributions(self) -> list[str]:
        """As the store does."""
        return self._store.contributions()

    def read_contribution(self, digest: str) -> bytes:
        """As the store does."""
        return self._store.read_contribution(digest)

    def profiles(self) -> list[str]:
        """As the store does."""
        return self._store.profiles()

    def read_profile(self, fid: str) -> bytes | None:
        """As the store does."""
        return self._store.read_profile(fid)

    def quarantine_generation(self, fid: str, head: Head, *, why: str = "damaged") -> None:
        """Leave the document where it is."""

    def quarantine_blob(self, digest: str, *, why: str = "damaged") -> None:
        """Leave the blob where it is."""

    def discard_head(self, fid: str) -> None:
        """Leave the head where it is."""

    def move_head(self, fid: str, expected: Head | None, new: Head) -> None:
        """Refuse."""
        raise _refusal()

    def write_generation(self, fid: str, generation: int, data: bytes) -> str:
        """Refuse."""
        raise _refusal()

    def write_blob(self, data: bytes) -> str:
        """Refuse."""
        raise _refusal()

    def write_contribution(self, data: bytes) -> str:
        """Refuse."""
        raise _refusal()

    def write_profile(self, fid: str, data: bytes) -> None:
        """Refuse."""
        raise _refusal()


def _refusal() -> ConfigurationError:
    return ConfigurationError("this store was opened for reading only")
