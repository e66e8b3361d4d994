"""`Manifest`: what bundles, artifacts and shapes this machine has, asked and updated through SQLite.

It sits above the store and is never needed to start warm: whatever it says can be read from the store again
(`Manifest.rebuild`), except for the events. It verifies nothing itself; it indexes bundles that were verified or made
here. Safe to use from several threads and processes at once.

    with Manifest(settings.manifest_path) as manifest:
        for record in manifest.shapes():
            print(record.shape.label, record.seconds)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

from cachekit.errors import CachekitError
from cachekit.manifest import indexing, schema
from cachekit.manifest.engine import mapped, open_engine, set_aside
from cachekit.manifest.queries import artifact_records, bundle_records, shape_records
from cachekit.manifest.records import (
    ArtifactRecord,
    BundleRecord,
    Event,
    FingerprintRecord,
    Rebuilt,
    ShapeRecord,
    UseRecord,
)

if TYPE_CHECKING:
    from types import TracebackType

    from cachekit.bundle.bundle import Bundle
    from cachekit.bundle.signing import PublicKey
    from cachekit.store.base import Store

KEPT_EVENTS = 10_000
"""A diary, not a log: a few megabytes, months of an ordinary machine."""


_USE = ("namespace", "fingerprint_id", "unit")


class Manifest:
    """The local index in one SQLite file, made or migrated when opened.

    Raises `ManifestError` if the file cannot be opened or is something else, `NewerSchemaError` if a newer release made
    it; it is left as it is in both cases. Every method raises `ManifestError` when SQLite does.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._engine = open_engine(self._path)

    def __repr__(self) -> str:
        return f"Manifest({str(self._path)!r})"

    def __enter__(self) -> Manifest:  # noqa: PYI034  typing has Self from 3.11 on
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def set_aside(path: str | PathLike[str]) -> Path | None:
        """Rename a manifest that cannot be opened, so that a new one can be made and rebuilt; returns its new name.

        None if there is no file. Call it only after opening failed with `ManifestError`, never on a newer one's
        `NewerSchemaError`. Raises `ManifestError`.
        """
        return set_aside(Path(path).absolute())

    @property
    def path(self) -> Path:
        """The absolute path of the SQLite file."""
        return self._path

    def close(self) -> None:
        """Let go of the file. No connection outlives a call, so forgetting this leaks nothing."""
        self._engine.dispose()

    # -- writing -------------------------------------------------------------------------------------------------------

    def index(self, bundle: Bundle) -> bool:
        """Make the manifest say what ``bundle`` says about its fingerprint, in one transaction.

        Returns False, and changes nothing, if a newer generation is indexed already: two processes may publish in one
        order and index in the other. A lower generation does count if it holds something newer than what is indexed,
        because then the store was emptied and began again.
        """
        with self._writing() as connection:
            return indexing.index(connection, bundle, now=_now())

    def add_event(self, kind: str, fid: str | None = None, data: Mapping[str, Any] | None = None) -> None:
        """Note that something happened; the oldest beyond `KEPT_EVENTS` are forgotten. ``data`` must be plain JSON."""
        row = schema.Event(at=_now(), kind=kind, fingerprint_id=fid, data=dict(data or {}))
        with self._writing() as connection, Session(connection) as session:
            session.add(row)
            session.flush()
            session.execute(delete(schema.Event).where(schema.Event.id <= row.id - KEPT_EVENTS))

    def add_uses(self, namespace: str, fid: str, units: Iterable[str]) -> None:
        """Count one more start that ran each of the units, now."""
        now = _now()
        with self._writing() as connection:
            for unit in sorted(set(units)):
                first = insert(schema.Use).values(
                    namespace=namespace, fingerprint_id=fid, unit=unit, starts=1, last=now
                )
                again = {"starts": schema.Use.starts + 1, "last": now}
                connection.execute(first.on_conflict_do_update(index_elements=_USE, set_=again))

    def evicted(self, namespace: str, fid: str, units: Iterable[str], *, left: Bundle | None) -> None:
        """Say what an eviction left of a bundle, None for nothing, and count its units anew if they come back."""
        with self._writing() as connection:
            if left is None:
                indexing.forget(connection, namespace, fid)
                indexing.sweep(connection)
            else:
                indexing.index(connection, left, now=_now())
            of = (schema.Use.namespace == namespace, schema.Use.fingerprint_id == fid)
            for unit in sorted(set(units)):
                connection.execute(delete(schema.Use).where(*of, schema.Use.unit == unit))

    def rebuild(self, store: Store, trusted: Mapping[str, PublicKey]) -> Rebuilt:
        """Index every head of ``store`` anew and forget what its namespace no longer has; events stay.

        A bundle that cannot be read or verified is left out and reported; the others are indexed all the same. Raises
        `StoreError` if the store cannot even be listed, and `ManifestError`.
        """
        from cachekit.store.fetch import fetch

        problems: dict[str, str] = {}
        for fid in store.profiles():
            try:
                bundle = fetch(store, fid, trusted)
            except CachekitError as exc:
                problems[fid] = exc.diagnostics()
                continue
            if bundle is not None:
                with self._writing() as connection:
                    indexing.index(connection, bundle, now=_now(), replace=True)
        with self._writing() as connection:
            for fid in indexing.indexed(connection, store.namespace):
                # Asked again, because somebody may have published it after the store was listed.
                if fid in problems or store.read_head(fid) is None:
                    indexing.forget(connection, store.namespace, fid)
            indexing.sweep(connection)
        records = [record for record in self.bundles() if record.namespace == store.namespace]
        return Rebuilt(
            fingerprints=len(records),
            artifacts=sum(record.artifacts for record in records),
            shapes=sum(record.shapes for record in records),
            problems=tuple(sorted(problems.items())),
        )

    # -- asking --------------------------------------------------------------------------------------------------------

    def fingerprints(self) -> list[FingerprintRecord]:
        """Every fingerprint that a bundle is indexed for, by id."""
        with self._reading() as session:
            rows = session.scalars(select(schema.Fingerprint).order_by(schema.Fingerprint.id))
            return [FingerprintRecord(row.id, row.components) for row in rows]

    def bundles(self, fid: str | None = None) -> list[BundleRecord]:
        """The indexed bundles, of one fingerprint or all, by namespace and fingerprint id."""
        with self._reading() as session:
            return bundle_records(session, fid)

    def artifacts(self, fid: str | None = None) -> list[ArtifactRecord]:
        """The artifacts of the indexed bundles, by namespace, fingerprint and identity."""
        with self._reading() as session:
            return artifact_records(session, fid)

    def shapes(self, fid: str | None = None) -> list[ShapeRecord]:
        """The covered shapes, by namespace, fingerprint, width, height, batch and variant.

        A shape that can be run by other units as well is there once for each.
        """
        with self._reading() as session:
            return shape_records(session, fid)

    def uses(self) -> list[UseRecord]:
        """How often and when units were used, by namespace, fingerprint and unit; only of those that ever were."""
        query = select(schema.Use).order_by(schema.Use.namespace, schema.Use.fingerprint_id, schema.Use.unit)
        with self._reading() as session:
            return [
                UseRecord(row.namespace, row.fingerprint_id, row.unit, row.starts, row.last)
                for row in session.scalars(query)
            ]

    def events(self, limit: int = 100, *, kind: str | None = None, fid: str | None = None) -> list[Event]:
        """The newest ``limit`` events, newest first, of one kind or fingerprint if asked for."""
        query = select(schema.Event).order_by(schema.Event.id.desc()).limit(limit)
        if kind is not None:
            query = query.where(schema.Event.kind == kind)
        if fid is not None:
            query = query.where(schema.Event.fingerprint_id == fid)
        with self._reading() as session:
            return [
                Event(row.id, row.at, row.kind, row.fingerprint_id, row.data)
                for row in session.scalars(query)
            ]

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        with self._reading() as session:
            return {
                table.name: session.scalar(select(func.count()).select_from(table)) or 0
                for table in schema.Base.metadata.sorted_tables
            }

    # -- transactions --------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with mapped(self._path, "write"), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        engine = self._engine.execution_options(reads=True)
        with mapped(self._path, "read"), Session(engine) as session:
            yield session


def _now() -> int:
    return time.time_ns() // 1_000_000
