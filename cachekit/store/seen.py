"""The newest head that this machine has seen of each bundle, so that an older one is not taken for the newest.

::

    <root>/<store>/<namespace>/<fingerprint id>.json             the head
    <root>/<store>/<namespace>/<fingerprint id>.withdrawn.json   tombstones seen with it, if there were any

Outside the store: whoever turns a store back must not turn this back with it. A start reads one small file, before it
reads the head, because the memory is written after a head was moved and must never be ahead of the head it is compared
with. It only ever rises, under a lock; `forget` is for who removes a profile on purpose.

A memory that is damaged or cannot be read is as good as none, with a warning: it protects, and must not lock out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cachekit.bundle.bundle import Tombstone
from cachekit.errors import CachekitError, CorruptError, NewerSchemaError, NotFoundError
from cachekit.logs import Log
from cachekit.store import files
from cachekit.store.base import MAX_HEAD_BYTES, Head, Store, check_fingerprint_id, check_namespace, is_digest

log = Log(__name__)

LOCAL = "local"
"""The name of the store in ``CACHEKIT_DIR`` among the stores that are remembered."""

_MAX_TOMBSTONES_BYTES = 64 * 2**20


class Seen:
    """What was seen of one namespace of one store. Making one touches nothing."""

    def __init__(self, root: str | os.PathLike[str], namespace: str, *, store: str = LOCAL) -> None:
        self._folder = Path(root).absolute() / check_namespace(store) / check_namespace(namespace)
        self._told: set[str] = set()

    @property
    def folder(self) -> Path:
        """Where the memory of this namespace is kept."""
        return self._folder

    def path(self, fid: str) -> Path:
        """The file that remembers the head of a profile."""
        return self._folder / f"{check_fingerprint_id(fid)}.json"

    def highest(self, fid: str) -> Head | None:
        """The newest head seen; None if there was none, or if the memory of it is lost. Call it before `read_head`."""
        try:
            return self.read(fid)
        except CachekitError as exc:
            level = logging.DEBUG if fid in self._told else logging.WARNING
            self._told.add(fid)
            log.log(level, "cachekit cannot tell whether %s is the newest: %s", fid, exc)
            return None

    def read(self, fid: str) -> Head | None:
        """As `highest`, but raises `CorruptError`, `NewerSchemaError` or `StoreError` for a memory that is lost."""
        path = self.path(fid)
        try:
            return Head.from_bytes(files.read(path, max_bytes=MAX_HEAD_BYTES))
        except NotFoundError:
            return None
        except (CorruptError, NewerSchemaError) as exc:
            raise type(exc)(f"{path}: {exc}") from exc

    def withdrawn(self, fid: str) -> tuple[Tombstone, ...]:
        """The tombstones that were seen with the newest head; none if the memory of them is lost."""
        path = self._withdrawn(fid)
        try:
            value = json.loads(files.read(path, max_bytes=_MAX_TOMBSTONES_BYTES))
            return tuple(_tombstone(digest, reason) for digest, reason in value.items())
        except NotFoundError:
            return ()
        except (CachekitError, ValueError, AttributeError, RecursionError) as exc:
            log.warning("what was withdrawn from %s is forgotten: %s: %s", fid, path, exc)
            return ()

    def note(self, store: Store, fid: str, head: Head, tombstones: Iterable[Tombstone] = ()) -> bool:
        """Remember a head that was verified, unless a newer one is; whether anything was written.

        A head that the store no longer has is not remembered: who removed the profile had it forgotten. Raises
        `StoreError`.
        """
        if not self._is_news(fid, head):
            return False
        with files.locked(self._folder / ".lock"):
            try:
                now = store.read_head(fid)
            except CorruptError:
                return False
            if now is None or now.generation < head.generation or not self._is_news(fid, head):
                return False
            reasons = {stone.raw_digest: stone.reason for stone in (*self.withdrawn(fid), *tombstones)}
            if reasons:  # first: a head must not be remembered without what was withdrawn
                files.write(self._withdrawn(fid), json.dumps(reasons, sort_keys=True).encode())
            files.write(self.path(fid), head.to_bytes())
        return True

    @contextlib.contextmanager
    def forgetting(self, fid: str) -> Iterator[None]:
        """Forget a profile whose head is removed in here: nobody can note it in between. Raises `StoreError`.

        Forgotten first: a head that is remembered and gone looks like a loss.
        """
        with files.locked(self._folder / ".lock"):
            for path in (self.path(fid), self._withdrawn(fid)):
                with files.writing(path):
                    path.unlink(missing_ok=True)
            yield

    def forget(self, fid: str) -> None:
        """Forget a profile that was removed on purpose, after its head is gone. Raises `StoreError`."""
        if os.path.lexists(self.path(fid)) or os.path.lexists(self._withdrawn(fid)):
            with self.forgetting(fid):
                pass

    def known(self) -> list[str]:
        """Every fingerprint id that is remembered, sorted. Raises `StoreError`."""
        found = [name.removesuffix(".json") for name in files.names(self._folder) if name.endswith(".json")]
        return [name for name in found if "." not in name]

    def _is_news(self, fid: str, head: Head) -> bool:
        try:
            remembered = self.read(fid)
        except NewerSchemaError:
            return False  # it says more than this release knows, and would lose that
        except CachekitError:
            return True
        return remembered is None or head.generation > remembered.generation

    def _withdrawn(self, fid: str) -> Path:
        return self._folder / f"{check_fingerprint_id(fid)}.withdrawn.json"


def _tombstone(digest: object, reason: object) -> Tombstone:
    if not isinstance(digest, str) or not is_digest(digest) or not isinstance(reason, str):
        raise ValueError("not a tombstone")
    return Tombstone(digest, reason)
