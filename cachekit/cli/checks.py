"""What ``verify`` checks of one profile, in the order in which a session relies on it. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachekit.bundle import canonical, scan, signing
from cachekit.bundle.artifact import Artifact, check_key, guards_of, references_of
from cachekit.bundle.bundle import Bundle, Entry, complete
from cachekit.cli.reading import loaded
from cachekit.errors import CachekitError, CorruptError, NotFoundError

if TYPE_CHECKING:
    from rich.progress import Progress

    from cachekit.cli.shelf import Shelf


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be: in which fingerprint, where in it, and what."""

    id: str
    where: str
    code: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The four texts by name."""
        return {"id": self.id, "where": self.where, "code": self.code, "message": self.message}


class Check:
    """Collects over profiles. ``problems`` are wrong; ``notes`` are only worth knowing."""

    def __init__(self, shelf: Shelf, bar: Progress) -> None:
        self.problems: list[Finding] = []
        self.notes: list[Finding] = []
        self.bundles = 0
        self.artifacts = 0
        self.raw_bytes = 0
        self._shelf = shelf
        self._bar = bar
        self._fid = ""

    def profile(self, fid: str) -> None:
        """Check everything below one fingerprint; one problem does not hide another."""
        self._fid = fid
        self._components()
        try:
            bundle = self._shelf.bundle(fid)
        except CachekitError as exc:
            self._problem("bundle", exc)
            return
        if bundle is None:
            kept = len(self._shelf.store.generations(fid))
            self._note("head", f"nothing was ever committed; {kept} documents wait for a head")
            return
        self.bundles += 1
        self._completeness(bundle)
        self._contributions(bundle)
        self._artifacts(bundle)

    def _components(self) -> None:
        try:
            if self._shelf.fingerprint(self._fid) is None:
                raise NotFoundError("the components of this fingerprint are missing")
        except CachekitError as exc:
            self._problem("profile.json", exc)

    def _completeness(self, bundle: Bundle) -> None:
        """What the bundle names and does not have."""
        whole = complete(bundle)
        kept = {entry.identity for entry in whole.entries}
        for entry in bundle.entries:
            if entry.identity not in kept:
                self._incomplete(_name(entry), "a partner that it looks up is not in the bundle")
        for unit in set(bundle.coverage.units) - set(whole.coverage.units):
            self._incomplete(f"unit {unit.id[:12]}", "an artifact that it needs is not in the bundle")
        for row in set(bundle.coverage.shapes) - set(whole.coverage.shapes):
            self._incomplete(f"shape {row.shape.label}", "one of its units is not in the bundle")

    def _incomplete(self, where: str, message: str) -> None:
        self.problems.append(Finding(self._fid, where, "incomplete", message))

    def _artifacts(self, bundle: Bundle) -> None:
        entries = {entry.identity: entry for entry in bundle.entries}
        for part in loaded(self._bar, self._shelf.store, bundle):
            for problem in part.problems:
                self._problem(_name(entries[problem.identity]), problem.error)
            for artifact in part.artifacts:
                self._artifact(artifact, entries[artifact.identity])

    def _artifact(self, artifact: Artifact, entry: Entry) -> None:
        """Bytes whose digests are right can still be of another kind than they are filed under."""
        self.artifacts += 1
        self.raw_bytes += len(artifact.data)
        try:
            check_key(artifact.kind, artifact.key)
            scan.check(artifact.kind, artifact.data)
            if guards_of(artifact.kind, artifact.data) != entry.guards:
                raise CorruptError("its guards are not those that the bundle names")
            if artifact.kind == "aot_autograd":
                partners = sorted(map(str, references_of(artifact.data)))
                if partners != list(entry.partners):
                    raise CorruptError("its partners are not those that the bundle names")
        except CachekitError as exc:
            self._problem(_name(entry), exc)

    def _contributions(self, bundle: Bundle) -> None:
        """Each statement is there, signed by the producer it is filed under, and names its artifacts.

        A producer whose key is not trusted here vouches for nothing: whoever merged and signed the bundle does.
        """
        by_statement: dict[tuple[str, str], list[Entry]] = {}
        for entry in bundle.entries:
            by_statement.setdefault((entry.contribution, entry.producer), []).append(entry)
        for (digest, producer), entries in sorted(by_statement.items()):
            where = f"contribution {digest[:12]}"
            try:
                envelope = self._shelf.store.read_contribution(digest)
                key = self._shelf.trusted.get(producer)
                if key is None:
                    self._note(
                        where, f"its producer {producer[:12]} is not trusted here, so it was not checked"
                    )
                    continue
                signed = signing.verify(envelope, {producer: key}, payload_type=signing.CONTRIBUTION_TYPE)
                _check_named(entries, canonical.loads(signed.payload))
            except CachekitError as exc:
                self._problem(where, exc)

    def _problem(self, where: str, error: CachekitError) -> None:
        self.problems.append(Finding(self._fid, where, error.code, str(error)))

    def _note(self, where: str, message: str) -> None:
        self.notes.append(Finding(self._fid, where, "note", message))


def _check_named(entries: list[Entry], statement: object) -> None:
    """Raises `CorruptError` if the statement does not name an entry with its bytes."""
    listed = statement.get("artifacts") if isinstance(statement, Mapping) else None
    named = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, Mapping) and isinstance(one.get("raw"), Mapping):
            named[one.get("id")] = one["raw"].get("sha256")
    for entry in entries:
        if named.get(entry.identity.id) != entry.raw_digest:
            raise CorruptError(f"it does not name {_name(entry)} with these bytes")


def _name(entry: Entry) -> str:
    return f"{entry.kind} {entry.key}"
