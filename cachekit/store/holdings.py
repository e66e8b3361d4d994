"""What a directory store holds, what of it nobody needs, and what may not be touched. Looks, and changes nothing.

A blob or a contribution is needed if a document that stays names its digest anywhere. That is asked of the text of a
document and not of the bundle in it, so that one which cannot be verified here keeps its blobs, too.

What may go is decided by `rubbish`; `cachekit.store.collect` removes it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cachekit.bundle.bundle import SCHEMA, Bundle
from cachekit.errors import CachekitError, NewerSchemaError, NotFoundError, StoreError
from cachekit.store import admission, files, guards
from cachekit.store.base import MAX_DOCUMENT_BYTES, Head, check_namespace, is_digest
from cachekit.store.local import DirectoryStore

if TYPE_CHECKING:
    from cachekit.bundle.signing import PublicKey
    from cachekit.store.seen import Seen

KEPT_GENERATIONS = 3
"""Documents kept of a profile. A writer that finds the newest one damaged builds upon the one before; a third, for the
case that it was the disk. Each further one would only repeat them: a save never takes anything out."""

QUARANTINE_S = 30 * 24 * 3600.0
"""How long damaged files are kept for people to look at."""

GONE = ".gone-"
"""Begins the name of a profile's folder that was put away to be removed. Listings skip it."""

_DIGEST = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class File:
    """A file, its place below the root, its bytes, and when it was last written, in seconds since the epoch."""

    parts: tuple[str, ...]
    size: int
    written: float

    @property
    def name(self) -> str:
        """Its own name."""
        return self.parts[-1]

    @property
    def is_document(self) -> bool:
        """Whether it is a generation document of a profile, by its place and name."""
        return self.parts[-2:-1] == ("generations",) and Head.from_filename(self.name) is not None


@dataclass(frozen=True)
class Profile:
    """One profile. `bundle` is None where there is none that can be read; `kept` tells why nothing of it may go."""

    store: DirectoryStore
    fid: str
    head: Head | None
    bundle: Bundle | None
    kept: str | None
    documents: Mapping[Head, frozenset[str]] = field(repr=False)
    """The digests that each document names."""
    files: tuple[File, ...] = field(repr=False)

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.store.folder / "profiles" / self.fid

    @property
    def saved(self) -> float:
        """When its head was last moved."""
        return max((file.written for file in self.files if file.name == "head.json"), default=0.0)

    def staying(self, *, spares: bool) -> list[Head]:
        """The documents that are needed: the head's and, with ``spares``, those that a writer could fall back on."""
        if self.kept is not None:
            return list(self.documents)
        if self.head is None:
            return []
        older = sorted(
            (head for head in self.documents if head.generation < self.head.generation),
            key=lambda head: (head.generation, head.digest),
        )
        return [*(older[-(KEPT_GENERATIONS - 1) :] if spares else ()), self.head]


@dataclass(frozen=True)
class Namespace:
    """One namespace. ``kept`` tells why nothing in it may go, whatever needs it."""

    store: DirectoryStore
    kept: str | None
    profiles: tuple[Profile, ...] = field(repr=False)
    files: tuple[File, ...] = field(repr=False)
    """Everything that belongs to no profile."""


@dataclass(frozen=True)
class Holdings:
    """Everything below one root; ``problems`` are namespaces that cannot be looked at."""

    root: Path
    total: int
    namespaces: tuple[Namespace, ...] = field(repr=False)
    problems: tuple[str, ...] = ()

    @property
    def profiles(self) -> Iterator[Profile]:
        """Those of all namespaces."""
        return (profile for namespace in self.namespaces for profile in namespace.profiles)


