"""Reading from a store what may be used: the verified bundle document, and the artifacts it lists.

This is the path a start waits for. What is checked, and in which order, is `cachekit.store.admission`; this module
reads, in several threads where that is quicker, and decides what becomes of what failed: a damaged document or blob is
put into the store's quarantine, so that the next save writes it anew; anything else is left where it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cachekit.bundle.artifact import Artifact, Identity
from cachekit.bundle.bundle import Bundle, Entry
from cachekit.bundle.limits import DEFAULT, KIB, MIB, Limits
from cachekit.errors import (
    CachekitError,
    CorruptError,
    LimitError,
    NotFoundError,
    RollbackError,
    StoreError,
    TrustError,
)
from cachekit.logs import Log
from cachekit.store import admission
from cachekit.store.base import Head, Store
from cachekit.store.packing import pack, unpack

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey
    from cachekit.store.seen import Seen

__all__ = [
    "Committed",
    "Loaded",
    "Problem",
    "committed",
    "fetch",
    "pack",
    "read_artifacts",
    "read_document",
    "unpack",
]

log = Log(__name__)

_LOOKS = 4
"""How often a bundle that changed while it was read is looked at."""

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


@dataclass(frozen=True, slots=True)
class Committed:
    """A bundle that was verified, and the head that names it."""

    head: Head
    bundle: Bundle


def fetch(
    store: Store,
    fid: str,
    trusted: Mapping[str, PublicKey],
    *,
    seen: Seen | None = None,
    limits: Limits = DEFAULT,
) -> Bundle | None:
    """The bundle that the head names, verified; None if nothing was ever committed for ``fid``. See `committed`."""
    found = committed(store, fid, trusted, seen=seen, limits=limits)
    return found.bundle if found is not None else None


def committed(
    store: Store,
    fid: str,
    trusted: Mapping[str, PublicKey],
    *,
    seen: Seen | None = None,
    limits: Limits = DEFAULT,
) -> Committed | None:
    """What the head names, verified and, with ``seen``, no older than what was seen before.

    Raises `CorruptError` if the head or the document is damaged or missing (a damaged document is quarantined),
    `TrustError` if no key in ``trusted`` signed it or it belongs elsewhere, `RollbackError`, `NewerSchemaError`,
    `StoreError`.
    """
    for _ in range(_LOOKS - 1):
        newest = (
            seen.highest(fid) if seen is not None else None
        )  # before the head, which others may be moving
        head = store.read_head(fid)
        try:
            return _committed(store, fid, head, newest, trusted, seen=seen, limits=limits)
        except (CorruptError, RollbackError):
            # Others may have published, or evicted the bundle and published it anew, since the head was read.
            if store.read_head(fid) == head and (seen is None or seen.highest(fid) == newest):
                raise
    newest = seen.highest(fid) if seen is not None else None
    return _committed(store, fid, store.read_head(fid), newest, trusted, seen=seen, limits=limits)


def _committed(
    store: Store,
    fid: str,
    head: Head | None,
    newest: Head | None,
    trusted: Mapping[str, PublicKey],
    *,
    seen: Seen | None,
    limits: Limits,
) -> Committed | None:
    if head is None:
        if seen is None or newest is None or seen.highest(fid) is None:
            return None  # it never was there, or was forgotten meanwhile: removed on purpose
        raise CorruptError(
            f"the head of {fid} is missing, though generation {newest.generation} was seen: "
            "the next save builds upon what is left"
        )
    try:
        return Committed(head, read_document(store, fid, head, trusted, seen=newest, limits=limits))
    except NotFoundError as exc:
        raise CorruptError(f"generation {head.generation}, which the head names, is missing: {exc}") from exc


def read_document(
    store: Store,
    fid: str,
    head: Head,
    trusted: Mapping[str, PublicKey],
    *,
    seen: Head | None = None,
    limits: Limits = DEFAULT,
) -> Bundle:
    """One generation's bundle, verified, whether it is committed or not.

    Raises as `committed` does, and `NotFoundError` if the document is not there.
    """
    try:
        # An envelope is base64 of the payload, a signature and a few names.
        envelope = store.read_generation(fid, head, max_bytes=limits.max_document_bytes // 3 * 4 + 64 * KIB)
        place = admission.Place(store.namespace, fid, head)
        return admission.document(envelope, place, trusted, seen=seen, limits=limits)
    except LimitError:
        raise  # not damage: somebody with higher limits may read it
    except CorruptError as exc:
        why = f"generation {head.generation} of {fid} is damaged: {exc}"
        log.info("%s", why)
        _quarantine(lambda: store.quarantine_generation(fid, head, why=why))
        raise


def read_artifacts(store: Store, bundle: Bundle, wanted: Callable[[Entry], bool]) -> Loaded:
    """The bundle's artifacts that ``wanted`` picks, each admitted.

    Never raises for a single artifact: one that is missing, damaged, refused or unreadable becomes a `Problem`. The
    blob of one that is damaged or refused goes to quarantine, so that the next save replaces it.
    """
    return read_entries(store, [entry for entry in bundle.entries if wanted(entry)])


def read_entries(store: Store, entries: Sequence[Entry]) -> Loaded:
    """What `read_artifacts` does, for entries that the caller has picked."""

    def read(entry: Entry) -> Artifact | Problem:
        try:
            try:
                return _read(store, entry)
            except CorruptError:
                return _read(store, entry)  # somebody may have just repaired it
        except (CorruptError, TrustError) as exc:
            why = f"{entry.kind} {entry.key} cannot be used: {exc}"
            log.info("artifact %s", why)
            if entry.inline is None:
                _quarantine(lambda: store.quarantine_blob(entry.stored_digest, why=why))
            return Problem(entry.identity, entry.stored_digest, exc)
        except StoreError as exc:
            log.info("artifact %s %s cannot be read: %s", entry.kind, entry.key, exc)
            return Problem(entry.identity, entry.stored_digest, exc)

    results = list(_map(read, entries))
    return Loaded(
        artifacts=tuple(result for result in results if isinstance(result, Artifact)),
        problems=tuple(result for result in results if isinstance(result, Problem)),
    )


def _map(
    read: Callable[[Entry], Artifact | Problem], entries: Sequence[Entry]
) -> Iterable[Artifact | Problem]:
    """Read the entries in order; many bytes in several threads, as reading, hashing and unpacking release the GIL."""
    large = sum(entry.stored_size for entry in entries if entry.inline is None) > _PARALLEL_BYTES
    if not large or len(entries) < 2:
        return map(read, entries)
    with ThreadPoolExecutor(
        max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="cachekit-read"
    ) as pool:
        return list(pool.map(read, entries))


def _read(store: Store, entry: Entry) -> Artifact:
    """The entry's artifact, admitted. Raises `CorruptError`, `TrustError`, `NotFoundError`, `StoreError`."""
    stored = (
        entry.inline
        if entry.inline is not None
        else store.read_blob(entry.stored_digest, max_bytes=entry.stored_size)
    )
    return admission.artifact(entry, stored)


def _quarantine(move: Callable[[], None]) -> None:
    """Put something damaged aside; a store that cannot be written is read from all the same."""
    try:
        move()
    except StoreError as exc:
        log.info("could not put a damaged file aside: %s", exc)
