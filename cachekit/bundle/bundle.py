"""Bundles as values: which artifacts exist for one fingerprint, what they cover, and how two bundles merge.

Merging is commutative, associative and idempotent, contents included, so stores and servers may merge in any order
and any number of times. Per identity the winner is the entry with the highest epoch, then the smallest
(accepted, raw digest). What keeps that true:

* A *tombstone* withdraws bytes, not an identity. The withdrawn winner stays known (in `Bundle.spare`), so that a
  loser which somebody forgot cannot come back in one order of merging and not in another. A replacement is
  published with a higher epoch (`Bundle.epoch`) and so beats whatever came before.
* *autotune* entries tune the kernels of inductor artifacts, but nothing in them says of which. Several candidates are
  kept per key (`Bundle.spare`), and the one shown comes from a contribution that also won an inductor artifact.

The constructor brings every bundle into that normal form, so merging is concatenation. `complete` is what may be
published: nothing in it names what is not there. Reading and writing documents is ``document.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cachekit.bundle import canonical
from cachekit.bundle.artifact import (
    Artifact,
    Identity,
    Reference,
    Requires,
    references_of,
)
from cachekit.bundle.coverage import Coverage, measured
from cachekit.bundle.coverage import merge as merge_coverage
from cachekit.bundle.limits import INLINE_BYTES, INLINE_TOTAL_BYTES
from cachekit.errors import ConfigurationError

SCHEMA = 1
"""Version of what a bundle can say. A new field, kind or rule raises it: an older release must notice that it cannot
write what it does not know."""

# Autotune candidates kept per key: a rule of the format, or two releases would merge to different bundles.
CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One artifact of a bundle without its bytes, unless they are few.

    Digests are sha256 in 64 hex digits, sizes are bytes. *raw* is what the compiler produced, *stored* what lies in the
    store (zstd). `inline` holds the stored bytes where they travel in the document. `accepted` is milliseconds since
    1970, set by the first store that took the entry. `partners` are the texts of `Reference` for the inductor artifacts
    that an aot_autograd artifact looks up.
    """

    kind: str
    key: str
    guards: str
    requires: Requires
    raw_digest: str
    raw_size: int
    stored_digest: str
    stored_size: int
    inline: bytes | None = field(repr=False)
    accepted: int
    contribution: str
    producer: str
    partners: tuple[str, ...] = ()
    epoch: int = 0

    @classmethod
    def of(
        cls,
        artifact: Artifact,
        stored: bytes,
        *,
        accepted: int,
        contribution: str,
        producer: str,
        epoch: int = 0,
        inline: bool = False,
    ) -> Entry:
        """Describe `artifact`, whose compressed bytes are `stored`.

        Raises:
            CorruptError: an aot_autograd artifact cannot be searched for its partners.
        """
        partners = references_of(artifact.data) if artifact.kind == "aot_autograd" else ()
        return cls(
            *artifact.identity,
            raw_digest=artifact.digest,
            raw_size=len(artifact.data),
            stored_digest=hashlib.sha256(stored).hexdigest(),
            stored_size=len(stored),
            inline=stored if inline else None,
            accepted=accepted,
            contribution=contribution,
            producer=producer,
            partners=tuple(sorted(map(str, partners))),
            epoch=epoch,
        )

    @property
    def identity(self) -> Identity:
        """What the entry is, whoever made it."""
        return Identity(self.kind, self.key, self.guards, self.requires)

    @property
    def order(self) -> tuple[int, str]:
        """(accepted, raw digest): the smallest wins among entries of one epoch."""
        return self.accepted, self.raw_digest

    @property
    def rank(self) -> tuple[Any, ...]:
        """Total order over all fields, best first; two entries that differ anywhere differ here."""
        inline = (self.inline is None, self.inline or b"")
        rest = (
            self.contribution,
            self.producer,
            self.raw_size,
            self.stored_digest,
            self.stored_size,
            self.partners,
        )
        return (-self.epoch, *self.order, *rest, *inline)


