"""What ``verify`` checks of one profile, in the order in which a session relies on it. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachekit.bundle.bundle import Bundle, Entry, complete
from cachekit.cli.reading import loaded
from cachekit.errors import CachekitError, CorruptError, NotFoundError, StoreError
from cachekit.store import inspection
from cachekit.store.fetch import read_document

if TYPE_CHECKING:
    from rich.progress import Progress

    from cachekit.cli.shelf import Shelf

PATIENCE_S = 1.0
"""A save moves its head within moments of writing its document; whoever has not by then died."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be: in which fingerprint (none: the store as a whole), where, and what."""

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
        try:
            held = self._shelf.directory.use(fid)
        except StoreError as exc:
            self._problem("profile", exc)
            return
        try:
            self._profile(fid)
        finally:
            if held is not None:
                held.release()

    def _profile(self, fid: str) -> None:
        try:
            bundle = self._shelf.bundle(fid)
        except CachekitError as exc:
            self._components()
            self._problem("bundle", exc)
            self._documents(None)
            return
        if bundle is None:
            self._without_a_head(fid)
            return
        self._components()
        self.bundles += 1
        self._completeness(bundle)
        self._contributions(bundle)
        self._artifacts(bundle)
        self._documents(bundle)

    def _without_a_head(self, fid: str) -> None:
        store = self._shelf.store
        if settled(lambda: store.read_head(fid) is not None or not store.generations(fid)):
            if store.read_head(fid) is None:
                self._note("head", "nothing was ever committed")
            return
        newest = store.generations(fid)[-1].generation
        if newest == 1:  # a head that was ever seen here is missed above this
            self._note(
                "head",
                "a first save did not come to its end: nothing was committed, and the next one will do",
            )
            return
        self._problem("head", CorruptError(f"the head is missing; generation {newest} waits for one"))
        self._documents(None)

    def _components(self) -> None:
        try:
            if self._shelf.fingerprint(self._fid) is None:
                raise NotFoundError("the components of this fingerprint are missing")
        except CachekitError as exc:
            self._problem("profile.json", exc)

    def _documents(self, bundle: Bundle | None) -> None:
        """Older documents are what a damaged one is mended from."""
        store, trusted = self._shelf.store, self._shelf.trusted
        for head in store.generations(self._fid):
            if bundle is not None and head.generation == bundle.generation:
                continue
            try:
                read_document(store, self._fid, head, trusted)
            except NotFoundError:
                continue  # collected since it was listed
            except CorruptError as exc:
                self._problem(f"generation {head.generation}", exc)
            except CachekitError as exc:
                self._note(f"generation {head.generation}", str(exc))

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
                self.artifacts += 1
                self.raw_bytes += len(artifact.data)
                entry = entries[artifact.identity]
                try:
                    inspection.check_description(artifact, entry)
                except CachekitError as exc:
                    self._problem(_name(entry), exc)

    def _contributions(self, bundle: Bundle) -> None:
        """Each statement is there, signed by the producer it is filed under, and names its artifacts."""
        store, trusted = self._shelf.store, self._shelf.trusted
        for (digest, producer), entries in inspection.statements(bundle).items():
            where = f"contribution {digest[:12]}"
            try:
                if not inspection.check_statement(store, digest, producer, entries, trusted):
                    self._note(
                        where, f"its producer {producer[:12]} is not trusted here, so it was not checked"
                    )
            except CachekitError as exc:
                self._problem(where, exc)

    def _problem(self, where: str, error: CachekitError) -> None:
        self.problems.append(Finding(self._fid, where, error.code, str(error)))

    def _note(self, where: str, message: str) -> None:
        self.notes.append(Finding(self._fid, where, "note", message))


def settled(holds: Callable[[], bool]) -> bool:
    """Whether something holds now or within `PATIENCE_S`: a save in progress is no problem."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _name(entry: Entry) -> str:
    return f"{entry.kind} {entry.key}"
