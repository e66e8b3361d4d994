"""Writing a bundle into the manifest's tables, and taking one out; each inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, not_, select

from cachekit.bundle import canonical
from cachekit.manifest.schema import Artifact, Base, Fingerprint, Shape, Unit, UnitArtifact
from cachekit.manifest.schema import Bundle as BundleRow

if TYPE_CHECKING:
    from cachekit.bundle.bundle import Bundle


def index(connection: Connection, bundle: Bundle, *, now: int, replace: bool = False) -> bool:
    """Replace what is indexed of the bundle's fingerprint; False if what is there is newer and ``replace`` is not set.

    ``now`` is in milliseconds since the epoch.
    """
    newest = max((entry.accepted for entry in bundle.entries), default=0)
    where = (BundleRow.namespace == bundle.namespace, BundleRow.fingerprint_id == bundle.fingerprint_id)
    old = connection.execute(select(BundleRow.generation, BundleRow.indexed_at).where(*where)).first()
    if old is not None and not replace and old.generation > bundle.generation and newest <= old.indexed_at:
        return False
    connection.execute(delete(BundleRow).where(*where))
    known = select(Fingerprint.id).where(Fingerprint.id == bundle.fingerprint_id)
    if connection.scalar(known) is None:
        components = canonical.loads(canonical.dumps(bundle.fingerprint))
        connection.execute(insert(Fingerprint).values(id=bundle.fingerprint_id, components=components))
    bundle_id = _next(connection, BundleRow)
    connection.execute(
        insert(BundleRow).values(id=bundle_id, newest=newest, indexed_at=now, **_summary(bundle))
    )
    artifact_ids = _insert_artifacts(connection, bundle, bundle_id)
    _insert_units(connection, bundle, bundle_id, artifact_ids)
    _insert(connection, Shape, _shapes(bundle, bundle_id))
    return True


def indexed(connection: Connection, namespace: str) -> set[str]:
    """The fingerprint ids that have a bundle indexed in the namespace."""
    return set(connection.scalars(select(BundleRow.fingerprint_id).where(BundleRow.namespace == namespace)))


def forget(connection: Connection, namespace: str, fid: str) -> None:
    """Remove a bundle and everything below it."""
    connection.execute(
        delete(BundleRow).where(BundleRow.namespace == namespace, BundleRow.fingerprint_id == fid)
    )


def sweep(connection: Connection) -> None:
    """Remove fingerprints that no bundle speaks of any more."""
    used = select(BundleRow.id).where(BundleRow.fingerprint_id == Fingerprint.id).exists()
    connection.execute(delete(Fingerprint).where(not_(used)))


def _summary(bundle: Bundle) -> dict[str, Any]:
    """The bundle's own columns; mappings and tuples become plain JSON."""
    plain = {
        "producers": bundle.producers,
        "cold": bundle.cold,
        "tombstones": [[stone.raw_digest, stone.reason] for stone in bundle.tombstones],
    }
    return {
        "namespace": bundle.namespace,
        "fingerprint_id": bundle.fingerprint_id,
        "generation": bundle.generation,
        "parent": bundle.parent,
        **canonical.loads(canonical.dumps(plain)),
    }


def _insert_artifacts(connection: Connection, bundle: Bundle, bundle_id: int) -> dict[str, int]:
    first = _next(connection, Artifact)
    rows: list[dict[str, Any]] = [
        {
            "id": first + offset,
            "bundle_id": bundle_id,
            "identity": entry.identity.id,
            "kind": entry.kind,
            "key": entry.key,
            "guards": entry.guards,
            "requires": [list(pair) for pair in entry.requires],
            "raw_digest": entry.raw_digest,
            "raw_size": entry.raw_size,
            "stored_digest": entry.stored_digest,
            "stored_size": entry.stored_size,
            "inline": entry.inline is not None,
            "accepted": entry.accepted,
            "contribution": entry.contribution,
            "producer": entry.producer,
        }
        for offset, entry in enumerate(bundle.entries)
    ]
    _insert(connection, Artifact, rows)
    return {row["identity"]: row["id"] for row in rows}


def _insert_units(
    connection: Connection, bundle: Bundle, bundle_id: int, artifact_ids: dict[str, int]
) -> None:
    first = _next(connection, Unit)
    units = list(enumerate(bundle.coverage.units, start=first))
    rows: list[dict[str, Any]] = [
        {
            "id": row_id,
            "bundle_id": bundle_id,
            "unit": unit.id,
            "dynamic": unit.dynamic,
            "signature": unit.signature,
            "guards": unit.guards,
            "seconds": unit.seconds,
        }
        for row_id, unit in units
    ]
    _insert(connection, Unit, rows)
    needs = [
        {"unit_id": row_id, "artifact_id": artifact_ids[need]}
        for row_id, unit in units
        for need in unit.needs
        if need in artifact_ids
    ]
    _insert(connection, UnitArtifact, needs)


def _shapes(bundle: Bundle, bundle_id: int) -> Iterator[dict[str, Any]]:
    alternatives: dict[Any, int] = {}
    for row in bundle.coverage.shapes:
        alternative = alternatives[row.shape] = alternatives.get(row.shape, -1) + 1
        for unit in row.unit_ids:
            yield {
                "bundle_id": bundle_id,
                "width": row.shape.width,
                "height": row.shape.height,
                "batch": row.shape.batch,
                "variant": canonical.dumps(dict(row.shape.variant)).decode(),
                "alternative": alternative,
                "unit": unit,
            }


def _next(connection: Connection, table: type[Artifact | BundleRow | Unit]) -> int:
    """The next free id; nobody else can take it, because the transaction holds the write lock."""
    return (connection.scalar(select(func.max(table.id))) or 0) + 1


def _insert(connection: Connection, table: type[Base], rows: Any) -> None:
    values = list(rows)
    if values:  # an empty list would insert one row of defaults
        connection.execute(insert(table), values)