class Surveyor:
    """Looks as often as asked to; documents, which never change, are read once."""

    def __init__(
        self, root: Path, trusted: Mapping[str, PublicKey], *, seen: Callable[[str], Seen] | None = None
    ) -> None:
        self._root = root
        self._trusted = trusted
        self._seen = seen
        self._bundles: dict[tuple[str, str, Head], Bundle] = {}
        self._named: dict[tuple[str, str, Head], frozenset[str]] = {}

    def look(self, busy: Mapping[str, str] | None = None) -> Holdings:
        """The store as it is now. ``busy`` tells why nothing may go in some of the namespaces. Raises `StoreError`."""
        found = walk(self._root)
        inside: dict[str, list[File]] = {}
        for file in found:
            inside.setdefault(file.parts[0], []).append(file)
        namespaces, problems = [], []
        for name in files.folders(self._root):
            try:
                store = DirectoryStore(self._root, check_namespace(name))
                namespaces.append(self._namespace(store, inside.get(name, []), (busy or {}).get(name)))
            except CachekitError as exc:
                problems.append(f"namespace {name}: {exc}")
        return Holdings(self._root, sum(file.size for file in found), tuple(namespaces), tuple(problems))

    def _namespace(self, store: DirectoryStore, inside: list[File], busy: str | None) -> Namespace:
        by_profile: dict[str, list[File]] = {fid: [] for fid in store.profiles()}
        rest: list[File] = []
        for file in inside:
            of = (
                by_profile.get(file.parts[2]) if len(file.parts) > 3 and file.parts[1] == "profiles" else None
            )
            (rest if of is None else of).append(file)
        kept = busy
        profiles = []
        for fid, its in by_profile.items():
            try:
                profile = self._profile(store, fid, tuple(its))
            except NewerSchemaError as exc:
                # What a newer release needs, and where it says so, cannot be known here.
                kept = kept or f"a newer release keeps bundles here: {exc}"
                profile = Profile(store, fid, None, None, str(exc), self._documents(store, fid), tuple(its))
            profiles.append(profile)
        return Namespace(store, kept, tuple(profiles), tuple(rest))

    def _profile(self, store: DirectoryStore, fid: str, its: tuple[File, ...]) -> Profile:
        documents = self._documents(store, fid)
        head, bundle, kept = None, None, None
        try:
            newest = self._seen(store.namespace).highest(fid) if self._seen is not None else None
            head = store.read_head(fid)
            if head is not None:
                bundle = self._bundle(store, fid, head, newest)
            elif newest is not None:
                kept = "its head is missing: the next save builds upon what is left"
        except NewerSchemaError:
            raise
        except CachekitError as exc:
            kept = f"it cannot be read: {exc.diagnostics()}"
        if kept is None and not is_free(store.folder / "profiles" / fid):
            kept = "in use by a live process"
        return Profile(store, fid, head, bundle, kept, documents, its)

    def _bundle(self, store: DirectoryStore, fid: str, head: Head, newest: Head | None) -> Bundle:
        key = (store.namespace, fid, head)
        if key not in self._bundles:
            place = admission.Place(store.namespace, fid, head)
            found = admission.document(store.read_generation(fid, head), place, self._trusted, seen=newest)
            if found.schema > SCHEMA:
                raise NewerSchemaError(f"{place} has schema {found.schema}")
            self._bundles[key] = found
        return self._bundles[key]

    def _documents(self, store: DirectoryStore, fid: str) -> dict[Head, frozenset[str]]:
        found = {}
        for head in store.generations(fid):
            key = (store.namespace, fid, head)
            if key not in self._named:
                path = store.folder / "profiles" / fid / "generations" / head.filename
                try:
                    self._named[key] = named(files.read(path, max_bytes=MAX_DOCUMENT_BYTES))
                except NotFoundError:
                    continue  # removed since it was listed
            found[head] = self._named[key]
        return found


def walk(root: Path) -> list[File]:
    """Every file below the root; what vanishes meanwhile is left out. Raises `StoreError`."""
    found: list[File] = []
    pending: list[tuple[str, tuple[str, ...]]] = [(str(root), ())]
    while pending:
        folder, above = pending.pop()
        with files.reading(Path(folder)):
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        parts = (*above, entry.name)
                        if entry.is_dir(follow_symlinks=False):
                            pending.append((entry.path, parts))
                            continue
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            found.append(File(parts, status.st_size, status.st_mtime))
            except FileNotFoundError:
                continue
    return found


def size_of(root: Path) -> int:
    """Bytes of all files below the root. Raises `StoreError`."""
    return sum(file.size for file in walk(root))


def named(document: bytes) -> frozenset[str]:
    """Everything in a signed document that could be a digest; of one that is damaged, what can still be found."""
    try:
        text = base64.b64decode(json.loads(document)["payload"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = document
    return frozenset(match.decode() for match in _DIGEST.findall(text))


def is_free(folder: Path) -> bool:
    """Whether nobody uses a profile at this moment; False where that cannot be found out."""
    try:
        with guards.alone(folder) as alone:
            return alone
    except StoreError:
        return False


def rubbish(holdings: Holdings, *, now: float, everything: bool) -> list[File]:
    """The files that nobody needs, documents first: what they name must not go before them.

    With ``everything`` also what is kept just in case: older documents, and all that is in quarantine.
    """
    documents: list[File] = []
    others: list[File] = []
    left_over = {path.relative_to(holdings.root).parts for path in files.leftovers(holdings.root, below=True)}
    for namespace in holdings.namespaces:
        everywhere = (*namespace.files, *(file for profile in namespace.profiles for file in profile.files))
        others += [file for file in everywhere if file.parts in left_over]
        if namespace.kept is not None:
            continue
        needed: set[str] = set()
        for profile in namespace.profiles:
            stays = profile.staying(spares=not everything)
            needed.update(*(profile.documents[head] for head in stays if head in profile.documents))
            if profile.kept is None:
                documents += _of_profile(profile, {head.filename for head in stays})
        others += [
            file
            for file in namespace.files
            if _is_rubbish(file.parts[1:], needed, now, everything=everything)
        ]
    return [*{file.parts: file for file in (*documents, *others)}.values()]


def _of_profile(profile: Profile, stays: set[str]) -> list[File]:
    if profile.head is None:  # nothing was ever committed: whoever began died
        return list(profile.files)
    return [file for file in profile.files if file.is_document and file.name not in stays]


def _is_rubbish(parts: tuple[str, ...], needed: set[str], now: float, *, everything: bool) -> bool:
    """Whether nobody needs a file of no profile; ``parts`` begin below the namespace."""
    if parts[0] in ("blobs", "contributions"):
        return is_digest(parts[-1]) and parts[-1] not in needed
    if parts[0] == "quarantine":
        return everything or _set_aside(parts[1]) < now - QUARANTINE_S
    return len(parts) > 2 and parts[0] == "profiles" and parts[1].startswith(GONE)


def _set_aside(name: str) -> float:
    """When a file came into quarantine, in seconds since the epoch; never, for one that somebody else put there."""
    nanoseconds, _, _ = name.partition("-")
    return int(nanoseconds) / 1e9 if nanoseconds.isascii() and nanoseconds.isdecimal() else float("inf")
