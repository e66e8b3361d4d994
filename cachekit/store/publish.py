"""Adding to a store: what one process produced becomes part of a new generation of the bundle.

The order of writing is that of the store layout: blobs, the signed statement of what is contributed, the fingerprint's
components, the generation document, the head. Only the last step makes anything visible, so a writer may die anywhere.
When the head moved meanwhile, the contribution is merged with what is there now and tried again. A save never takes an
artifact out of a bundle; one whose blob was lost is replaced (a higher epoch), or it could never be hit again.

`fetch` and `read_artifacts` are offered here as well, so that callers need one module.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cachekit.bundle.artifact import Artifact, Identity
from cachekit.bundle.bundle import Bundle, Entry, complete, merge, plan_inline
from cachekit.bundle.coverage import Coverage
from cachekit.bundle.document import from_payload, to_payload
from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import ConflictError, CorruptError, StoreError, TrustError
from cachekit.identity.fingerprint import Fingerprint
from cachekit.logs import Log
from cachekit.store import admission
from cachekit.store.base import Head, Store, digest_of
from cachekit.store.fetch import Loaded, Problem, fetch, pack, read_artifacts
from cachekit.store.recovery import Present, present
from cachekit.store.statement import Statement

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey, SigningKey
    from cachekit.store.seen import Seen

__all__ = ["Contribution", "Loaded", "Problem", "Published", "fetch", "publish", "read_artifacts"]

log = Log(__name__)

ATTEMPTS = 20
"""Each conflict means that somebody else got through; with jitter, nobody loses this often in a row."""


@dataclass(frozen=True)
class Contribution:
    """What one process adds to the bundle of one fingerprint.

    ``producer`` holds facts such as the torch version, never a host, a user or a path; ``created`` is in milliseconds
    since the epoch; ``cold`` holds seconds by name. Coverage may need artifacts that the bundle already has.
    """

    fingerprint: Fingerprint
    artifacts: tuple[Artifact, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    producer: Mapping[str, Any] = field(default_factory=dict)
    created: int = 0
    cold: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """The bundle as it is now, and what this save added to it; zeros if it had nothing to add."""

    bundle: Bundle
    bytes_written: int
    new_entries: int
    head: Head | None = None
    """What was verified and is committed; None if there is nothing at all."""


def publish(
    store: Store,
    contribution: Contribution,
    key: SigningKey,
    trusted: Mapping[str, PublicKey],
    *,
    earlier: Iterable[str] = (),
    seen: Seen | None = None,
    now: Callable[[], float] = time.time,
    limits: Limits = DEFAULT,
) -> Published:
    """Merge the contribution into the bundle of its fingerprint and commit that as a new generation.

    Writes nothing if the bundle already says all of it. A damaged head or document is put aside and the newest
    generation that verifies is built upon, also in a store that was turned back, as ``seen`` tells. ``earlier`` are ids
    by which older releases knew this fingerprint: the first save under the new one takes over what they keep. ``now``
    gives seconds since the epoch.

    Raises `TrustError` if no key in ``trusted`` signed the present bundle, or ``key`` is none of them;
    `NewerSchemaError` if a newer release wrote it (it is left as it is); `ConflictError` if others kept moving the
    head; `LimitError` if the bundle would become larger than ``limits`` let anybody read; `StoreError`.
    """
    if key.keyid not in trusted:
        raise TrustError(
            f"key {key.keyid} is not trusted here, so nobody could read what it signs: trust it first"
        )
    save = _Save(
        store, contribution, key, accepted=max(0, int(now() * 1000))
    )  # clocks start before 1970, too
    fid = contribution.fingerprint.id
    says_anything = contribution.artifacts or contribution.coverage != Coverage()
    with store.publishing(), store.in_turn(fid) if says_anything else nullcontext():
        return _until_moved(save, store, fid, trusted, earlier=earlier, seen=seen, limits=limits)


def _until_moved(
    save: _Save,
    store: Store,
    fid: str,
    trusted: Mapping[str, PublicKey],
    *,
    earlier: Iterable[str],
    seen: Seen | None,
    limits: Limits,
) -> Published:
    """Merge with what is there and commit, until nobody was quicker."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0, min(1.0, 0.01 * 2**attempt)))  # noqa: S311  jitter is no secret
        found = present(store, fid, trusted, seen=seen, limits=limits)
        base = found.bundle or save.empty
        merged = save.merge(found.bundle or _taken_over(store, save.empty, earlier, trusted, limits))
        if not found.damaged and not adds(base, merged):
            return Published(base, 0, 0, found.head)
        try:
            return save.commit(found, merged, limits)
        except ConflictError as exc:
            log.debug("attempt %d: %s", attempt + 1, exc)
    raise ConflictError(f"head of {fid} moved at each of {ATTEMPTS} attempts to save")


