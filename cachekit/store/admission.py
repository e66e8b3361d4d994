"""What stands between stored bytes and whoever would believe them: the checks, in the order in which they happen.

    1  signature   by a key that this store trusts
    2  schema      known, every field of its type, every count and length within limits
    3  freshness   the document of this place, and no older than what was seen here before
    4  content     sizes and digests, as stored and again as unpacked; unpacking stops at the announced size
    5  key         matches the pattern of its kind, so that nothing is written outside the private folder
    6  scan        the names that its pickles would import are on an allow-list (defence in depth only)

`document` is 1 to 3, `artifact` 4 to 6, and there is no other way from a store to an artifact. What fails several of
them is reported by the first. Pure over bytes: `cachekit.store.fetch` reads them, and puts aside what is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachekit.bundle import scan
from cachekit.bundle.artifact import Artifact
from cachekit.bundle.bundle import Bundle, Entry
from cachekit.bundle.document import from_payload
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import NewerSchemaError, RollbackError, TrustError
from cachekit.store.base import Head, check_bytes
from cachekit.store.packing import unpack

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document was found: what it must say it is."""

    namespace: str
    fid: str
    head: Head

    def __str__(self) -> str:
        return f"generation {self.head.generation} of {self.namespace}/{self.fid[:12]}"


def document(
    envelope: bytes,
    place: Place,
    trusted: Mapping[str, PublicKey],
    *,
    seen: Head | None = None,
    limits: Limits = DEFAULT,
) -> Bundle:
    """The bundle in a signed document that was found at ``place``; ``seen`` is the newest head known before.

    Raises, in this order: `CorruptError` and `LimitError` if it is no envelope, `TrustError` without a good signature
    by a key in ``trusted``; `CorruptError`, `LimitError` and `NewerSchemaError` for what it holds; `TrustError` if it
    belongs elsewhere, `RollbackError` if it is older than ``seen``.
    """
    from cachekit.bundle import signing

    try:
        signed = signing.verify(envelope, trusted, limits=limits)
    except TrustError as exc:
        raise TrustError(f"{place}: {exc}. To go on without it, run `cachekit verify --repair`") from exc
    try:
        bundle = from_payload(signed.payload, limits)
    except NewerSchemaError as exc:
        raise NewerSchemaError(f"{place}: {exc}") from exc
    _check_place(bundle, place)
    _check_fresh(place, seen, signed.keyid)
    return bundle


def artifact(entry: Entry, stored: bytes) -> Artifact:
    """The artifact that ``entry`` describes and whose stored bytes these are.

    Raises, in this order: `CorruptError` if sizes or digests differ or it does not unpack, `CorruptError` if its key is
    none of its kind, `TrustError` or `CorruptError` if the scan refuses its pickles.
    """
    check_bytes(stored, entry.stored_digest, "artifact as stored")
    data = unpack(stored, entry.raw_size)
    check_bytes(data, entry.raw_digest, f"unpacked {entry.stored_digest}")
    made = Artifact(entry.kind, entry.key, data, entry.guards, entry.requires)  # checks the key
    scan.check(made.kind, made.data)
    return made


def is_older(head: Head, seen: Head | None) -> bool:
    """Whether a head stands before one that was seen, or beside it: another document under the same number."""
    if seen is None:
        return False
    return head.generation < seen.generation or (
        head.generation == seen.generation and head.digest != seen.digest
    )


def _check_place(bundle: Bundle, place: Place) -> None:
    found = (bundle.namespace, bundle.fingerprint_id, bundle.generation)
    if found != (place.namespace, place.fid, place.head.generation):
        raise TrustError(
            f"{place} is a document signed for {found[0]}/{found[1][:12]} generation {found[2]}: somebody moved it here"
        )


def _check_fresh(place: Place, seen: Head | None, keyid: str) -> None:
    if seen is None or not is_older(place.head, seen):
        return
    what = "another" if place.head.generation == seen.generation else "an older one"
    raise RollbackError(
        f"{place}, signed by key {keyid[:12]}, is not used: generation {seen.generation} was seen here before, "
        f"and this is {what}. The next save goes on above {seen.generation}; if you restored a backup, "
        "`cachekit verify --repair` does so now"
    )
