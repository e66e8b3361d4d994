"""The interface every store implements, and the names it accepts.

A store keeps four kinds of things of one namespace::

    blobs           immutable bytes, named by the sha256 of what is stored
    contributions   immutable signed statements, named likewise
    profiles        per fingerprint: its components, immutable generation documents, and one head
    head            (generation, digest): the only commit point, moved by compare-and-swap

A store moves bytes and keeps its promises about atomicity; it does not know what a bundle is, verifies no signature and
compresses nothing (`cachekit.store.fetch` and `cachekit.store.publish` do). Every method raises `StoreError` when the
store cannot be read or written, and never reports that as absence.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cachekit.bundle import canonical
from cachekit.bundle.limits import DEFAULT
from cachekit.errors import ConfigurationError, CorruptError, NewerSchemaError

MAX_HEAD_BYTES = 4096
"""A head is about 100 bytes; anything beyond this is not one."""

MAX_PROFILE_BYTES = 16 * 2**20
"""Components of a fingerprint; a per-layer description of the largest known denoiser stays below 1 MiB."""

MAX_DOCUMENT_BYTES = 512 * 2**20
"""A generation document or a contribution, envelope included; whoever parses one has a closer limit."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,127}")
_NAMESPACE = re.compile(r"[0-9a-z][0-9a-z._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Head:
    """What a profile's head says: the generation that counts (1, 2, ...) and the sha256 of its document."""

    generation: int
    digest: str

    def __post_init__(self) -> None:
        """Refuse a generation that no document can have and anything that is no sha256 (`CorruptError`)."""
        if not 1 <= self.generation <= DEFAULT.max_integer:
            raise CorruptError(f"head generation must be from 1 to {DEFAULT.max_integer}")
        if not _DIGEST.fullmatch(self.digest):
            raise CorruptError(f"head digest is not a sha256: {self.digest!r:.80}")

    @property
    def filename(self) -> str:
        """The name of its document in ``generations/``."""
        return f"{self.generation}-{self.digest}.json"

    @classmethod
    def from_filename(cls, name: str) -> Head | None:
        """The head that would name this file, or None for any other file (a temporary one, say)."""
        generation, _, rest = name.partition("-")
        digest, dot, suffix = rest.partition(".")
        if suffix != "json" or not dot or not generation.isascii() or not generation.isdecimal():
            return None
        try:
            head = cls(int(generation), digest)
        except (CorruptError, ValueError):  # ValueError: more digits than int() takes
            return None
        return head if head.filename == name else None

    def to_bytes(self) -> bytes:
        """``head.json``, canonical."""
        return json.dumps(
            {"digest": self.digest, "generation": self.generation}, separators=(",", ":")
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Head:
        """Parse ``head.json``; raises `NewerSchemaError` if it says more than we know, `CorruptError` otherwise."""
        if not data:
            raise CorruptError("is empty")
        value = canonical.loads(data)
        if not isinstance(value, dict) or not {"digest", "generation"} <= value.keys():
            raise CorruptError("head must have the fields digest and generation")
        generation, digest = value["generation"], value["digest"]
        if type(generation) is not int or type(digest) is not str:
            raise CorruptError("head must have an integer generation and a text digest")
        head, unknown = cls(generation, digest), sorted(value.keys() - {"digest", "generation"})
        if unknown:
            raise NewerSchemaError(
                f"head says {', '.join(unknown)!r:.80}, unknown to this release: upgrade cachekit"
            )
        return head


@runtime_checkable
class Store(Protocol):
    """One namespace of a store. Implementations are safe to use from several threads and several processes.

    ``fid`` is a fingerprint id, ``digest`` the sha256 (hex) of stored bytes. A malformed one is a `ConfigurationError`
    before anything is touched.
    """

    @property
    def namespace(self) -> str:
        """The namespace this store reads and writes; blobs are not shared across namespaces."""

    def publishing(self) -> AbstractContextManager[None]:
        """While entered, nothing is collected: a blob that is there, or is written, stays there until a head names it.

        Whoever writes holds it from before he looks at what is there until the head is moved. May be entered again.
        """

    def in_turn(self, fid: str) -> AbstractContextManager[None]:
        """While entered, other writers of the profile wait, if the store can let them, so that nobody merges in vain.

        A courtesy that is never refused: what is written is right without it, because only the head commits.
        """

    def read_head(self, fid: str) -> Head | None:
        """The committed head, or None if the profile has none. Raises `CorruptError` if it cannot be parsed."""

    def move_head(self, fid: str, expected: Head | None, new: Head) -> None:
        """Commit ``new`` if the head is still ``expected`` (None: no head yet).

        Raises `ConflictError` if it is not, `NotFoundError` if the document that ``new`` names was never written.
        """

    def discard_head(self, fid: str) -> None:
        """Put a head that cannot be parsed out of the way; a readable head stays."""

    def generations(self, fid: str) -> list[Head]:
        """Every generation document present, committed or not, in ascending order."""

    def read_generation(self, fid: str, head: Head, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """The document that ``head`` names, its digest checked.

        Raises `NotFoundError`, `CorruptError` if the bytes differ, `LimitError` if there are more than ``max_bytes``.
        """

    def write_generation(self, fid: str, generation: int, data: bytes) -> str:
        """Keep a document and return its digest. Nobody sees it before the head names it."""

    def quarantine_generation(self, fid: str, head: Head, *, why: str = "damaged") -> None:
        """Put a damaged document aside, where nothing reads it; absent is fine. ``why`` is for people."""

    def has_blob(self, digest: str) -> bool:
        """Whether the blob is present; its content is not read."""

    def read_blob(self, digest: str, *, max_bytes: int | None = None) -> bytes:
        """The blob, its digest checked.

        Raises `NotFoundError`, `CorruptError` if the bytes differ, `LimitError` if there are more than ``max_bytes``.
        """

    def write_blob(self, data: bytes) -> str:
        """Keep the bytes if they are not there yet (a damaged copy is replaced) and return their digest."""

    def quarantine_blob(self, digest: str, *, why: str = "damaged") -> None:
        """Put a damaged blob aside, where nothing reads it; absent is fine. ``why`` is for people."""

    def contributions(self) -> list[str]:
        """Digests of all contributions, sorted."""

    def read_contribution(self, digest: str) -> bytes:
        """A contribution, its digest checked. Raises as `read_blob` does."""

    def write_contribution(self, data: bytes) -> str:
        """Keep a statement if it is not there yet and return its digest."""

    def profiles(self) -> list[str]:
        """Fingerprint ids that have anything stored, sorted."""

    def read_profile(self, fid: str) -> bytes | None:
        """The components of a fingerprint as written, or None."""

    def write_profile(self, fid: str, data: bytes) -> None:
        """Keep the components of a fingerprint; the same bytes again write nothing."""


def digest_of(data: bytes) -> str:
    """The sha256 of the bytes, in hex: the name that every stored object goes by."""
    return hashlib.sha256(data).hexdigest()


def check_digest(digest: str) -> str:
    """The digest itself if it is 64 lower-case hex digits, else `ConfigurationError`."""
    if not _DIGEST.fullmatch(digest):
        raise ConfigurationError(f"not a sha256 in lower-case hex: {digest!r:.100}")
    return digest


def check_fingerprint_id(fid: str) -> str:
    """The id itself if it is safe as a folder name, else `ConfigurationError`."""
    if not _FINGERPRINT_ID.fullmatch(fid):
        raise ConfigurationError(f"not a fingerprint id: {fid!r:.140}")
    return fid


def is_fingerprint_id(name: str) -> bool:
    """Whether a folder name can be a fingerprint id (a listing skips the others)."""
    return _FINGERPRINT_ID.fullmatch(name) is not None


def is_digest(name: str) -> bool:
    """Whether a file name can be a digest (a listing skips the others)."""
    return _DIGEST.fullmatch(name) is not None


def check_namespace(namespace: str) -> str:
    """The namespace itself, else `ConfigurationError` naming what is allowed."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(
            f"namespace {namespace!r:.80} must have 1 to 63 of a-z, 0-9, ., - and _ and start with a letter or digit"
        )
    return namespace


def check_bytes(data: bytes, digest: str, what: str) -> bytes:
    """The bytes themselves if they hash to ``digest``, else `CorruptError` saying what was found."""
    found = digest_of(data)
    if found != digest:
        raise CorruptError(f"{what}: {len(data)} bytes with sha256 {found}, expected {digest}")
    return data