@dataclass(frozen=True, slots=True, order=True)
class Tombstone:
    """Withdraws the artifact with these raw bytes, wherever it occurs."""

    raw_digest: str
    reason: str


@dataclass(frozen=True)
class Bundle:
    """All artifacts of one fingerprint, in normal form: sorted, one live entry per identity.

    `entries` may be installed. `spare` may not: it holds withdrawn winners and autotune candidates that later merges
    need to decide by. `fingerprint` holds the whole components, `producers` facts such as the torch version (never a
    host, a user or a path), `cold` recorded cold seconds by name. `generation` and `parent` are the publisher's.
    `schema` is that of the newest document it was read from: one above `SCHEMA` may say more than is here.
    """

    namespace: str
    fingerprint: Mapping[str, Any]
    fingerprint_id: str
    entries: tuple[Entry, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    tombstones: tuple[Tombstone, ...] = ()
    producers: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0
    parent: str | None = None
    cold: Mapping[str, float] = field(default_factory=dict)
    spare: tuple[Entry, ...] = ()
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        reasons: dict[str, str] = {}
        for tombstone in sorted(self.tombstones, reverse=True):
            reasons[tombstone.raw_digest] = tombstone.reason
        entries, spare = _decide((*self.entries, *self.spare), reasons.keys())
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "spare", spare)
        object.__setattr__(self, "tombstones", tuple(Tombstone(*pair) for pair in sorted(reasons.items())))

    def __repr__(self) -> str:
        return (
            f"<Bundle {self.namespace}/{self.fingerprint_id[:12]} generation {self.generation}: "
            f"{len(self.entries)} artifacts, {len(self.coverage.units)} units, {len(self.coverage.shapes)} shapes>"
        )

    @property
    def withdrawn(self) -> frozenset[str]:
        """Raw digests that must not be used."""
        return frozenset(tombstone.raw_digest for tombstone in self.tombstones)

    @property
    def blobs(self) -> frozenset[str]:
        """Stored digests that a store must keep for this bundle; withdrawn ones are not among them."""
        gone = self.withdrawn
        kept = (entry for entry in (*self.entries, *self.spare) if entry.raw_digest not in gone)
        return frozenset(entry.stored_digest for entry in kept if entry.inline is None)

    def epoch(self, identity: Identity) -> int:
        """Return the epoch for a new entry of `identity`: one higher than before if all there was is withdrawn."""
        return self._epochs.get(identity, 0)

    @cached_property
    def _epochs(self) -> Mapping[Identity, int]:
        live = {entry.identity for entry in self.entries}
        epochs: dict[Identity, int] = {}
        for entry in (*self.entries, *self.spare):
            following = entry.epoch + (entry.identity not in live)
            epochs[entry.identity] = max(following, epochs.get(entry.identity, 0))
        return epochs


def merge(first: Bundle, second: Bundle) -> Bundle:
    """Return the union of both bundles' contents: commutative, associative and idempotent.

    The generation is the higher one, with its parent; whoever publishes sets both anew.

    Raises:
        ConfigurationError: the bundles belong to different namespaces or fingerprints.
    """
    if (first.namespace, first.fingerprint_id) != (second.namespace, second.fingerprint_id):
        raise ConfigurationError(
            f"cannot merge {first!r} with {second!r}: not the same namespace and fingerprint"
        )
    newest = max(first, second, key=lambda bundle: (bundle.generation, bundle.parent or ""))
    return Bundle(
        namespace=first.namespace,
        fingerprint=first.fingerprint,
        fingerprint_id=first.fingerprint_id,
        entries=first.entries + second.entries,
        coverage=merge_coverage(first.coverage, second.coverage),
        tombstones=first.tombstones + second.tombstones,
        producers=_smallest(first.producers, second.producers, canonical.dumps),
        generation=newest.generation,
        parent=newest.parent,
        cold=_smallest(first.cold, second.cold, measured),
        spare=first.spare + second.spare,
        schema=max(first.schema, second.schema),
    )


