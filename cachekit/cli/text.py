"""How values are written for people, and what of a fingerprint they recognise it by. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from cachekit.bundle.coverage import Coverage

SHORT = 12
"""Digits of an id that people are shown; enough to be told apart, and accepted wherever an id is."""

_KIB = 1024
_UNBROKEN = ("id", "fingerprint", "last use", "accepted", "runs on")


def printable(text: object) -> str:
    """The text in one line and without anything that could steer a terminal: others wrote some of what we show."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(str(text).split()))


def short(identifier: str) -> str:
    """The beginning of an id."""
    return identifier[:SHORT]


def size(count: int) -> str:
    """Bytes: ``812 B``, ``4.0 KiB``, ``1.2 GiB``."""
    scaled = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if scaled < _KIB:
            return f"{count} B" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= _KIB
    return f"{scaled:.1f} TiB"


def seconds(measured: float) -> str:
    """Seconds with one digit after the point; ``-`` for 0, which means not measured."""
    return f"{measured:.1f} s" if measured else "-"


def utc(milliseconds: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC, for JSON."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="seconds")


def local(iso: str | None) -> str:
    """A time that ``utc`` wrote, in the time zone of whoever reads it; ``-`` for none."""
    return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M") if iso else "-"


def value(plain: object) -> str:
    """A JSON value: text as it is, anything else as JSON."""
    return plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True)


def plural(count: int, noun: str) -> str:
    """``1 bundle``, ``2 bundles``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table; columns named in ``right`` hold numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        number = name in right
        # An id that is broken in two cannot be copied.
        whole = number or name in _UNBROKEN
        made.add_column(name, justify="right" if number else "left", no_wrap=whole, overflow="fold")
    return made


def row(into: Table, *cells: object) -> None:
    """Add a row; cells are shown as they are, whatever markup they hold. A list has a line for each item."""
    from rich.text import Text

    lines = [cell if isinstance(cell, list) else [cell] for cell in cells]
    into.add_row(*(Text("\n".join(map(printable, cell))) for cell in lines))


def summary(components: Mapping[str, Any]) -> dict[str, Any]:
    """What people recognise a fingerprint by: family, denoiser classes, device, torch, and how it is compiled."""
    denoisers = at(components, "pipeline.denoisers")
    classes = [at(one, "class") for one in denoisers.values()] if isinstance(denoisers, Mapping) else []
    return {
        "family": at(components, "pipeline.family"),
        "denoisers": [str(name) for name in classes],
        "device": at(components, "plan.device"),
        "scope": at(components, "plan.scope"),
        "dynamic": at(components, "plan.dynamic"),
        "torch": at(components, "toolchain.torch.version"),
    }


def labels(coverage: Coverage) -> list[str]:
    """The labels of the covered shapes, the smallest first."""
    return list(dict.fromkeys(row.shape.label for row in coverage.shapes))


def at(components: Mapping[str, Any], path: str) -> Any:
    """The component at a dotted path; None where there is none."""
    found: Any = components
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def leaves(path: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested mappings with their dotted paths, sorted; a list is a value."""
    if isinstance(tree, Mapping) and tree:
        for name in sorted(tree):
            yield from leaves(f"{path}.{name}" if path else name, tree[name])
    else:
        yield path, tree
