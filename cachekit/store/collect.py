"""Collecting a directory store: removing what nobody needs, and evicting until the rest fits.

What is there and what nobody needs is found by `cachekit.store.holdings`, what goes beyond that is decided by
`cachekit.bundle.eviction`, and it is removed by `cachekit.store.removal`; this module has them work on each other's
results, under the locks of `cachekit.store.guards`, and tells what happened.

Whoever reads without holding the profile (`DirectoryStore.use`) may find a document or a blob gone, and must read the
head again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cachekit.bundle import eviction
from cachekit.bundle.bundle import Bundle
from cachekit.bundle.eviction import Group, Member, Plan, Use
from cachekit.errors import StoreError, UnsupportedError
from cachekit.store import files, guards, mounts
from cachekit.store.holdings import File, Holdings, Profile, Surveyor, rubbish, size_of
from cachekit.store.rehearsal import Rehearsal
from cachekit.store.removal import Remover

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey, SigningKey
    from cachekit.store.seen import Seen

ROUNDS = 4
"""What goes is planned by what bundles say of their sizes; the files then say whether it was enough."""

Uses = Mapping[tuple[str, str], Mapping[str, Use]]
"""By namespace and fingerprint id, then by unit id."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A profile that may not be touched, and why; an empty ``fid`` stands for all of the namespace."""

    namespace: str
    fid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """A unit, or an artifact that no unit needs. ``bytes`` is all it needs, what others need, too, included.

    ``last`` is in seconds since the epoch, ``seconds`` what one start saves by it.
    """

    namespace: str
    fid: str
    unit: str
    artifact: str
    shapes: tuple[str, ...]
    seconds: float
    starts: int
    last: float
    bytes: int


