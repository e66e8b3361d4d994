"""What verbs look at: the settings, the local store (for reading only) and the keys it trusts.

Nothing is opened or made before a verb needs it, so an absent folder is as good as an empty one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cachekit.cli.output import Output, reporting
from cachekit.errors import CachekitError, ConfigurationError, CorruptError, NotFoundError
from cachekit.settings import Settings

if TYPE_CHECKING:
    from cachekit.bundle.bundle import Bundle
    from cachekit.bundle.signing import PublicKey
    from cachekit.cli.readonly import ReadOnlyStore
    from cachekit.identity.fingerprint import Fingerprint
    from cachekit.store.guards import Hold
    from cachekit.store.local import DirectoryStore
    from cachekit.store.seen import Seen

_SHOWN_CANDIDATES = 5


class Shelf:
    """One namespace of the local store.

    Raises `ConfigurationError` if the options or the environment are wrong; methods raise what the store raises.
    """

    def __init__(self, out: Output, *, dir: Path | None, namespace: str | None) -> None:
        given = {"CACHEKIT_DIR": dir, "CACHEKIT_NAMESPACE": namespace}
        chosen = {name: str(value) for name, value in given.items() if value is not None}
        self.settings = Settings.from_env({**os.environ, **chosen})
        self._held: Hold | None = None
        for name in self.settings.unknown:
            out.note(f"{name} is set, and nothing reads it")

    @property
    def place(self) -> dict[str, str]:
        """Which store an answer speaks of."""
        return {"dir": str(self.settings.dir), "namespace": self.settings.namespace}

    @cached_property
    def store(self) -> ReadOnlyStore:
        """The store, which looking at does not change."""
        from cachekit.cli.readonly import ReadOnlyStore

        return ReadOnlyStore(self.directory)

    @cached_property
    def directory(self) -> DirectoryStore:
        """The store itself, for verbs that change it."""
        from cachekit.store.local import DirectoryStore

        return DirectoryStore(self.settings.store_root, namespace=self.settings.namespace)

    @cached_property
    def seen(self) -> Seen:
        """The newest generations that this machine has seen."""
        from cachekit.store.seen import Seen

        return Seen(self.settings.seen_root, self.settings.namespace)

    @cached_property
    def trusted(self) -> Mapping[str, PublicKey]:
        """The keys whose signatures count here, by key id."""
        from cachekit.store import keys

        return keys.trusted(self.settings.keys_root)

    @cached_property
    def ids(self) -> list[str]:
        """Every fingerprint id that has anything stored, sorted."""
        return self.store.profiles()

    def relative(self, path: Path) -> str:
        """The path below the folder that all verbs speak of."""
        return str(path.relative_to(self.settings.dir))

    def resolve(self, text: str) -> str:
        """The id that ``text`` is, or is the beginning of.

        Raises `NotFoundError` if no id is, and `ConfigurationError` if several are; it names them.
        """
        found = [fid for fid in self.ids if fid == text] or [fid for fid in self.ids if fid.startswith(text)]
        if not found or not text:
            raise NotFoundError(f"no fingerprint {text!r} in {self.settings.dir} ({self.settings.namespace})")
        if len(found) > 1:
            names = ", ".join(found[:_SHOWN_CANDIDATES]) + (", ..." if len(found) > _SHOWN_CANDIDATES else "")
            raise ConfigurationError(f"{text!r} is the beginning of {len(found)} fingerprints: {names}")
        return found[0]

    def chosen(self, text: str | None) -> list[str]:
        """The id that ``text`` means, or all of them."""
        return self.ids if text is None else [self.resolve(text)]

    def bundle(self, fid: str) -> Bundle | None:
        """The committed bundle, verified; None if nothing was ever committed. Raises as `fetch` does.

        It is not evicted before the next one is asked for, so that its artifacts can be read.
        """
        from cachekit.store.fetch import fetch

        self._held = self.directory.use(fid)
        if self.store.read_head(fid) is None and self.seen.highest(fid) is None:
            return None  # before the keys: where nothing was ever saved there are none
        return fetch(self.store, fid, self.trusted, seen=self.seen)

    def bundles(self) -> tuple[list[Bundle], list[dict[str, str]]]:
        """Every committed bundle, verified, and for each that cannot be read or trusted where, code and message."""
        found, problems = [], []
        for fid in self.ids:
            try:
                bundle = self.bundle(fid)
            except CachekitError as exc:
                problems.append(problem_of(fid, exc))
                continue
            found += [bundle] if bundle is not None else []
        return found, problems

    def fingerprint(self, fid: str) -> Fingerprint | None:
        """The stored components of an id; None if they were never written.

        Raises `CorruptError` if they are those of another one.
        """
        from cachekit.identity.fingerprint import Fingerprint

        data = self.store.read_profile(fid)
        if data is None:
            return None
        found = Fingerprint.from_json(data)
        if found.id != fid:
            raise CorruptError(f"profile.json of {fid} holds the components of {found.id}")
        return found


def problem_of(where: str, error: CachekitError) -> dict[str, str]:
    """What an answer says of something that could not be read."""
    return {"where": where, "code": error.code, "message": error.diagnostics()}


@contextmanager
def opened(
    *, dir: Path | None, namespace: str | None, json: bool, debug: bool
) -> Iterator[tuple[Output, Shelf]]:
    """Run a verb that looks at the store: its output, and what it looks at. Errors end as in `reporting`."""
    with reporting(json=json, debug=debug) as out:
        yield out, Shelf(out, dir=dir, namespace=namespace)
