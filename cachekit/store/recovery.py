"""What a writer builds upon: the committed bundle, or what is left of the profile when that is damaged.

Readers never recover: a damaged bundle is a cold start. A writer must, or the profile would stay cold for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachekit.bundle.bundle import Bundle
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import CorruptError, LimitError, NotFoundError, TrustError
from cachekit.store.base import Head, Store
from cachekit.store.fetch import read_document

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Present:
    """The head to move from, the bundle to build upon and the digest of its document.

    ``floor`` is the highest generation that was ever used, so that the next one is above it. ``damaged`` means that the
    head does not lead to ``bundle``, and a new generation is needed even if it says nothing new.
    """

    head: Head | None
    bundle: Bundle | None
    parent: str | None
    floor: int
    damaged: bool = False


def present(store: Store, fid: str, trusted: Mapping[str, PublicKey], *, limits: Limits = DEFAULT) -> Present:
    """The state of a profile, for somebody who is about to write to it. Damaged files go to quarantine.

    Raises `TrustError` and `NewerSchemaError` for a bundle that is whole but not ours to build upon, `LimitError`,
    `StoreError`.
    """
    unreadable: CorruptError | None = None
    try:
        head = store.read_head(fid)
    except CorruptError as exc:
        listed, head, unreadable = _highest(store, fid), None, exc
    else:
        if head is None:
            return Present(None, None, None, 0)
        try:
            return Present(
                head, read_document(store, fid, head, trusted, limits=limits), head.digest, head.generation
            )
        except LimitError:
            raise
        except (CorruptError, NotFoundError):
            listed = max(head.generation, _highest(store, fid))
    found = _newest_whole(store, fid, trusted, limits)
    if unreadable is not None:  # only now: what is left may be a newer release's, and then nothing is touched
        log.warning("the head of %s is damaged and put aside: %s", fid, unreadable)
        store.discard_head(fid)
    if found is None:
        return Present(head, None, None, listed, damaged=True)
    older, bundle = found
    log.warning("%s is built upon generation %d, the newest that is whole", fid, older.generation)
    return Present(head, bundle, older.digest, listed, damaged=True)


def _highest(store: Store, fid: str) -> int:
    return max((found.generation for found in store.generations(fid)), default=0)


def _newest_whole(
    store: Store, fid: str, trusted: Mapping[str, PublicKey], limits: Limits
) -> tuple[Head, Bundle] | None:
    for candidate in reversed(store.generations(fid)):
        try:
            return candidate, read_document(store, fid, candidate, trusted, limits=limits)
        except (CorruptError, NotFoundError, TrustError) as exc:
            log.warning("generation %d of %s cannot be built upon: %s", candidate.generation, fid, exc)
    return None
