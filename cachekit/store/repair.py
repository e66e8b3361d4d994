"""Mending one profile: a new generation of what is whole, above every one that was used or seen.

    1  what to build upon   the committed bundle, else the newest document that is whole (`cachekit.store.recovery`);
                            where nobody trusted signed any, those go to quarantine and an empty bundle is begun
    2  artifacts            those that cannot be admitted, or are not what the bundle says of them, are left out
    3  statements           a lost one of our own is stated again; artifacts of other producers go with theirs
    4  completeness         what needs something that is gone goes, too: artifacts, units, shapes
    5  commit               components, document, head; nothing at all if there was nothing to mend

It adds nothing and destroys nothing: what is damaged goes to quarantine, the rest stays for the next collection.
A file that cannot be read (permission, a failing disk) is no damage: its artifact stays in the bundle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cachekit.bundle import canonical
from cachekit.bundle.bundle import Bundle, Entry, complete
from cachekit.bundle.document import from_payload, to_payload
from cachekit.errors import (
    CachekitError,
    ConflictError,
    CorruptError,
    LimitError,
    NewerSchemaError,
    NotFoundError,
    StoreError,
    TrustError,
)
from cachekit.store import inspection, quarantine
from cachekit.store.base import Head, digest_of
from cachekit.store.fetch import read_artifacts, read_document
from cachekit.store.local import DirectoryStore
from cachekit.store.recovery import Present, present
from cachekit.store.statement import Statement

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey, SigningKey
    from cachekit.store.seen import Seen

ATTEMPTS = 5
"""Each conflict means that a save got through meanwhile, and that saves the profile as well."""

BATCH_BYTES = 64 * 2**20
"""Raw bytes held at once, unless one artifact alone has more."""


@dataclass(frozen=True)
class Repaired:
    """What was mended, in words, and the head that is committed now."""

    done: tuple[str, ...]
    head: Head | None


@dataclass
class _Work:
    """One attempt: the bundle as it becomes, and what was done to it."""

    bundle: Bundle
    done: list[str] = field(default_factory=list)
    looked_at: set[tuple[str, str]] = field(default_factory=set)


class Repair:
    """Mends profiles of one store. ``now`` gives seconds since the epoch."""

    def __init__(
        self,
        store: DirectoryStore,
        key: SigningKey,
        trusted: Mapping[str, PublicKey],
        seen: Seen,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._key = key
        self._trusted = trusted
        self._seen = seen
        self._now = now

    def profile(self, fid: str) -> Repaired:
        """Mend one profile.

        Raises `NewerSchemaError` if its bundle is a newer release's (it is left as it is), `ConflictError` if others
        kept saving, `LimitError`, `StoreError`.
        """
        for _ in range(ATTEMPTS):
            with self._store.publishing():
                try:
                    return self._attempt(fid)
                except ConflictError:
                    continue
        raise ConflictError(f"{fid} was saved to at each of {ATTEMPTS} attempts to repair it")

    def _attempt(self, fid: str) -> Repaired:
        strangers: list[str] = []
        try:
            found = present(self._store, fid, self._trusted, seen=self._seen)
        except TrustError:
            found = self._without_strangers(fid, strangers)
        if found.bundle is None and not found.floor:
            return Repaired((), None)
        base = found.bundle or self._nothing(fid)
        if base is None:
            return self._put_all_aside(fid)
        found = replace(found, damaged=found.damaged or found.bundle is None)
        work = _Work(base, strangers)
        if found.damaged:
            work.done.append(_taken(found, base))
        self._put_documents_aside(fid, work)
        self._leave_out_artifacts(work)
        self._restate(work)
        work.bundle = complete(work.bundle)
        self._tell_incomplete(base, work)
        self._write_components(work)
        head = found.head
        if found.damaged or work.bundle != base:
            head = self._commit(found, work.bundle)
        if head is not None:
            self._seen.note(self._store, fid, head, work.bundle.tombstones)
        return Repaired(tuple(work.done), head)

    def _without_strangers(self, fid: str, done: list[str]) -> Present:
        """Put aside the documents of which nobody trusted signed any; above their generations it goes on."""
        highest = 0
        for head in self._store.generations(fid):
            highest = max(highest, head.generation)
            try:
                read_document(self._store, fid, head, self._trusted)
            except TrustError as exc:
                self._store.quarantine_generation(fid, head, why=str(exc))
                done.append(f"generation {head.generation} was put aside: {exc}")
            except (CorruptError, NotFoundError):
                continue  # what is damaged is told later
        found = present(self._store, fid, self._trusted, seen=self._seen)
        return replace(found, floor=max(found.floor, highest))

    def _put_all_aside(self, fid: str) -> Repaired:
        """A folder in which nothing is whole, or which has a name that its content does not have."""
        why = (
            "nothing in it is whole and trusted, and its components are lost or those of another fingerprint"
        )
        folder = self._store.folder / "profiles" / fid
        place = quarantine.take(folder, self._store.quarantine, why, bounded=False)
        told = () if place is None else (f"its folder was put aside as {place.name}: {why}",)
        return Repaired(told, None)

    def _nothing(self, fid: str) -> Bundle | None:
        """An empty bundle under the stored components, so that generations go on; None if those are lost."""
        try:
            data = self._store.read_profile(fid)
            components = canonical.loads(data) if data is not None else None
        except CorruptError:
            return None
        if not isinstance(components, dict) or canonical.digest(components) != fid:
            return None
        return Bundle(namespace=self._store.namespace, fingerprint=components, fingerprint_id=fid)

    def _put_documents_aside(self, fid: str, work: _Work) -> None:
        """Reading a damaged document puts it into quarantine; older ones are what the newest is mended from."""
        for head in self._store.generations(fid):
            try:
                read_document(self._store, fid, head, self._trusted)
            except LimitError:
                continue
            except CorruptError as exc:
                work.done.append(f"generation {head.generation} was put aside: {exc}")
            except (TrustError, NewerSchemaError, NotFoundError):
                continue  # not damaged, and not ours to touch

    def _leave_out_artifacts(self, work: _Work) -> None:
        """Until all that is left was looked at: leaving one out may bring another candidate up."""
        while True:
            new = [entry for entry in work.bundle.entries if _mark(entry) not in work.looked_at]
            if not new:
                return
            work.looked_at |= {_mark(entry) for entry in new}
            bad: dict[tuple[str, str], str] = {}
            for batch in _batches(new):
                bad |= self._bad(work.bundle, batch)
            self._drop(work, bad)

    def _bad(self, bundle: Bundle, batch: list[Entry]) -> dict[tuple[str, str], str]:
        entries = {entry.identity: entry for entry in batch}
        loaded = read_artifacts(
            self._store, replace(bundle, entries=tuple(batch), spare=()), lambda entry: True
        )
        bad = {
            _mark(entries[problem.identity]): str(problem.error)
            for problem in loaded.problems
            if isinstance(problem.error, (CorruptError, NotFoundError, TrustError))
        }
        for artifact in loaded.artifacts:
            entry = entries[artifact.identity]
            try:
                inspection.check_description(artifact, entry)
            except CachekitError as exc:
                bad[_mark(entry)] = str(exc)
        return bad

    def _restate(self, work: _Work) -> None:
        bad: dict[tuple[str, str], str] = {}
        for (digest, producer), entries in inspection.statements(work.bundle).items():
            try:
                inspection.check_statement(self._store, digest, producer, entries, self._trusted)
            except (CorruptError, NotFoundError, TrustError) as exc:
                damaged = self._store.folder / "contributions" / digest
                quarantine.take(damaged, self._store.quarantine, str(exc), bounded=False)
                if producer != self._key.keyid:
                    bad |= {_mark(entry): f"the statement of its producer: {exc}" for entry in entries}
                    continue
                self._state_again(work, digest, entries)
        self._drop(work, bad)

    def _state_again(self, work: _Work, lost: str, entries: list[Entry]) -> None:
        """Artifacts that we signed for, and whose bytes were just verified, can be signed for again."""
        statement = Statement(
            namespace=self._store.namespace,
            fingerprint_id=work.bundle.fingerprint_id,
            created=int(self._now() * 1000),
            producer=work.bundle.producers,
            entries=tuple(entries),
            coverage=replace(work.bundle.coverage, units=(), shapes=()),
        )
        digest = self._store.write_contribution(statement.sign(self._key))

        def renamed(entry: Entry) -> Entry:
            mine = (entry.contribution, entry.producer) == (lost, self._key.keyid)
            return replace(entry, contribution=digest) if mine else entry

        work.bundle = replace(
            work.bundle,
            entries=tuple(map(renamed, work.bundle.entries)),
            spare=tuple(map(renamed, work.bundle.spare)),
        )
        work.done.append(f"contribution {lost[:12]} was stated again as {digest[:12]}")

    def _drop(self, work: _Work, bad: Mapping[tuple[str, str], str]) -> None:
        for entry in work.bundle.entries:
            if _mark(entry) in bad:
                work.done.append(f"{entry.kind} {entry.key} was left out: {bad[_mark(entry)]}")

        def good(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
            return tuple(entry for entry in entries if _mark(entry) not in bad)

        if bad:
            work.bundle = replace(
                work.bundle, entries=good(work.bundle.entries), spare=good(work.bundle.spare)
            )

    def _tell_incomplete(self, base: Bundle, work: _Work) -> None:
        for what, before, after in (
            ("unit", base.coverage.units, work.bundle.coverage.units),
            ("shape", base.coverage.shapes, work.bundle.coverage.shapes),
        ):
            gone = len(set(before) - set(after))
            if gone:
                work.done.append(
                    f"{gone} {what}{'s' if gone > 1 else ''} that needed what is gone went with it"
                )

    def _write_components(self, work: _Work) -> None:
        wanted = canonical.dumps(work.bundle.fingerprint)
        try:
            there = self._store.read_profile(work.bundle.fingerprint_id)
        except CorruptError:
            there = None
        if there != wanted:
            self._store.write_profile(work.bundle.fingerprint_id, wanted)
            work.done.append("profile.json was made again from the bundle")

    def _commit(self, found: Present, bundle: Bundle) -> Head:
        from cachekit.bundle import signing

        fid, generation = bundle.fingerprint_id, found.floor + 1
        payload = to_payload(replace(bundle, generation=generation, parent=found.parent))
        from_payload(payload)  # what is signed here can be read everywhere
        envelope = signing.sign(payload, self._key)
        new = Head(generation, digest_of(envelope))
        self._store.write_generation(fid, generation, envelope)
        try:
            self._store.move_head(fid, found.head, new)
        except StoreError:
            # An answer that was lost says nothing about what happened; the head does.
            if self._store.read_head(fid) != new:
                raise
        return new


def _mark(entry: Entry) -> tuple[str, str]:
    return entry.identity.id, entry.stored_digest


def _taken(found: Present, base: Bundle) -> str:
    if found.bundle is None:
        return "no document was whole: the bundle is empty now"
    return f"the bundle was rebuilt from generation {base.generation}, the newest that is whole"


def _batches(entries: list[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    used = 0
    for entry in entries:
        if batch and used + entry.raw_size > BATCH_BYTES:
            yield batch
            batch, used = [], 0
        batch.append(entry)
        used += entry.raw_size
    if batch:
        yield batch