@dataclass(frozen=True)
class Collected:
    """What went, or, of `Collector.look`, would go. Sizes are bytes of all files in the store."""

    before: int
    after: int
    limit: int | None
    rubbish: int
    """Bytes that nobody needed."""
    evicted: tuple[Evicted, ...] = ()
    bundles: tuple[Bundle, ...] = field(default=(), repr=False)
    """The bundles that hold less now, in their new generation."""
    removed: tuple[tuple[str, str], ...] = ()
    """Namespace and fingerprint id of the profiles that are gone."""
    kept: tuple[Keep, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether what is left is within the limit."""
        return self.limit is None or self.after <= self.limit


@dataclass(frozen=True)
class _Choice:
    """What goes next: files that nobody needs, and groups."""

    rubbish: list[File]
    plan: Plan
    groups: Mapping[Member, Evicted]

    @property
    def members(self) -> dict[tuple[str, str], list[Member]]:
        """The groups that go, by profile."""
        found: dict[tuple[str, str], list[Member]] = {}
        for member in self.plan.evicted:
            found.setdefault(member.profile, []).append(member)
        return found


class Collector:
    """Collects below one root.

    ``limit`` is in bytes, None for no limit; ``target`` is what is evicted down to once the limit is passed. ``uses``
    tells how often and when units were used; what is not in it counts as used once, when its bundle was saved last.
    ``seen`` gives the memory of a namespace. ``now`` is in seconds since the epoch.
    """

    def __init__(
        self,
        root: Path,
        trusted: Mapping[str, PublicKey],
        *,
        limit: int | None,
        target: int | None = None,
        uses: Uses | None = None,
        seen: Callable[[str], Seen] | None = None,
        now: float | None = None,
    ) -> None:
        self._root = root
        self._limit = limit
        self._target = limit if target is None else target
        self._uses = uses or {}
        self._seen = seen
        self._now = time.time() if now is None else now
        self._surveyor = Surveyor(root, trusted, seen=seen)

    def look(self) -> Collected:
        """What `collect` would do now. Changes nothing. Raises `StoreError`, `UnsupportedError`."""
        _check_supported(self._root)
        holdings = self._surveyor.look()
        rehearsal = Rehearsal(self._seen)
        before, swept = holdings.total, 0
        evicted: list[Evicted] = []
        for _ in range(ROUNDS):
            choice = self._choose(holdings)
            swept += sum(file.size for file in choice.rubbish)
            holdings = rehearsal.sweep(holdings, choice.rubbish)
            if not choice.members:
                break
            holdings = rehearsal.evict(holdings, choice.members)
            evicted += [choice.groups[member] for member in choice.plan.evicted]
            holdings = rehearsal.sweep(holdings, self._choose(holdings).rubbish)
        return Collected(
            before=before,
            after=holdings.total,
            limit=self._limit,
            rubbish=swept,
            evicted=tuple(evicted),
            removed=tuple(rehearsal.removed),
            kept=_kept(holdings),
            problems=holdings.problems,
        )

    def collect(self, key: Callable[[], SigningKey], *, wait_s: float = guards.TIMEOUT_S) -> Collected:
        """Remove what nobody needs and evict what does not fit; ``key`` gives what signs the rest of a bundle.

        What cannot be removed is told in ``problems``, and the rest is collected. A namespace in which others publish
        for longer than ``wait_s`` seconds is left as it is. Raises `StoreError` if the store cannot be looked at,
        `UnsupportedError` where folders cannot be locked.
        """
        _check_supported(self._root)
        self._surveyor.look()  # reads the documents while others may still publish
        remover = Remover(self._root, self._seen)
        evicted: list[Evicted] = []
        with contextlib.ExitStack() as stack:
            busy = self._claim(stack, wait_s)
            holdings = self._surveyor.look(busy)
            before, swept = holdings.total, 0
            for _ in range(ROUNDS):
                choice = self._choose(holdings)
                swept += remover.sweep(holdings, choice.rubbish)
                gone = self._evict(holdings, choice, remover, key)
                evicted += gone
                if not gone:
                    break
                holdings = self._surveyor.look(busy)
                swept_after = remover.sweep(holdings, self._choose(holdings).rubbish)
                holdings = self._surveyor.look(busy) if swept_after else holdings
        return Collected(
            before=before,
            after=size_of(self._root),
            limit=self._limit,
            rubbish=swept,
            evicted=tuple(evicted),
            bundles=tuple(remover.bundles.values()),
            removed=tuple(remover.removed),
            kept=_kept(holdings),
            problems=tuple(dict.fromkeys((*holdings.problems, *remover.problems))),
        )

    def _claim(self, stack: contextlib.ExitStack, wait_s: float) -> dict[str, str]:
        """Keep publishers out of every namespace; why nothing may go in those where that cannot be done."""
        busy = {}
        for name in files.folders(self._root):
            try:
                held = guards.claim(self._root / name, timeout_s=wait_s)
            except StoreError as exc:
                busy[name] = str(exc)
                continue
            if held is None:
                busy[name] = f"others published in it for {wait_s:.0f} s"
            else:
                stack.callback(held.release)
        return busy

    def _choose(self, holdings: Holdings) -> _Choice:
        """What goes next. What is only kept just in case goes before anything that saves seconds."""
        for everything in (False, True):
            waste = rubbish(holdings, now=self._now, everything=everything)
            left = holdings.total - sum(file.size for file in waste)
            if self._limit is None or left <= self._limit:
                return _Choice(waste, Plan((), 0, left), {})
        groups: list[Group] = []
        told: dict[Member, Evicted] = {}
        for namespace in holdings.namespaces:
            statements = {
                file.name: file.size for file in namespace.files if file.parts[1] == "contributions"
            }
            for profile in namespace.profiles:
                made = self._groups(profile, statements, protected=namespace.kept is not None)
                groups += made
                told |= {group.member: _told(group, profile, statements) for group in made}
        planned = eviction.plan(groups, total=left, limit=self._target, now=self._now)
        return _Choice(waste, planned, told)

    def _groups(self, profile: Profile, statements: Mapping[str, int], *, protected: bool) -> list[Group]:
        if profile.bundle is None or profile.head is None:
            return []
        stays = {head.filename for head in profile.staying(spares=False)}
        documents = sum(file.size for file in profile.files if not file.is_document or file.name in stays)
        named = profile.documents.get(profile.head, frozenset())
        papers = {digest: size for digest, size in statements.items() if digest in named}
        return eviction.groups_of(
            profile.bundle,
            self._uses.get((profile.store.namespace, profile.fid), {}),
            unused=Use(1, profile.saved),
            papers={**papers, _documents_of(profile): documents},
            protected=protected or profile.kept is not None,
        )

    def _evict(
        self, holdings: Holdings, choice: _Choice, remover: Remover, key: Callable[[], SigningKey]
    ) -> list[Evicted]:
        """Carry out a plan; what went."""
        gone: list[Evicted] = []
        members = choice.members
        for profile in holdings.profiles:
            its = members.get((profile.store.namespace, profile.fid))
            if its and remover.evict(profile, its, key):
                gone += [choice.groups[member] for member in its]
        return gone


def _check_supported(root: Path) -> None:
    if not guards.SUPPORTED:
        raise UnsupportedError("a store cannot be collected on this platform: its folders cannot be locked")
    unsafe = mounts.unsafe_to_write(root)
    if unsafe is not None:
        raise UnsupportedError(unsafe)


def _kept(holdings: Holdings) -> tuple[Keep, ...]:
    found = []
    for namespace in holdings.namespaces:
        if namespace.kept is not None:
            found.append(Keep(namespace.store.namespace, "", namespace.kept))
        found += [
            Keep(profile.store.namespace, profile.fid, profile.kept)
            for profile in namespace.profiles
            if profile.kept is not None
        ]
    return tuple(found)


def _told(group: Group, profile: Profile, statements: Mapping[str, int]) -> Evicted:
    assert profile.bundle is not None
    member = group.member
    papers = {_documents_of(profile), *statements}
    rows = (row for row in profile.bundle.coverage.shapes if member.unit and member.unit in row.unit_ids)
    return Evicted(
        namespace=member.namespace,
        fid=member.fingerprint_id,
        unit=member.unit,
        artifact=member.artifact,
        shapes=tuple(dict.fromkeys(row.shape.label for row in rows)),
        seconds=group.seconds,
        starts=group.use.starts,
        last=group.use.last,
        bytes=sum(size for piece, size in group.pieces.items() if piece not in papers),
    )


def _documents_of(profile: Profile) -> str:
    return f"documents of {profile.store.namespace}/{profile.fid}"
