"""What ``verify --repair`` does, in the order in which one thing needs the other: modes, strange files, keys, profiles,
the memory of generations, the manifest.

Nothing is destroyed: what is taken out of the way goes to a quarantine folder, with the reason. What a newer release
wrote is left alone, and so is what could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cachekit.cli import surroundings
from cachekit.cli.checks import Finding
from cachekit.errors import CachekitError, NewerSchemaError, UnsupportedError
from cachekit.store import files, keys, quarantine

if TYPE_CHECKING:
    from cachekit.cli.shelf import Shelf
    from cachekit.store.local import DirectoryStore
    from cachekit.store.oddities import Oddity


class Mending:
    """Puts right what it can, and keeps what was done and what could not be."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.done: list[Finding] = []
        self.failed: list[Finding] = []

    def surroundings(self) -> None:
        """Modes, things in the place of others, left-overs and keys: what everything else relies on."""
        for _ in range(2):  # a folder that could not be looked into may hold more
            for odd in surroundings.oddities_of(self._shelf):
                self._try("", odd.path, lambda odd=odd: self._odd(odd))
        self._own_key()
        root = self._shelf.settings.keys_root
        for path in keys.public_files(root):
            try:
                keys.read_public(path)
            except UnsupportedError:
                continue  # a whole key, maybe one that a newer release trusts
            except CachekitError as exc:
                self._try("", path, lambda path=path, exc=exc: self._aside(path, str(exc)))
        self._try("", root / "signing.pem", self._trust_own_key)

    def profiles(self, fids: Iterable[str]) -> None:
        """Make a new generation of what is whole of each."""
        from cachekit.store.repair import Repair

        for fid in fids:
            try:
                self._remember_anew(fid)
                root = self._shelf.settings.keys_root
                key = keys.load_or_create(root)
                repair = Repair(self._store(), key, keys.trusted(root), self._shelf.seen)
                for what in repair.profile(fid).done:
                    self.done.append(Finding(fid, "bundle", "repaired", what))
            except CachekitError as exc:
                self.failed.append(Finding(fid, "bundle", exc.code, str(exc)))

    def _store(self) -> DirectoryStore:
        """A store that keeps whatever is taken out of it, however much that is."""
        from cachekit.store.local import DirectoryStore

        settings = self._shelf.settings
        return DirectoryStore(settings.store_root, namespace=settings.namespace, keep_all_damaged=True)

    def manifest(self) -> None:
        """Make it anew from the store; a damaged one is set aside, a newer release's left alone."""
        path = self._shelf.settings.manifest_path
        if not path.exists() and not path.is_symlink():
            return
        self._try("", path, self._rebuild)

    def _odd(self, odd: Oddity) -> None:
        if odd.kind in ("mode", "readable"):
            wanted = 0o700 if odd.path.is_dir() else 0o600
            with files.writing(odd.path):
                odd.path.chmod(wanted, follow_symlinks=True)
            self._did("", odd.path, f"has mode {wanted:04o} now; it {odd.message.partition(':')[0]}")
        elif odd.kind in ("type", "leftover"):
            self._aside(odd.path, odd.message)

    def _own_key(self) -> None:
        path = self._shelf.settings.keys_root / "signing.pem"
        try:
            keys.load(path.parent)
        except CachekitError as exc:
            self._try("", path, lambda exc=exc: self._mend_own_key(path, exc))

    def _mend_own_key(self, path: Path, error: CachekitError) -> None:
        """Too many or too few rights are put right; anything else goes aside, and the next save makes a new key."""
        with files.reading(path):
            found = path.lstat()
        if isinstance(error, UnsupportedError):
            raise error  # a whole key, maybe a newer release's
        if files.is_file(path) and found.st_mode & 0o777 != 0o600:
            with files.writing(path):
                path.chmod(0o600)
            self._did(
                "", path, f"has mode 0600 now; if others may have read it, remove it for a new key ({error})"
            )
            keys.load(path.parent)
        else:
            self._aside(path, str(error))

    def _trust_own_key(self) -> None:
        root = self._shelf.settings.keys_root
        own = keys.load(root)
        if own is not None and own.keyid not in keys.trusted(root):
            self._did("", keys.trust(root, own.public), "this user's own key is trusted again")

    def _remember_anew(self, fid: str) -> None:
        """A memory that cannot be read is put aside; the repair writes a new one."""
        try:
            self._shelf.seen.read(fid)
        except NewerSchemaError:
            raise
        except CachekitError as exc:
            self._aside(self._shelf.seen.path(fid), str(exc), fid)

    def _rebuild(self) -> None:
        from cachekit.cli.rebuild import open_or_replace
        from cachekit.manifest import Manifest

        path = self._shelf.settings.manifest_path
        strange = None if files.is_file(path) else Manifest.set_aside(path)
        manifest, aside = open_or_replace(path)
        aside = strange or aside
        with manifest:
            rebuilt = manifest.rebuild(self._shelf.store, keys.trusted(self._shelf.settings.keys_root))
        told = f"made anew: {rebuilt.fingerprints} fingerprints, {rebuilt.artifacts} artifacts"
        if rebuilt.problems:
            told += f"; {len(rebuilt.problems)} that cannot be read or trusted are left out"
        if aside is not None:
            told += f"; the damaged one is {aside.name}"
        self._did("", path, told)

    def _aside(self, path: Path, why: str, fid: str = "") -> None:
        settings = self._shelf.settings
        keeps_keys = settings.keys_root in path.parents
        home = settings.keys_root if keeps_keys else settings.store_root / settings.namespace
        place = quarantine.take(path, home / "quarantine", why, bounded=False)
        if place is not None:
            self._did(fid, path, f"moved to {self._shelf.relative(place)}: {why}")

    def _try(self, fid: str, path: Path, action: object) -> None:
        assert callable(action)
        try:
            action()
        except CachekitError as exc:
            failed = Finding(fid, self._shelf.relative(path), exc.code, str(exc))
            if failed not in self.failed:
                self.failed.append(failed)

    def _did(self, fid: str, path: Path, what: str) -> None:
        self.done.append(Finding(fid, self._shelf.relative(path), "repaired", what))
