"""The fingerprint: everything that decides whether compiled code may be used again, as one value.

A pure value over plain JSON. What goes into it is gathered elsewhere (``toolchain.py``, ``pipeline.py``,
``plan.py``); here it gets its id, is compared, stored and read back. Nothing here imports torch, so the server
and the CLI can read fingerprints of machines they are not.

    mine = Fingerprint.of({"toolchain": {...}, "pipeline": {...}, "plan": {...}})
    mine.id                      # 64 hex digits, the sha256 of the canonical JSON
    mine.diff(theirs)            # which components differ, with both values
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, NewType

from cachekit.bundle import canonical
from cachekit.errors import CorruptError, NewerSchemaError

SCHEMA: Final = 1
"""Version of the set of components; it is part of every id."""

EARLIER: Final[Mapping[int, Callable[[dict[str, Any]], dict[str, Any] | None]]] = {}
"""For each earlier schema, how to say the present components in it; None where its code may not be used again.

A release that changes the components raises `SCHEMA` and adds one function here::

    def components_v1(current):
        del current["toolchain"]["new_flag"]
        return current if flag_was_off else None

    EARLIER = {1: components_v1}
"""

FingerprintId = NewType("FingerprintId", str)


class Absent(Enum):
    """A component that one of two fingerprints does not have at all; not the same as JSON ``null``."""

    ABSENT = "(absent)"

    def __str__(self) -> str:
        return self.value


ABSENT: Final = Absent.ABSENT


class Difference(NamedTuple):
    """One component that two fingerprints do not share.

    ``path`` is dotted (``toolchain.precision.cuda.matmul``); ``mine`` and ``theirs`` are JSON values, or
    :data:`ABSENT` on the side that lacks the component.
    """

    path: str
    mine: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.path}: {_text(self.mine)} / {_text(self.theirs)}"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """An immutable set of components and its id; equal exactly if the ids are equal."""

    id: FingerprintId
    canonical: bytes
    """The canonical JSON that the id is the sha256 of."""

    @classmethod
    def of(cls, components: Mapping[str, Any]) -> Fingerprint:
        """Make one from nested JSON components; ``schema`` is added.

        Raises:
            ConfigurationError: a value has no JSON form.
            CorruptError: the components name a schema that never was.
            NewerSchemaError: the components come from a newer release.
        """
        schema = components.get("schema", SCHEMA)
        if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
            raise CorruptError(f"fingerprint schema is not a positive number: {schema!r:.80}")
        if schema > SCHEMA:
            raise NewerSchemaError(
                f"fingerprint schema {schema!r:.80} is newer than {SCHEMA}, which this release reads"
            )
        text = canonical.dumps({**components, "schema": schema})
        return cls(FingerprintId(hashlib.sha256(text).hexdigest()), text)

    @classmethod
    def from_json(cls, data: bytes | str) -> Fingerprint:
        """Read what :meth:`to_json` wrote; whitespace and key order do not matter.

        Raises:
            CorruptError: not JSON, not an object, or no schema.
            NewerSchemaError: written by a newer release.
        """
        loaded = canonical.loads(data)
        if not isinstance(loaded, dict) or "schema" not in loaded:
            raise CorruptError("a fingerprint is a JSON object that names its schema")
        return cls.of(loaded)

    def to_json(self) -> str:
        """The canonical JSON text."""
        return self.canonical.decode()

    @property
    def components(self) -> dict[str, Any]:
        """The components as plain JSON values: a new copy at each access, so nobody can change the value."""
        loaded: dict[str, Any] = canonical.loads(self.canonical)
        return loaded

    def earlier(self) -> tuple[Fingerprint, ...]:
        """The same pipeline as earlier schemas named it, the newest of them first: what is kept under their ids."""
        found = []
        for schema in sorted(EARLIER, reverse=True):
            components = self.components
            if schema < components["schema"] and (then := EARLIER[schema](components)) is not None:
                found.append(Fingerprint.of({**then, "schema": schema}))
        return tuple(found)

    def diff(self, other: Fingerprint) -> tuple[Difference, ...]:
        """The components that differ, sorted by path; empty exactly if the ids are equal."""
        if self.canonical == other.canonical:
            return ()
        return tuple(
            sorted(_differences("", self.components, other.components), key=lambda found: found.path)
        )

    def __repr__(self) -> str:
        return f"<Fingerprint {self.id[:12]}, {len(self.canonical)} bytes>"


def nearest(
    target: Fingerprint, candidates: Iterable[Fingerprint]
) -> tuple[Fingerprint, tuple[Difference, ...]] | None:
    """The candidate that shares most with ``target``, and what still differs (``target``'s values first).

    Another model is farther than any other toolchain or plan of the same model. Ties go to the smaller id, so
    the answer does not depend on the order of the candidates. None if there are no candidates.
    """
    best: tuple[tuple[int, str], Fingerprint, tuple[Difference, ...]] | None = None
    for candidate in candidates:
        differences = target.diff(candidate)
        rank = (sum(map(_weight, differences)), candidate.id)
        if best is None or rank < best[0]:
            best = (rank, candidate, differences)
    return None if best is None else (best[1], best[2])


_FAR = 1000
_MODEL = ("family", "kind", "class", "config")


def _weight(difference: Difference) -> int:
    path = difference.path.split(".")
    if path[0] == "pipeline" and not set(path).isdisjoint(_MODEL):
        return _FAR
    return 1


def _differences(path: str, mine: Any, theirs: Any) -> Iterator[Difference]:
    """Walk both trees; lists are compared as a whole, because positions in them have no name."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in mine.keys() | theirs.keys():
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, mine.get(key, ABSENT), theirs.get(key, ABSENT))
    elif not _same(mine, theirs):
        yield Difference(path, mine, theirs)


def _same(mine: Any, theirs: Any) -> bool:
    """Equality of canonical forms: ``1``, ``1.0`` and ``true`` are three different values there."""
    if mine is ABSENT or theirs is ABSENT:
        return mine is theirs
    return canonical.dumps(mine) == canonical.dumps(theirs)


def _text(value: Any) -> str:
    return str(value) if value is ABSENT else canonical.dumps(value).decode()
