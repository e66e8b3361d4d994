"""What the manifest answers with: frozen values, detached from the database. Times are milliseconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachekit.bundle.artifact import Requires
from cachekit.bundle.coverage import Shape


@dataclass(frozen=True, slots=True)
class FingerprintRecord:
    """A fingerprint that some bundle was indexed for."""

    id: str
    components: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """The newest indexed generation of one fingerprint. Sizes are in bytes, summed over its artifacts."""

    namespace: str
    fingerprint_id: str
    generation: int
    parent: str | None
    indexed_at: int
    artifacts: int
    shapes: int
    raw_bytes: int
    stored_bytes: int
    seconds: float
    """What compiling all of it took those who did, as far as it was measured."""
    producers: Mapping[str, Any] = field(repr=False)
    cold: Mapping[str, Any] = field(repr=False)
    tombstones: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """One entry of a bundle, without its bytes."""

    namespace: str
    fingerprint_id: str
    identity: str
    kind: str
    key: str
    guards: str
    requires: Requires
    raw_digest: str
    raw_size: int
    stored_digest: str
    stored_size: int
    inline: bool
    accepted: int
    contribution: str
    producer: str


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """One compile, and the (kind, key) of the artifacts it needs, sorted."""

    id: str
    dynamic: bool
    signature: str = field(repr=False)
    guards: str
    seconds: float
    needs: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShapeRecord:
    """A covered shape with the units it runs, all of which are there."""

    namespace: str
    fingerprint_id: str
    shape: Shape
    units: tuple[UnitRecord, ...]

    @property
    def needs(self) -> tuple[tuple[str, str], ...]:
        """The (kind, key) of every artifact that one of its units needs, sorted."""
        return tuple(sorted({need for unit in self.units for need in unit.needs}))

    @property
    def seconds(self) -> float:
        """What compiling its units took, as far as it was measured."""
        return seconds_of(self.units)


@dataclass(frozen=True, slots=True)
class UseRecord:
    """How many starts ran a unit, and when the last one did."""

    namespace: str
    fingerprint_id: str
    unit: str
    starts: int
    last: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on this machine."""

    id: int
    at: int
    kind: str
    fingerprint_id: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild found: counts, and per fingerprint that could not be read the reason."""

    fingerprints: int
    artifacts: int
    shapes: int
    problems: tuple[tuple[str, str], ...] = ()


def seconds_of(units: Iterable[UnitRecord]) -> float:
    """Compile seconds of the units; of one that is there several times, with other needs, the smallest measured."""
    measured: dict[str, float] = {}
    for unit in units:
        if unit.seconds > 0:
            measured[unit.id] = min(unit.seconds, measured.get(unit.id, unit.seconds))
    return sum(measured.values())
