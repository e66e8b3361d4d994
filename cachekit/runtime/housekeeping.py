"""Keeping the store of this machine within ``CACHEKIT_MAX_SIZE``: after a save, and when somebody asks for it.

Joins the store, which is collected, with the manifest, which knows what was used and is told what went. Never on the
path of a start: it takes SQLAlchemy, and up to a second where the store is large.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachekit.errors import CachekitError
from cachekit.logs import Log, said
from cachekit.runtime.forks import unforkable
from cachekit.settings import Settings

if TYPE_CHECKING:
    from cachekit.manifest import Manifest
    from cachekit.store.collect import Collected, Collector, Uses

log = Log("cachekit")

TARGET = 0.9
"""What a collection after a save leaves of the limit, or each save of a full store would have to collect."""

RECOUNT = 16
"""Saves after which a process measures the store anew, because others save, too; and what it waits before it tries
again where everything is in use."""

WAIT_S = 1.0
"""How long a collection after a save waits for others that publish: the next save tries again."""


@dataclass(frozen=True)
class Tidied:
    """What was collected, or would be, and what about it is worth knowing."""

    collected: Collected
    notes: tuple[str, ...] = ()


def look(settings: Settings, *, limit: int | None) -> Tidied:
    """What `tidy` would do now. Raises `StoreError`, `UnsupportedError`."""
    notes: list[str] = []
    found = _collector(settings, notes, limit=limit, target=limit).look()
    return Tidied(found, tuple(notes))


def tidy(
    settings: Settings, *, limit: int | None, target: int | None = None, wait_s: float | None = None
) -> Tidied:
    """Collect the store, and tell the manifest. ``limit`` and ``target`` are bytes, see `Collector`.

    Raises `StoreError` if the store cannot be looked at, `UnsupportedError` where folders cannot be locked.
    """
    from cachekit.store import guards, keys

    notes: list[str] = []
    collector = _collector(settings, notes, limit=limit, target=target)
    patience = guards.TIMEOUT_S if wait_s is None else wait_s
    done = collector.collect(lambda: keys.load_or_create(settings.keys_root), wait_s=patience)
    if done.evicted:
        with _manifest(settings, notes) as manifest:
            if manifest is not None:
                _tell(manifest, done)
    return Tidied(done, tuple(notes))


class Ceiling:
    """The limit as one process watches it: a store is measured by walking it once, then by what is written."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: int | None = None
        self._left = 0

    def after_save(self, written: int) -> tuple[str, ...]:
        """Collect if the store has become too large by ``written`` bytes; what is worth knowing. Never raises."""
        limit = self._settings.max_size
        if limit is None:
            return ()
        try:
            if self._size(written) <= limit:
                return ()
            done = tidy(self._settings, limit=limit, target=int(limit * TARGET), wait_s=WAIT_S)
        except Exception as exc:  # a store that is too large is no reason to trouble anybody
            log.debug("the store was not collected", exc_info=exc)
            return (f"the store was not collected: {said(exc)}",)
        found = done.collected
        # Where all is in use, this is as small as it gets for a while.
        self._known = min(found.after, limit - 1)
        self._left = RECOUNT
        return (_told(found, limit), *done.notes, *found.problems)

    def _size(self, written: int) -> int:
        self._left -= 1
        if self._known is None or self._left < 0:
            self._known, self._left = _size_of(self._settings), RECOUNT
        else:
            self._known += written
            if self._settings.max_size is not None and self._known > self._settings.max_size:
                self._known = _size_of(self._settings)
        return self._known


def _size_of(settings: Settings) -> int:
    from cachekit.store.holdings import size_of

    return size_of(settings.store_root)


def _told(done: Collected, limit: int) -> str:
    units = len({(row.namespace, row.fid, row.unit) for row in done.evicted if row.unit})
    what = f"the store was larger than CACHEKIT_MAX_SIZE ({_mib(limit)}): {units} units were evicted"
    if done.fits:
        return f"{what}, {_mib(done.before - done.after)} freed"
    return f"{what}, and it still has {_mib(done.after)}: what is left is in use or cannot be judged"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _collector(settings: Settings, notes: list[str], *, limit: int | None, target: int | None) -> Collector:
    from cachekit.store import keys
    from cachekit.store.collect import Collector
    from cachekit.store.seen import Seen

    return Collector(
        settings.store_root,
        keys.trusted(settings.keys_root),
        limit=limit,
        target=target,
        uses=_uses(settings, notes) if limit is not None else {},
        seen=lambda namespace: Seen(settings.seen_root, namespace),
    )


def _uses(settings: Settings, notes: list[str]) -> Uses:
    """What the manifest knows of uses; nothing, with a note, where there is none."""
    from cachekit.bundle.eviction import Use

    found: dict[tuple[str, str], dict[str, Use]] = {}
    with _manifest(settings, notes) as manifest:
        for row in manifest.uses() if manifest is not None else ():
            of = found.setdefault((row.namespace, row.fingerprint_id), {})
            of[row.unit] = Use(row.starts, row.last / 1000)
    return found


@contextlib.contextmanager
def _manifest(settings: Settings, notes: list[str]) -> Iterator[Manifest | None]:
    """The manifest, or None where there is none; what is wrong with it becomes a note."""
    if not settings.manifest_path.exists():
        if settings.store_root.exists():
            notes.append(
                "there is no manifest: every unit counts as used once, when its bundle was saved last"
            )
        yield None
        return
    with unforkable():  # a child would inherit SQLite's locks, which SQLite takes for its own
        from cachekit.manifest import Manifest

        opened = None
        try:
            opened = Manifest(settings.manifest_path)
        except CachekitError as exc:
            notes.append(f"the manifest is not used: {exc}")
        try:
            yield opened
        except CachekitError as exc:
            notes.append(f"the manifest is not used: {exc}")
        finally:
            if opened is not None:
                opened.close()


def _tell(manifest: Manifest, done: Collected) -> None:
    left = {(bundle.namespace, bundle.fingerprint_id): bundle for bundle in done.bundles}
    units: dict[tuple[str, str], list[str]] = {}
    for row in done.evicted:
        units.setdefault((row.namespace, row.fid), []).append(row.unit)
    for (namespace, fid), gone in units.items():
        bundle = left.get((namespace, fid))
        named = [unit for unit in gone if unit]
        manifest.evicted(namespace, fid, named, left=bundle)
        generation = bundle.generation if bundle is not None else None
        manifest.add_event("evicted", fid, {"units": len(set(named)), "generation": generation})
