"""What a bundle covers: units (one compile each) and the shapes people know them by.

A static unit covers exactly one call signature of the denoiser. A dynamic unit covers every signature whose
structure matches and whose sizes satisfy the guards that were recorded with it; `accepts` decides that without
torch and without ``eval`` (see ``guards.py``), and what it cannot decide is not covered.

Everything here is a value. Merging is a set union, so it is commutative, associative and idempotent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cachekit.bundle import canonical, guards
from cachekit.errors import ConfigurationError, CorruptError

Scalar = str | int | float | bool | None
Variant = tuple[tuple[str, Scalar], ...]
Range = tuple[str, int, int | None]
"""(symbol, smallest, largest); None is unbounded."""

_LABEL = re.compile(r"([0-9]{1,7})x([0-9]{1,7})x([0-9]{1,7})((?:,[^,=]+=[^,]*)*)")
_MAX_SIDE = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What people ask for: width and height in pixels, images per batch, and anything else that varies.

    Two shapes are equal if their labels are, so that a variant of 1 is neither ``true`` nor 1.0.

    Raises:
        ConfigurationError: a size is not a positive integer, or the variant is not sorted or not scalar.
    """

    width: int
    height: int
    batch: int
    variant: Variant = ()

    def __post_init__(self) -> None:
        for name in ("width", "height", "batch"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value <= _MAX_SIDE:
                raise ConfigurationError(f"{name} must be an integer from 1 to {_MAX_SIDE}, not {value!r}")
        names = [name for name, _ in self.variant]
        if names != sorted(set(names)):
            raise ConfigurationError(f"variant names must be sorted and unique: {names!r:.200}")
        for name, scalar in self.variant:
            if not re.fullmatch(r"[^,=\s]{1,64}", name):
                raise ConfigurationError(
                    f"variant name {name!r:.100} must be text without comma, equals sign or space"
                )
            if not isinstance(scalar, str | int | float | bool | None):
                raise ConfigurationError(
                    f"variant {name} must be text, a number, true, false or none: {scalar!r:.100}"
                )
            if isinstance(scalar, str) and "," in scalar:
                raise ConfigurationError(f"variant {name} must not contain a comma: {scalar!r:.100}")
            if isinstance(scalar, float) and not math.isfinite(scalar):
                raise ConfigurationError(f"variant {name} must be finite: {scalar!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.label == other.label

    def __hash__(self) -> int:
        return hash(self.label)

    def __lt__(self, other: Shape) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, int, int, str]:
        return self.width, self.height, self.batch, self.label

    @classmethod
    def of(cls, width: int, height: int, batch: int, **variant: Scalar) -> Shape:
        """Return the shape with its variant sorted."""
        return cls(width, height, batch, tuple(sorted(variant.items())))

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read a label such as ``1024x768x2,frames=3``; values are read as JSON, anything else as text.

        Raises:
            ConfigurationError: `text` is not such a label.
        """
        match = _LABEL.fullmatch(text.strip())
        if match is None:
            raise ConfigurationError(f"{text!r:.100} is not a shape like 1024x1024x1 or 1024x768x2,frames=17")
        pairs = [part.partition("=") for part in match[4].split(",")[1:]]
        variant = {name: _scalar(value) for name, _, value in pairs}
        if len(variant) != len(pairs):
            raise ConfigurationError(f"{text!r:.100} names a variant twice")
        return cls.of(int(match[1]), int(match[2]), int(match[3]), **variant)

    @property
    def label(self) -> str:
        """``1024x1024x1`` and any variant, ``,frames=17``; `parse` reads it back."""
        parts = [f"{self.width}x{self.height}x{self.batch}"]
        return ",".join(parts + [f"{name}={_text(value)}" for name, value in self.variant])


def _scalar(text: str) -> Scalar:
    try:
        value = canonical.loads(text)
    except CorruptError:
        return text
    return value if isinstance(value, str | int | float | bool | None) else text


def _text(value: Scalar) -> str:
    """Write text bare unless it would be read back as something else."""
    if isinstance(value, str) and value.isprintable() and value == value.strip() and _is_plain(value):
        return value
    return canonical.dumps(value).decode()


def _is_plain(text: str) -> bool:
    read = _scalar(text)
    return isinstance(read, str) and read == text


@dataclass(frozen=True, slots=True)
class Unit:
    """What one compile covers.

    `signature` is canonical JSON: of the call for a static unit, of the graph's inputs (a size may be a symbol
    name) for a dynamic one. `guards` is a conjunction over the symbols, "" for none. `needs` holds the ids of
    the artifacts it takes, sorted. `seconds` is what compiling took its producer; 0.0 means not measured.
    """

    dynamic: bool
    signature: str
    guards: str = ""
    ranges: tuple[Range, ...] = ()
    needs: tuple[str, ...] = ()
    seconds: float = field(default=0.0)

    @property
    def id(self) -> str:
        """sha256 (64 hex digits) of what it covers; what it needs and how long it took are not part of it."""
        return canonical.digest([self.dynamic, self.signature, self.guards, self.ranges])


def accepts(unit: Unit, signature: str) -> bool:
    """Tell whether a call with `signature` (canonical JSON) is covered by `unit`; False where that is unknown."""
    if not unit.dynamic:
        return unit.signature == signature
    try:
        pattern, call = canonical.loads(unit.signature), canonical.loads(signature)
    except CorruptError:
        return False
    symbols: dict[str, int] = {}
    derived: list[tuple[str, int]] = []
    if not _bind(pattern, call, symbols, derived) or not _in_ranges(unit.ranges, symbols):
        return False
    if not all(guards.equals(text, size, symbols) for text, size in derived):
        return False
    return guards.holds(unit.guards, symbols)


def _bind(pattern: Any, call: Any, symbols: dict[str, int], derived: list[tuple[str, int]]) -> bool:
    """Match `call` against `pattern`, collecting the size of each symbol and equations over symbols to check."""
    if isinstance(pattern, dict) and isinstance(call, dict):
        if pattern.keys() != call.keys():
            return False
        return all(
            _bind_sizes(pattern[name], call[name], symbols, derived)
            if name in ("t", "stride") and "dtype" in pattern
            else _bind(pattern[name], call[name], symbols, derived)
            for name in pattern
        )
    if isinstance(pattern, list) and isinstance(call, list):
        return len(pattern) == len(call) and all(
            _bind(mine, theirs, symbols, derived) for mine, theirs in zip(pattern, call, strict=True)
        )
    return type(pattern) is type(call) and bool(pattern == call)


def _bind_sizes(pattern: Any, call: Any, symbols: dict[str, int], derived: list[tuple[str, int]]) -> bool:
    """Match the sizes or strides of one tensor: equal numbers, one symbol, or an expression such as ``16*s0``."""
    if not isinstance(pattern, list) or not isinstance(call, list) or len(pattern) != len(call):
        return False
    for mine, theirs in zip(pattern, call, strict=True):
        if type(theirs) is not int:
            return False
        if isinstance(mine, str) and not mine.isidentifier():
            derived.append((mine, theirs))
        elif isinstance(mine, str):
            if symbols.setdefault(mine, theirs) != theirs:
                return False
        elif type(mine) is not int or mine != theirs:
            return False
    return True


def _in_ranges(ranges: tuple[Range, ...], symbols: dict[str, int]) -> bool:
    return all(
        name in symbols and low <= symbols[name] and (high is None or symbols[name] <= high)
        for name, low, high in ranges
    )


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """One way to cover a shape: all the units that its generation runs."""

    shape: Shape
    unit_ids: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """Units and shapes, sorted and without duplicates however they were given.

    A unit id can occur more than once with different needs (the same compile on hosts with different
    requirements), and so can a shape with different units; each is an alternative.
    """

    units: tuple[Unit, ...] = ()
    shapes: tuple[ShapeRow, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", _unique_units(self.units))
        object.__setattr__(self, "shapes", _unique_rows(self.shapes))

    @property
    def unit_ids(self) -> frozenset[str]:
        """The ids of all units."""
        return frozenset(unit.id for unit in self.units)

    def covers(self, shape: Shape) -> bool:
        """Tell whether some row of `shape` has all its units here."""
        known = self.unit_ids
        return any(
            row.shape == shape and row.unit_ids and known.issuperset(row.unit_ids) for row in self.shapes
        )

    def covering(self, signature: str) -> list[Unit]:
        """Return the units that accept the call signature, static ones first."""
        return sorted(
            (unit for unit in self.units if accepts(unit, signature)), key=lambda unit: unit.dynamic
        )


def measured(seconds: float) -> tuple[float, str]:
    """Order seconds so that the smallest measured one comes first: 0 means not measured and comes last.

    The smallest, so that what is reported as saved is never too much; last, or a warm run would erase the cold figure.
    """
    return seconds or math.inf, repr(seconds)


def merge(first: Coverage, second: Coverage) -> Coverage:
    """Return the union of both: commutative, associative and idempotent."""
    return Coverage(first.units + second.units, first.shapes + second.shapes)


def _unique_units(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Keep one unit per id and needs: the one with the smallest measured seconds."""
    best: dict[tuple[str, tuple[str, ...]], Unit] = {}
    for unit in units:
        if unit.needs != tuple(sorted(set(unit.needs))):
            raise ConfigurationError("the needs of a unit must be sorted and unique")
        key = (unit.id, unit.needs)
        other = best.get(key)
        if other is None or measured(unit.seconds) < measured(other.seconds):
            best[key] = unit
    return tuple(best[key] for key in sorted(best))


def _unique_rows(rows: Iterable[ShapeRow]) -> tuple[ShapeRow, ...]:
    unique = {(row.shape, tuple(sorted(set(row.unit_ids)))) for row in rows}
    ordered = sorted(
        unique, key=lambda item: (item[0].width, item[0].height, item[0].batch, item[0].label, item[1])
    )
    return tuple(ShapeRow(shape, ids) for shape, ids in ordered)
