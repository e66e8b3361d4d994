"""Reading the manifest's tables back into records; each inside the caller's session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from cachekit.bundle import canonical
from cachekit.bundle.coverage import Shape as ShapeValue
from cachekit.manifest.records import ArtifactRecord, BundleRecord, ShapeRecord, UnitRecord, seconds_of
from cachekit.manifest.schema import Artifact, Bundle, Shape, Unit, UnitArtifact


def bundle_records(session: Session, fid: str | None) -> list[BundleRecord]:
    """The indexed bundles with their sums, by namespace and fingerprint id."""
    sizes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for bundle_id, raw, stored in session.execute(
        select(Artifact.bundle_id, Artifact.raw_size, Artifact.stored_size).where(
            *_of(Artifact.bundle_id, fid)
        )
    ):
        sizes[bundle_id].append((raw, stored))
    units = _units(session, fid)
    shapes: dict[int, set[ShapeValue]] = defaultdict(set)
    for shape in session.scalars(select(Shape).where(*_of(Shape.bundle_id, fid))):
        shapes[shape.bundle_id].add(_shape(shape))
    return [
        BundleRecord(
            namespace=row.namespace,
            fingerprint_id=row.fingerprint_id,
            generation=row.generation,
            parent=row.parent,
            indexed_at=row.indexed_at,
            artifacts=len(sizes[row.id]),
            shapes=len(shapes[row.id]),
            raw_bytes=sum(raw for raw, _ in sizes[row.id]),
            stored_bytes=sum(stored for _, stored in sizes[row.id]),
            seconds=seconds_of(unit for same in units[row.id].values() for unit in same),
            producers=row.producers,
            cold=row.cold,
            tombstones=tuple((digest, reason) for digest, reason in row.tombstones),
        )
        for row in _bundles(session, fid)
    ]


def artifact_records(session: Session, fid: str | None) -> list[ArtifactRecord]:
    """The artifacts, by namespace, fingerprint id and identity."""
    bundles = {row.id: row for row in _bundles(session, fid)}
    query = select(Artifact).where(*_of(Artifact.bundle_id, fid)).order_by(Artifact.identity)
    found = [
        ArtifactRecord(
            namespace=bundles[row.bundle_id].namespace,
            fingerprint_id=bundles[row.bundle_id].fingerprint_id,
            identity=row.identity,
            kind=row.kind,
            key=row.key,
            guards=row.guards,
            requires=tuple((name, value) for name, value in row.requires),
            raw_digest=row.raw_digest,
            raw_size=row.raw_size,
            stored_digest=row.stored_digest,
            stored_size=row.stored_size,
            inline=row.inline,
            accepted=row.accepted,
            contribution=row.contribution,
            producer=row.producer,
        )
        for row in session.scalars(query)
    ]
    return sorted(found, key=lambda record: (record.namespace, record.fingerprint_id, record.identity))


def shape_records(session: Session, fid: str | None) -> list[ShapeRecord]:
    """The covered shapes with their units, by namespace, fingerprint id and shape."""
    units = _units(session, fid)
    bundles = {row.id: row for row in _bundles(session, fid)}
    query = (
        select(Shape)
        .where(*_of(Shape.bundle_id, fid))
        .order_by(Shape.width, Shape.height, Shape.batch, Shape.variant, Shape.alternative, Shape.unit)
    )
    grouped: dict[tuple[int, ShapeValue, int], list[UnitRecord]] = {}
    for row in session.scalars(query):
        key = (row.bundle_id, _shape(row), row.alternative)
        grouped.setdefault(key, []).extend(units[row.bundle_id].get(row.unit, ()))
    found = [
        ShapeRecord(bundles[bundle_id].namespace, bundles[bundle_id].fingerprint_id, shape, tuple(used))
        for (bundle_id, shape, _), used in grouped.items()
    ]
    return sorted(found, key=lambda record: (record.namespace, record.fingerprint_id))


def _bundles(session: Session, fid: str | None) -> Sequence[Bundle]:
    query = select(Bundle).order_by(Bundle.namespace, Bundle.fingerprint_id)
    if fid is not None:
        query = query.where(Bundle.fingerprint_id == fid)
    return session.scalars(query).all()


def _units(session: Session, fid: str | None) -> dict[int, dict[str, list[UnitRecord]]]:
    """Unit records by bundle row and unit id."""
    needs: dict[int, list[tuple[str, str]]] = defaultdict(list)
    query = (
        select(UnitArtifact.unit_id, Artifact.kind, Artifact.key)
        .join(Artifact, Artifact.id == UnitArtifact.artifact_id)
        .where(*_of(Artifact.bundle_id, fid))
        .order_by(Artifact.kind, Artifact.key)
    )
    for unit_id, kind, key in session.execute(query):
        needs[unit_id].append((kind, key))
    found: dict[int, dict[str, list[UnitRecord]]] = defaultdict(lambda: defaultdict(list))
    for row in session.scalars(select(Unit).where(*_of(Unit.bundle_id, fid)).order_by(Unit.id)):
        record = UnitRecord(
            row.unit, row.dynamic, row.signature, row.guards, row.seconds, tuple(needs[row.id])
        )
        found[row.bundle_id][row.unit].append(record)
    return found


def _of(bundle_id: Any, fid: str | None) -> list[ColumnElement[bool]]:
    """What narrows a query over rows of bundles to one fingerprint, if one is given."""
    return [] if fid is None else [bundle_id.in_(select(Bundle.id).where(Bundle.fingerprint_id == fid))]


def _shape(row: Shape) -> ShapeValue:
    return ShapeValue.of(row.width, row.height, row.batch, **canonical.loads(row.variant.encode()))
