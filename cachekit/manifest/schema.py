"""The tables of the manifest, as SQLAlchemy models.

::

    fingerprints ─< bundles ─< artifacts ─┐
                            ─< units ─────┴< unit_artifacts   (what each unit needs)
                            ─< shapes                         (one row per shape and unit)
    uses                                                      (on their own: they outlive a bundle's generations)
    events                                                    (likewise: they outlive what they speak of)

A bundle row is the newest indexed generation of one fingerprint in one namespace; indexing a newer one replaces it with
everything below it. The migrations in ``migrations/manifest`` make these tables, and a test holds both equal.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""SQLite cannot change a constraint that has no name, so each has one."""


class Base(DeclarativeBase):
    """The registry of the manifest's tables."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {str: Text()}


class Fingerprint(Base):
    """The components behind an id."""

    __tablename__ = "fingerprints"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    components: Mapped[dict[str, Any]] = mapped_column(JSON())


class Bundle(Base):
    """The newest indexed generation of a fingerprint's bundle. Times are milliseconds since the epoch."""

    __tablename__ = "bundles"
    __table_args__ = (UniqueConstraint("namespace", "fingerprint_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(String(63))
    fingerprint_id: Mapped[str] = mapped_column(ForeignKey("fingerprints.id", ondelete="CASCADE"), index=True)
    generation: Mapped[int]
    parent: Mapped[str | None]
    newest: Mapped[int] = mapped_column(BigInteger)
    indexed_at: Mapped[int] = mapped_column(BigInteger)
    producers: Mapped[dict[str, Any]] = mapped_column(JSON())
    cold: Mapped[dict[str, Any]] = mapped_column(JSON())
    tombstones: Mapped[list[Any]] = mapped_column(JSON())


class Artifact(Base):
    """One entry of a bundle: identity, sizes in bytes, digests, and where it came from."""

    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("bundle_id", "identity"), Index(None, "kind", "key"))

    id: Mapped[int] = mapped_column(primary_key=True)
    bundle_id: Mapped[int] = mapped_column(ForeignKey("bundles.id", ondelete="CASCADE"))
    identity: Mapped[str] = mapped_column(String(96))
    kind: Mapped[str] = mapped_column(String(32))
    key: Mapped[str] = mapped_column(String(255))
    guards: Mapped[str]
    requires: Mapped[list[Any]] = mapped_column(JSON())
    raw_digest: Mapped[str] = mapped_column(String(64))
    raw_size: Mapped[int] = mapped_column(BigInteger)
    stored_digest: Mapped[str] = mapped_column(String(64))
    stored_size: Mapped[int] = mapped_column(BigInteger)
    inline: Mapped[bool]
    accepted: Mapped[int] = mapped_column(BigInteger)
    contribution: Mapped[str] = mapped_column(String(64))
    producer: Mapped[str]


class Unit(Base):
    """What one compile covers. An id can occur more than once in a bundle, with different needs."""

    __tablename__ = "units"
    __table_args__ = (Index(None, "bundle_id", "unit"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    bundle_id: Mapped[int] = mapped_column(ForeignKey("bundles.id", ondelete="CASCADE"))
    unit: Mapped[str] = mapped_column(String(64))
    dynamic: Mapped[bool]
    signature: Mapped[str]
    guards: Mapped[str]
    seconds: Mapped[float] = mapped_column(Double())


class UnitArtifact(Base):
    """An artifact that a unit needs."""

    __tablename__ = "unit_artifacts"

    unit_id: Mapped[int] = mapped_column(ForeignKey("units.id", ondelete="CASCADE"), primary_key=True)
    artifact_id: Mapped[int] = mapped_column(
        ForeignKey("artifacts.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class Shape(Base):
    """A shape people ask for and one of the units it runs.

    ``variant`` is canonical JSON. Rows of one ``alternative`` belong together: a shape is covered if all units of one
    of its alternatives are there.
    """

    __tablename__ = "shapes"
    __table_args__ = (
        UniqueConstraint("bundle_id", "width", "height", "batch", "variant", "alternative", "unit"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    bundle_id: Mapped[int] = mapped_column(ForeignKey("bundles.id", ondelete="CASCADE"))
    width: Mapped[int]
    height: Mapped[int]
    batch: Mapped[int]
    variant: Mapped[str]
    alternative: Mapped[int]
    unit: Mapped[str] = mapped_column(String(64))


class Use(Base):
    """How many starts ran a unit, and when the last one did. Counted whether or not the bundle is indexed."""

    __tablename__ = "uses"

    namespace: Mapped[str] = mapped_column(String(63), primary_key=True)
    fingerprint_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    unit: Mapped[str] = mapped_column(String(64), primary_key=True)
    starts: Mapped[int]
    last: Mapped[int] = mapped_column(BigInteger)


class Event(Base):
    """Something that happened here. The fingerprint need not be one that is indexed."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(String(64), index=True)
    fingerprint_id: Mapped[str | None] = mapped_column(String(128), index=True)
    data: Mapped[dict[str, Any]] = mapped_column(JSON())