def complete(bundle: Bundle) -> Bundle:
    """Return what of `bundle` can be published: whatever names something that is not there is left out.

    That is aot_autograd entries without one of their inductor partners, units that need an artifact which is not in the
    bundle, and shapes with a unit that is not.
    """
    partners: dict[str, set[str]] = {}
    for entry in bundle.entries:
        if entry.kind == "inductor":
            partners.setdefault(entry.key, set()).add(entry.guards)
    entries = tuple(
        entry for entry in bundle.entries if all(_present(text, partners) for text in entry.partners)
    )
    here = {entry.identity.id for entry in entries}
    units = tuple(unit for unit in bundle.coverage.units if here.issuperset(unit.needs))
    known = {unit.id for unit in units}
    shapes = tuple(row for row in bundle.coverage.shapes if row.unit_ids and known.issuperset(row.unit_ids))
    return replace(bundle, entries=entries, coverage=Coverage(units, shapes))


def plan_inline(entries: Iterable[Entry], *, used: int = 0) -> frozenset[Identity]:
    """Choose the entries whose stored bytes travel inside the document: the smallest, until it holds enough of them.

    `used` is how many inline bytes the document holds already.
    """
    chosen = set()
    for entry in sorted(entries, key=lambda entry: (entry.stored_size, entry.identity)):
        used += entry.stored_size
        if entry.stored_size > INLINE_BYTES or used > INLINE_TOTAL_BYTES:
            break
        chosen.add(entry.identity)
    return frozenset(chosen)


def _present(partner: str, guards_by_key: Mapping[str, set[str]]) -> bool:
    """Tell whether torch would find `partner`: it takes an unguarded artifact, or one with exactly these guards."""
    wanted = Reference.parse(partner)
    found = guards_by_key.get(wanted.key, set())
    return bool(found) and (not wanted.guards or "" in found or wanted.guards in found)


def _decide(
    entries: Iterable[Entry], withdrawn: Iterable[str]
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Split entries into the live winners and what must be kept to decide later, both sorted by identity."""
    gone = frozenset(withdrawn)
    candidates: dict[Identity, list[Entry]] = {}
    for entry in entries:
        # Withdrawn bytes must not travel in the document any more.
        kept = replace(entry, inline=None) if entry.inline is not None and entry.raw_digest in gone else entry
        candidates.setdefault(kept.identity, []).append(kept)
    ranked = {
        identity: _ranked(found, CANDIDATES if identity.kind == "autotune" else 1)
        for identity, found in sorted(candidates.items())
    }
    winning = {
        best[0].contribution
        for identity, best in ranked.items()
        if identity.kind == "inductor" and best[0].raw_digest not in gone
    }
    live: list[Entry] = []
    spare: list[Entry] = []
    for best in ranked.values():
        usable = [entry for entry in best if entry.raw_digest not in gone]
        # Stable: among candidates of winning contributions, and among the others, rank decides.
        usable.sort(key=lambda entry: entry.contribution not in winning)
        live += usable[:1]
        spare += [entry for entry in best if entry not in usable[:1]]
    return tuple(live), tuple(spare)


def _ranked(entries: list[Entry], limit: int) -> list[Entry]:
    """Return the best `limit` entries, one per contribution and raw digest, best first."""
    if len(entries) == 1:
        return entries
    best: dict[tuple[str, str], Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.rank):
        best.setdefault((entry.contribution, entry.raw_digest), entry)
    return list(best.values())[:limit]


def _smallest(first: Mapping[str, Any], second: Mapping[str, Any], key: Any) -> dict[str, Any]:
    """Return the union of two mappings; where both have a name, the smaller value by `key`."""
    names = sorted({*first, *second})
    return {
        name: min((values[name] for values in (first, second) if name in values), key=key) for name in names
    }
