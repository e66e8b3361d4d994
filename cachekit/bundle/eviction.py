"""What goes when a store is too large: the least valuable compiles, whole, until the rest fits.

Pure: given what is stored, how much each part was used and what may not be touched, `plan` says what goes, and
`without` what a bundle is then. Reading a store, locking it and deleting are the store's business.

A *group* is what goes together: a unit with the shape rows that name it, or one artifact that no unit needs. Groups
share pieces (blobs, documents); a piece is free to go when the last group that needs it goes. The value of a group::

    seconds it saves a start × starts that used it × 0.5 ^ (time since the last use ÷ HALF_LIFE_S) ÷ bytes

where the bytes of a piece are divided among those that need it: counted for each of them, two units that share one
large kernel would both look dear; counted for none, both would look free.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cachekit.bundle.artifact import Reference
from cachekit.bundle.bundle import Bundle, Entry, complete
from cachekit.bundle.coverage import Coverage

HALF_LIFE_S = 7 * 24 * 3600.0
"""A week, the rhythm people work in: what runs once a week never loses more than half before it runs again, and what
an upgrade left behind after a hundred starts is worth less than a single new one seven weeks later."""

UNMEASURED_S = 1.0
"""Seconds of a unit that nobody measured: about the quickest compile there is. Not 0, which would make it worthless."""

NO_UNIT = ""
"""In place of a unit's id, for an artifact that no unit needs."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """Names a group: namespace, fingerprint id and unit id; `artifact` is an identity where `unit` is `NO_UNIT`."""

    namespace: str
    fingerprint_id: str
    unit: str
    artifact: str = ""

    @property
    def profile(self) -> tuple[str, str]:
        """The namespace and the fingerprint id."""
        return self.namespace, self.fingerprint_id


@dataclass(frozen=True, slots=True)
class Use:
    """How often a unit was used, in starts that ran it, and when last, in seconds since the epoch."""

    starts: int
    last: float


