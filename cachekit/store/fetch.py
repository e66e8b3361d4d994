"""Reading from a store what may be used: the verified bundle document, and the artifacts it lists.

This is the path a start waits for. It checks, in this order: the document's digest, its signature, its structure and
limits, that it is the document of this namespace, fingerprint and generation; then, per artifact, size and digest of
what is stored, the size it claims to unpack to, and size and digest of what came out. What pickles inside name is the
business of `cachekit.bundle.scan`, called by whoever installs.

A damaged document or blob is put into the store's quarantine, so that the next save writes it anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cachekit.bundle.artifact import Artifact, Identity
from cachekit.bundle.bundle import Bundle, Entry
from cachekit.bundle.document import from_payload
from cachekit.bundle.limits import DEFAULT, KIB, MIB, Limits
from cachekit.errors import CachekitError, CorruptError, LimitError, NotFoundError, StoreError, TrustError
from cachekit.store.base import Head, Store, check_bytes

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey

log = logging.getLogger(__name__)

_PARALLEL_BYTES = 4 * MIB
"""Below this, starting threads costs more than they save."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An artifact that the bundle lists and that could not be read, and why. The others are not affected."""

    identity: Identity
    stored_digest: str
    error: CachekitError

    def __str__(self) -> str:
        return f"{self.identity.kind} {self.identity.key}: {self.error}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `read_artifacts` got, in the order of the bundle's entries."""

    artifacts: tuple[Artifact, ...] = field(repr=False)
    problems: tuple[Problem, ...] = ()


def fetch(
    store: Store, fid: str, trusted: Mapping[str, PublicKey], *, limits: Limits = DEFAULT
) -> Bundle | None:
    """The bundle that the head names, verified; None if nothing was ever committed for ``fid``.

    Raises `CorruptError` if the head or the document is damaged or missing (a damaged document is quarantined),
    `TrustError` if no key in ``trusted`` signed it or it belongs elsewhere, `NewerSchemaError`, `StoreError`.
    """
    head = store.read_head(fid)
    if head is None:
        return None
    try:
        return read_document(store, fid, head, trusted, limits=limits)
    except NotFoundError as exc:
        raise CorruptError(f"generation {head.generation}, which the head names, is missing: {exc}") from exc


def read_document(
    store: Store, fid: str, head: Head, trusted: Mapping[str, PublicKey], *, limits: Limits = DEFAULT
) -> Bundle:
    """One generation's bundle, verified, whether it is committed or not.

    Raises as `fetch` does, and `NotFoundError` if the document is not there.
    """
    from cachekit.bundle import signing

    try:
        # An envelope is base64 of the payload, a signature and a few names.
        envelope = store.read_generation(fid, head, max_bytes=limits.max_document_bytes // 3 * 4 + 64 * KIB)
        bundle = from_payload(signing.verify(envelope, trusted, limits=limits).payload, limits)
    except LimitError:
        raise  # not damage: somebody with higher limits may read it
    except CorruptError as exc:
        log.warning("bundle %s generation %d is damaged: %s", fid, head.generation, exc)
        _quarantine(lambda: store.quarantine_generation(fid, head))
        raise
    except TrustError as exc:
        raise TrustError(f"bundle {fid} generation {head.generation}: {exc}") from exc
    found = (bundle.namespace, bundle.fingerprint_id, bundle.generation)
    if found != (store.namespace, fid, head.generation):
        raise TrustError(
            f"generation {head.generation} of {store.namespace}/{fid} is a document signed for "
            f"{found[0]}/{found[1]} generation {found[2]}: somebody moved it here"
        )
    return bundle


def read_artifacts(store: Store, bundle: Bundle, wanted: Callable[[Entry], bool]) -> Loaded:
    """The bundle's artifacts that ``wanted`` picks, with every digest and size checked.

    Never raises for a single artifact: one that is missing, damaged or unreadable becomes a `Problem`, and a damaged
    blob goes to quarantine.
    """
    entries = [entry for entry in bundle.entries if wanted(entry)]

    def read(entry: Entry) -> Artifact | Problem:
        try:
            try:
                return _read(store, entry)
            except CorruptError:
                return _read(store, entry)  # somebody may have just repaired it
        except CorruptError as exc:
            log.warning("artifact %s %s is damaged: %s", entry.kind, entry.key, exc)
            if entry.inline is None:
                _quarantine(lambda: store.quarantine_blob(entry.stored_digest))
            return Problem(entry.identity, entry.stored_digest, exc)
        except StoreError as exc:
            log.warning("artifact %s %s cannot be read: %s", entry.kind, entry.key, exc)
            return Problem(entry.identity, entry.stored_digest, exc)

    results = list(_map(read, entries))
    return Loaded(
        artifacts=tuple(result for result in results if isinstance(result, Artifact)),
        problems=tuple(result for result in results if isinstance(result, Problem)),
    )


def _map(read: Callable[[Entry], Artifact | Problem], entries: list[Entry]) -> Iterable[Artifact | Problem]:
    """Read the entries in order; many bytes in several threads, as reading, hashing and unpacking release the GIL."""
    large = sum(entry.stored_size for entry in entries if entry.inline is None) > _PARALLEL_BYTES
    if not large or len(entries) < 2:
        return map(read, entries)
    with ThreadPoolExecutor(
        max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="cachekit-read"
    ) as pool:
        return list(pool.map(read, entries))


def _read(store: Store, entry: Entry) -> Artifact:
    """The entry's artifact. Raises `CorruptError`, `NotFoundError`, `StoreError`."""
    if entry.inline is not None:
        stored = check_bytes(entry.inline, entry.stored_digest, "inline artifact")
    else:
        stored = store.read_blob(entry.stored_digest, max_bytes=entry.stored_size)
    data = check_bytes(
        unpack(stored, entry.raw_size), entry.raw_digest, f"unpacked blob {entry.stored_digest}"
    )
    return Artifact(entry.kind, entry.key, data, entry.guards, entry.requires)


def unpack(stored: bytes, size: int) -> bytes:
    """The zstd frame's content, which must be exactly ``size`` bytes; a frame that claims more is not unpacked.

    Raises `CorruptError`.
    """
    import zstandard

    try:
        # The unpacker allocates what the frame claims, whatever limit it is given.
        claimed = zstandard.frame_content_size(stored)
        if claimed != size:
            raise CorruptError(f"blob claims to unpack to {claimed} bytes, the bundle says {size}")
        if size == 0:
            return b""
        data = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise CorruptError(f"blob is not zstd: {exc}") from exc
    if len(data) != size:
        raise CorruptError(f"blob unpacks to {len(data)} bytes, the bundle says {size}")
    return data


def pack(data: bytes) -> bytes:
    """The bytes as one zstd frame of level 3, which states the size of its content."""
    import zstandard

    return zstandard.ZstdCompressor(level=3, write_content_size=True, write_checksum=False).compress(data)


def _quarantine(move: Callable[[], None]) -> None:
    """Put something damaged aside; a store that cannot be written is read from all the same."""
    try:
        move()
    except StoreError as exc:
        log.warning("could not put a damaged file aside: %s", exc)
