"""What a writer builds upon: the committed bundle, or what is left of the profile when that is damaged.

Readers never recover: a damaged, missing or older bundle is a cold start. A writer must, or the profile would stay cold
for ever. It takes the newest document that is whole, and goes on above every generation that was ever used or seen;
what was withdrawn stays withdrawn (docs/adr/0007). A head that leads to what nobody trusted signed is as good as lost,
if there is a trusted document; if there is none, nothing is built (docs/adr/0010).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cachekit.bundle.bundle import Bundle
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import CorruptError, LimitError, NotFoundError, TrustError
from cachekit.logs import Log
from cachekit.store.admission import is_older
from cachekit.store.base import Head, Store
from cachekit.store.fetch import read_document

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey
    from cachekit.store.seen import Seen

log = Log(__name__)


@dataclass(frozen=True)
class Present:
    """The head to move from, the bundle to build upon and the digest of its document.

    ``floor`` is the highest generation that was ever used or seen, so that the next one is above it. ``damaged`` means
    that the head does not lead readers to ``bundle``, and a new generation is needed even if it says nothing new.
    """

    head: Head | None
    bundle: Bundle | None
    parent: str | None
    floor: int
    damaged: bool = False


def present(
    store: Store,
    fid: str,
    trusted: Mapping[str, PublicKey],
    *,
    seen: Seen | None = None,
    limits: Limits = DEFAULT,
) -> Present:
    """The state of a profile, for somebody who is about to write to it. Damaged files go to quarantine.

    ``seen`` tells whether the store was turned back. Raises `TrustError` if the head leads to an untrusted document
    and there is no trusted one, `NewerSchemaError` for what is not ours to build upon, `LimitError`, `StoreError`.
    """
    newest = seen.highest(fid) if seen is not None else None  # before the head, which others may be moving
    unreadable: CorruptError | None = None
    untrusted: TrustError | None = None
    head = None
    try:
        head = store.read_head(fid)
    except CorruptError as exc:
        unreadable = exc
    if head is not None:
        whole = None
        try:
            whole = _committed(store, fid, head, trusted, limits)
        except TrustError as exc:
            untrusted = exc
        if whole is not None and not is_older(head, newest):
            return Present(head, whole, head.digest, head.generation)
    listed = _highest(store, fid)
    floor = max(listed, head.generation if head else 0, newest.generation if newest else 0)
    if head is None and unreadable is None and not listed:
        return Present(None, None, None, floor)
    found = _newest_whole(store, fid, trusted, limits)
    if found is None and untrusted is not None:
        raise untrusted  # somebody else's, maybe of a store that is shared: a person decides
    if unreadable is not None:  # only now: what is left may be a newer release's, and then nothing is touched
        log.info("the head of %s is damaged and put aside: %s", fid, unreadable)
        store.discard_head(fid)
    if found is None:
        return Present(head, None, None, floor, damaged=True)
    older, bundle = found
    # Without a head, it is likelier that its first writer died, or is still at it.
    level = logging.INFO if head is None and unreadable is None and newest is None else logging.WARNING
    log.log(level, "%s is built upon generation %d, the newest that is whole", fid, older.generation)
    if seen is not None:
        bundle = replace(bundle, tombstones=(*bundle.tombstones, *seen.withdrawn(fid)))
    return Present(head, bundle, older.digest, floor, damaged=True)


def _committed(
    store: Store, fid: str, head: Head, trusted: Mapping[str, PublicKey], limits: Limits
) -> Bundle | None:
    """The bundle that the head names; None if it is damaged or gone."""
    try:
        return read_document(store, fid, head, trusted, limits=limits)
    except LimitError:
        raise
    except (CorruptError, NotFoundError):
        return None


def _highest(store: Store, fid: str) -> int:
    return max((found.generation for found in store.generations(fid)), default=0)


def _newest_whole(
    store: Store, fid: str, trusted: Mapping[str, PublicKey], limits: Limits
) -> tuple[Head, Bundle] | None:
    for candidate in reversed(store.generations(fid)):
        try:
            return candidate, read_document(store, fid, candidate, trusted, limits=limits)
        except (CorruptError, NotFoundError, TrustError) as exc:
            log.info("generation %d of %s cannot be built upon: %s", candidate.generation, fid, exc)
    return None
