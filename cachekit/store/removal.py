"""Removing from a directory store: files that nobody needs, groups out of a bundle, whole profiles.

Whoever calls has the namespaces to himself (`cachekit.store.guards`); the profiles are claimed here, one at a time,
and one that is in use is left as it is. The order makes every prefix a whole store: new document, head, older
documents, and only then, by the next look at the store, what no document names any more. A profile goes in one step,
by renaming its folder. A process that dies in between leaves files that nobody needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cachekit.bundle import eviction
from cachekit.bundle.bundle import Bundle
from cachekit.bundle.document import from_payload, to_payload
from cachekit.bundle.eviction import Member
from cachekit.errors import CachekitError, StoreError
from cachekit.store import files, guards
from cachekit.store.base import Head
from cachekit.store.holdings import GONE, File, Holdings, Profile
from cachekit.store.local import DirectoryStore

if TYPE_CHECKING:
    from cachekit.bundle.signing import SigningKey
    from cachekit.store.seen import Seen


class Remover:
    """Removes below one root. What cannot be removed is told in `problems` and keeps nothing else from going."""

    def __init__(self, root: Path, seen: Callable[[str], Seen] | None) -> None:
        self.problems: list[str] = []
        self.bundles: dict[tuple[str, str], Bundle] = {}
        """What is left of the bundles that hold less now, by namespace and fingerprint id."""
        self.removed: list[tuple[str, str]] = []
        self._root = root
        self._seen = seen

    def sweep(self, holdings: Holdings, waste: Iterable[File]) -> int:
        """Remove files that nobody needs, in this order; the bytes of those that went."""
        never_committed: dict[tuple[str, ...], Profile] = {
            (profile.store.namespace, "profiles", profile.fid): profile
            for namespace in holdings.namespaces
            for profile in namespace.profiles
            if namespace.kept is None and profile.kept is None and profile.head is None
        }
        documents: dict[tuple[str, ...], list[File]] = {key: [] for key in never_committed}
        others: list[File] = []
        for file in waste:
            of_profile = file.parts[1] == "profiles" and not file.parts[2].startswith(GONE)
            of_profile = of_profile and not file.name.startswith(files.TEMPORARY)
            (documents.setdefault(file.parts[:3], []) if of_profile else others).append(file)
        swept = 0
        for key, its in documents.items():
            swept += self._sweep_profile(self._root.joinpath(*key), its, never_committed.get(key))
        swept += self._unlink(others)
        for namespace in holdings.namespaces:
            _finish_removals(namespace.store)
        return swept

    def evict(self, profile: Profile, members: Iterable[Member], key: Callable[[], SigningKey]) -> bool:
        """Take the groups out of a bundle; False if somebody uses it now, or it could not be done."""
        try:
            with guards.alone(profile.folder) as alone:
                if (
                    not alone
                    or profile.bundle is None
                    or profile.store.read_head(profile.fid) != profile.head
                ):
                    return False
                left = eviction.without(profile.bundle, members)
                empty = not (left.entries or left.spare or left.coverage.units or left.tombstones)
                if empty and not self._withdrawn(profile):
                    self._remove(profile)
                else:
                    self._commit(profile, left, key())
                return True
        except CachekitError as exc:
            self.problems.append(exc.diagnostics())
            return False

    # -- one profile, which is ours alone ------------------------------------------------------------------------------

    def _sweep_profile(self, folder: Path, its: list[File], never_committed: Profile | None) -> int:
        try:
            with guards.alone(folder) as alone:
                if not alone:
                    return 0  # somebody began to use it: the next collection finds them again
                if never_committed is None:
                    return self._unlink(its)
                self._remove(never_committed)
                return sum(file.size for file in its)
        except CachekitError as exc:
            self.problems.append(exc.diagnostics())
            return 0

    def _commit(self, profile: Profile, left: Bundle, key: SigningKey) -> None:
        """Make what is left the new generation, and remove the documents that list what is not there any more."""
        from cachekit.bundle import signing

        assert profile.head is not None
        store, fid = profile.store, profile.fid
        new = replace(left, generation=profile.head.generation + 1, parent=profile.head.digest)
        payload = to_payload(new)
        bundle = from_payload(payload)  # what is signed here can be read everywhere
        head = Head(new.generation, store.write_generation(fid, new.generation, signing.sign(payload, key)))
        store.move_head(fid, profile.head, head)
        self.bundles[store.namespace, fid] = bundle
        self._unlink(file for file in profile.files if file.is_document and file.name != head.filename)
        with self._noting():
            if self._seen is not None:
                self._seen(store.namespace).note(store, fid, head, bundle.tombstones)

    def _remove(self, profile: Profile) -> None:
        """Remove the whole folder in one step, and the memory of it. Raises `StoreError`."""
        away = profile.folder.with_name(f"{GONE}{os.urandom(8).hex()}")
        with self._forgetting(profile), files.writing(profile.folder):
            profile.folder.rename(away)
            files.flush_folder(away.parent)
        self.bundles.pop((profile.store.namespace, profile.fid), None)
        if profile.head is not None:
            self.removed.append((profile.store.namespace, profile.fid))
        _finish_removals(profile.store)

    def _forgetting(self, profile: Profile) -> AbstractContextManager[None]:
        if self._seen is None:
            return contextlib.nullcontext()
        return self._seen(profile.store.namespace).forgetting(profile.fid)

    def _withdrawn(self, profile: Profile) -> bool:
        """Whether something was withdrawn that the bundle does not say, so that the profile must not be forgotten."""
        return self._seen is not None and bool(self._seen(profile.store.namespace).withdrawn(profile.fid))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _unlink(self, its: Iterable[File]) -> int:
        swept = 0
        folders: set[Path] = set()
        for file in its:
            path = self._root.joinpath(*file.parts)
            with self._noting(), files.writing(path):
                path.unlink(missing_ok=True)
                swept += file.size
                folders.add(path.parent)
        for folder in folders:
            if folder.name == "generations":  # for good, before the blobs that these documents name
                with self._noting(), files.writing(folder):
                    files.flush_folder(folder)
        return swept

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except CachekitError as exc:
            self.problems.append(exc.diagnostics())


def _finish_removals(store: DirectoryStore) -> None:
    """Delete the folders that were put away, also by a process that died. Never raises: the next one goes on."""
    with contextlib.suppress(OSError, StoreError), os.scandir(store.folder / "profiles") as entries:
        for entry in entries:
            if entry.name.startswith(GONE):
                shutil.rmtree(entry.path, ignore_errors=True)