def _taken_over(
    store: Store, empty: Bundle, earlier: Iterable[str], trusted: Mapping[str, PublicKey], limits: Limits
) -> Bundle:
    """The first of the ``earlier`` bundles that is there, under the fingerprint of ``empty``, or ``empty``."""
    for fid in earlier:
        found = fetch(store, fid, trusted, limits=limits)
        if found is not None:
            fingerprint, new_id = empty.fingerprint, empty.fingerprint_id
            return replace(found, fingerprint=fingerprint, fingerprint_id=new_id, generation=0, parent=None)
    return empty


def adds(base: Bundle, merged: Bundle) -> bool:
    """Whether ``merged`` says anything that is worth a new generation.

    Other facts about producers and other seconds of the same compiles are not: every process measures its own.
    """
    return (
        (base.entries, base.spare, base.tombstones) != (merged.entries, merged.spare, merged.tombstones)
        or base.coverage.shapes != merged.coverage.shapes
        or _units(base) != _units(merged)
        or base.cold.keys() != merged.cold.keys()
    )


def _units(bundle: Bundle) -> set[tuple[str, tuple[str, ...], bool]]:
    return {(unit.id, unit.needs, unit.seconds > 0) for unit in bundle.coverage.units}


class _Save:
    """One save, over all its attempts: each artifact is packed once, each blob written once."""

    def __init__(self, store: Store, contribution: Contribution, key: SigningKey, *, accepted: int) -> None:
        self._store = store
        self._contribution = contribution
        self._key = key
        self._accepted = accepted
        self._entries: dict[Identity, Entry] = {}
        self._stated: set[str] = set()
        self._statements: dict[str, bytes] = {}
        self._blobs: dict[str, bytes] = {}
        self._bytes = 0
        self.empty = Bundle(
            namespace=store.namespace,
            fingerprint=contribution.fingerprint.components,
            fingerprint_id=contribution.fingerprint.id,
        )

    def merge(self, base: Bundle) -> Bundle:
        """What ``base`` becomes with this contribution. Packs what is new; writes nothing."""
        epochs = self._epochs(base)
        self._prepare(epochs.keys() - self._entries.keys(), base)
        mine = replace(
            self.empty,
            entries=tuple(
                replace(self._entries[identity], epoch=epoch)
                for identity, epoch in epochs.items()
                if identity in self._entries
            ),
            coverage=self._contribution.coverage,
            producers=dict(self._contribution.producer),
            cold=dict(self._contribution.cold),
        )
        return complete(merge(base, mine))

    def commit(self, found: Present, merged: Bundle, limits: Limits) -> Published:
        """Write everything and move the head. Raises `ConflictError` if somebody else moved it first."""
        fid = merged.fingerprint_id
        payload = to_payload(replace(merged, generation=found.floor + 1, parent=found.parent))
        bundle = from_payload(payload, limits)  # what is signed here can be read everywhere
        self._write_blobs(bundle)
        self._write_statements()
        self._store.write_profile(fid, self._contribution.fingerprint.canonical)
        envelope = self._sign(payload)
        new = Head(bundle.generation, self._store.write_generation(fid, bundle.generation, envelope))
        self._bytes += len(envelope)
        try:
            self._store.move_head(fid, found.head, new)
        except StoreError:
            # An answer that was lost says nothing about what happened; the head does.
            if self._store.read_head(fid) != new:
                raise
        return Published(bundle, self._bytes, self._landed(bundle), new)

    def _epochs(self, base: Bundle) -> dict[Identity, int]:
        """The identities that this contribution adds to ``base``, each with the epoch under which it wins."""
        live = {entry.identity: entry for entry in base.entries}
        spare = {entry.identity for entry in base.spare}
        epochs: dict[Identity, int] = {}
        for artifact in self._contribution.artifacts:
            identity = artifact.identity
            entry = live.get(identity)
            if base.tombstones and artifact.digest in base.withdrawn:
                continue
            if entry is None:
                epochs[identity] = base.epoch(identity) if identity in spare else 0
            elif self._is_lost(entry):
                epochs[identity] = entry.epoch + 1
        if any(identity.kind == "inductor" and identity in live for identity in epochs):
            # The autotune entries of the artifact that was lost belong to its compile, and ours to ours.
            for artifact in self._contribution.artifacts:
                if artifact.kind == "autotune" and artifact.identity in live:
                    epochs.setdefault(artifact.identity, live[artifact.identity].epoch)
        return epochs

    def _is_lost(self, entry: Entry) -> bool:
        """Whether nobody could use it; a blob that was refused is in quarantine, and so not there."""
        if entry.inline is None:
            return not self._store.has_blob(entry.stored_digest)
        try:
            admission.artifact(entry, entry.inline)
        except (CorruptError, TrustError):
            return True
        return False

    def _prepare(self, identities: Iterable[Identity], base: Bundle) -> None:
        """Pack the artifacts, decide which travel inside the document, and state that they are contributed."""
        wanted = set(identities)
        packed: dict[Identity, tuple[Entry, bytes]] = {}
        refused = []
        for artifact in self._contribution.artifacts:
            if artifact.identity in wanted and artifact.identity not in packed:
                try:
                    packed[artifact.identity] = self._pack(artifact)
                except CorruptError as exc:
                    refused.append(f"{artifact.kind} {artifact.key}: {exc}")
        if refused:
            log.warning("cachekit does not save %d artifacts: %s", len(refused), refused[0])
        if self._stated and not packed:
            return
        statement = self._state([entry for entry, _ in packed.values()])
        used = sum(len(entry.inline) for entry in (*base.entries, *base.spare) if entry.inline is not None)
        inline = plan_inline((entry for entry, _ in packed.values()), used=used)
        for identity, (entry, stored) in packed.items():
            within = stored if identity in inline else None
            self._entries[identity] = replace(entry, inline=within, contribution=statement)
            if within is None:
                self._blobs[entry.stored_digest] = stored

    def _pack(self, artifact: Artifact) -> tuple[Entry, bytes]:
        stored = pack(artifact.data)
        entry = Entry.of(artifact, stored, accepted=self._accepted, contribution="", producer=self._key.keyid)
        return entry, stored

    def _state(self, entries: list[Entry]) -> str:
        """Sign what is contributed; the statement's digest is what the entries refer to."""
        statement = Statement(
            namespace=self._store.namespace,
            fingerprint_id=self._contribution.fingerprint.id,
            created=self._contribution.created,
            producer=self._contribution.producer,
            entries=tuple(entries),
            coverage=self._contribution.coverage,
        )
        envelope = statement.sign(self._key)
        digest = digest_of(envelope)
        self._stated.add(digest)
        self._statements[digest] = envelope
        return digest

    def _write_blobs(self, bundle: Bundle) -> None:
        """Write those blobs that the new generation names; an artifact that did not make it needs none."""
        for digest in sorted(bundle.blobs & self._blobs.keys()):
            stored = self._blobs.pop(digest)
            self._bytes += 0 if self._store.has_blob(digest) else len(stored)
            self._store.write_blob(stored)

    def _write_statements(self) -> None:
        for digest in list(self._statements):
            self._store.write_contribution(self._statements[digest])
            self._bytes += len(self._statements.pop(digest))

    def _landed(self, bundle: Bundle) -> int:
        return sum(entry.contribution in self._stated for entry in bundle.entries)

    def _sign(self, payload: bytes) -> bytes:
        from cachekit.bundle import signing

        return signing.sign(payload, self._key)