@dataclass(frozen=True)
class Group:
    """What goes together. `pieces` maps what it needs to bytes; a piece has the same size wherever it is named."""

    member: Member
    pieces: Mapping[str, int] = field(repr=False)
    seconds: float
    use: Use
    protected: bool = False

    def worth(self, now: float) -> float:
        """Seconds that keeping it is expected to save; 0 for an artifact that no unit needs."""
        age = max(0.0, now - self.use.last)
        return self.seconds * max(1, self.use.starts) * math.pow(0.5, age / HALF_LIFE_S)


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes, least valuable first, how many bytes that frees, and how many are then left."""

    evicted: tuple[Member, ...]
    freed: int
    left: int


def plan(groups: Iterable[Group], *, total: int, limit: int | None, now: float) -> Plan:
    """Choose what goes so that `total` bytes become at most `limit`, or nothing is left that may go and frees any.

    `total` may hold more than the groups do; `now` is in seconds since the epoch. The same groups give the same plan in
    whatever order; a smaller limit only adds to it, and more use never makes a group go that would have stayed.
    """
    chosen = _Choice(groups, now)
    evicted: list[Member] = []
    left = total
    while limit is not None and left > limit:
        group = chosen.next()
        if group is None:
            break
        evicted.append(group.member)
        left -= chosen.drop(group)
    return Plan(tuple(evicted), total - left, left)


class _Choice:
    """The groups that may go, in the order of their value, which falls as others go: the rest has to bear all bytes."""

    def __init__(self, groups: Iterable[Group], now: float) -> None:
        ordered = sorted(groups, key=lambda group: group.member)
        self._now = now
        self._holders: dict[str, set[Member]] = defaultdict(set)
        bound = {piece for group in ordered if group.protected for piece in group.pieces}
        for group in ordered:
            for piece in group.pieces:
                self._holders[piece].add(group.member)
        # What frees nothing, because all it needs is needed by something protected, is not worth losing.
        self._groups = {
            group.member: group
            for group in ordered
            if not group.protected
            and any(size and piece not in bound for piece, size in group.pieces.items())
        }
        self._keys = {member: self._key(group) for member, group in self._groups.items()}
        self._heap = list(self._keys.values())
        heapq.heapify(self._heap)

    def next(self) -> Group | None:
        """The least valuable group, or None if none is left."""
        while self._heap:
            key = heapq.heappop(self._heap)
            if self._keys.get(key[-1]) == key:  # else it went, or has another value by now
                return self._groups[key[-1]]
        return None

    def drop(self, group: Group) -> int:
        """Take the group out; the bytes that nobody needs any more."""
        del self._keys[group.member]
        freed = 0
        heirs: set[Member] = set()
        for piece, size in group.pieces.items():
            holders = self._holders[piece]
            holders.discard(group.member)
            freed += 0 if holders else size
            heirs |= holders
        for member in heirs & self._keys.keys():
            self._keys[member] = self._key(self._groups[member])
            heapq.heappush(self._heap, self._keys[member])
        return freed

    def _key(self, group: Group) -> tuple[float, float, float, Member]:
        """Least valuable first; of equal ones the longest unused, then the largest, then by name."""
        share = sum(group.pieces[piece] / len(self._holders[piece]) for piece in sorted(group.pieces))
        worth = group.worth(self._now)
        return worth / max(share, 1.0), group.use.last, -share, group.member


def groups_of(
    bundle: Bundle,
    uses: Mapping[str, Use],
    *,
    unused: Use,
    papers: Mapping[str, int],
    protected: bool = False,
) -> list[Group]:
    """The groups of one bundle.

    `uses` is by unit id, `unused` what is assumed of the others. `papers` are pieces that any part of the bundle keeps:
    its documents, and contributions under their digests, which only those keep whose artifacts name them.
    """
    entries: dict[str, list[Entry]] = defaultdict(list)
    withdrawn = bundle.withdrawn
    for entry in (*bundle.entries, *bundle.spare):
        if entry.raw_digest not in withdrawn:  # of what is withdrawn no bytes are kept
            entries[entry.identity.id].append(entry)
    partners = _Partners(bundle)
    needed: dict[str, set[str]] = defaultdict(set)
    seconds: dict[str, list[float]] = defaultdict(list)
    for unit in bundle.coverage.units:
        needed[unit.id] |= partners.closure(unit.needs)
        seconds[unit.id] += [unit.seconds] if unit.seconds > 0 else []
    contributions = {entry.contribution for entry in (*bundle.entries, *bundle.spare)}
    shared = {paper: size for paper, size in papers.items() if paper not in contributions}

    def group(unit: str, artifact: str, needs: Collection[str], saved: float, use: Use) -> Group:
        pieces = dict(shared)
        for entry in (entry for need in needs for entry in entries.get(need, ())):
            pieces[_piece(bundle, entry)] = entry.stored_size
            pieces |= {name: papers[name] for name in (entry.contribution,) if name in papers}
        member = Member(bundle.namespace, bundle.fingerprint_id, unit, artifact)
        return Group(member, pieces, saved, use, protected)

    made = [
        group(unit, "", needs, min(seconds[unit], default=UNMEASURED_S), uses.get(unit, unused))
        for unit, needs in needed.items()
    ]
    of_units = set[str]().union(*needed.values())
    loose = sorted({entry.identity.id for entry in bundle.entries} - of_units)
    made += [group(NO_UNIT, need, partners.closure((need,)), 0.0, unused) for need in loose]
    return made or [group(NO_UNIT, "", (), 0.0, unused)]  # an empty bundle has its documents


def without(bundle: Bundle, evicted: Iterable[Member]) -> Bundle:
    """The bundle without these groups: their units and shape rows go, and the artifacts that nothing else needs.

    Other artifacts that no unit needs stay. Tombstones and the entries they withdraw stay, too: what was withdrawn must
    not come back because it was not used. Generation and parent are as before.
    """
    gone = {(member.unit, member.artifact) for member in evicted if member.profile == _profile(bundle)}
    partners = _Partners(bundle)
    units = tuple(unit for unit in bundle.coverage.units if (unit.id, "") not in gone)
    before, after = (
        set[str]().union(*(partners.closure(unit.needs) for unit in some))
        for some in (bundle.coverage.units, units)
    )
    loose = {
        entry.identity.id
        for entry in bundle.entries
        if entry.identity.id not in before and (NO_UNIT, entry.identity.id) not in gone
    }
    kept = after | partners.closure(loose)
    withdrawn = bundle.withdrawn
    known = {unit.id for unit in units}
    rows = tuple(row for row in bundle.coverage.shapes if row.unit_ids and known.issuperset(row.unit_ids))
    return complete(
        replace(
            bundle,
            entries=tuple(entry for entry in bundle.entries if entry.identity.id in kept),
            spare=tuple(
                entry for entry in bundle.spare if entry.identity.id in kept or entry.raw_digest in withdrawn
            ),
            coverage=Coverage(units, rows),
        )
    )


class _Partners:
    """Which inductor artifacts an aot_autograd artifact looks up, so that what needs the one needs the other."""

    def __init__(self, bundle: Bundle) -> None:
        self._looked_up = {entry.identity.id: entry.partners for entry in bundle.entries if entry.partners}
        self._by_key: dict[str, list[str]] = defaultdict(list)
        for entry in bundle.entries:
            if entry.kind == "inductor":
                self._by_key[entry.key].append(entry.identity.id)

    def closure(self, needs: Iterable[str]) -> set[str]:
        """The identities with those of their partners; of a partner that is there for several guards, all."""
        wanted = set(needs)
        for need in tuple(wanted):
            for text in self._looked_up.get(need, ()):
                wanted.update(self._by_key[Reference.parse(text).key])
        return wanted


def _profile(bundle: Bundle) -> tuple[str, str]:
    return bundle.namespace, bundle.fingerprint_id


def _piece(bundle: Bundle, entry: Entry) -> str:
    """What holds the entry's bytes: a blob, which the namespace shares, or a part of this bundle's document."""
    if entry.inline is None:
        return f"{bundle.namespace}/{entry.stored_digest}"
    return f"{bundle.namespace}/{bundle.fingerprint_id}/{entry.identity.id}/{entry.stored_digest}"
