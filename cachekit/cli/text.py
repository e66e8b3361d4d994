"""How values are written for people, and what of a fingerprint they recognise it by. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

SHORT = 12
"""Digits of an id that people are shown; enough to be told apart, and accepted wherever an id is."""

_KIB = 1024


def printable(text: object) -> str:
    """The text in one line and without anything that could steer a terminal: others wrote some of what we show."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(str(text).split()))


def short(identifier: str) -> str:
    """The beginning of an id."""
    return identifier[:SHORT]


def size(count: int) -> str:
    """Bytes: ``812 B``, ``4.0 KiB``, ``1.2 GiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _KIB:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.1f} TiB"


def seconds(value: float) -> str:
    """Seconds with one digit after the point; ``-`` for 0, which means not measured."""
    return f"{value:.1f} s" if value else "-"


def utc(milliseconds: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC, for JSON."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="seconds")


def local(iso: str | None) -> str:
    """A time that ``utc`` wrote, in the time zone of whoever reads it; ``-`` for none."""
    return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M") if iso else "-"


def plural(count: int, noun: str) -> str:
    """``1 bundle``, ``2 bundles``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(*columns: str, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """An empty table; columns named in ``right`` hold numbers."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        number = name in right
        made.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return made


def row(into: Table, *cells: object) -> None:
    """Add a row; cells are shown as they are, whatever markup or control characters they hold."""
    from rich.text import Text

    into.add_row(*(Text(printable(cell)) for cell in cells))


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


def at(components: Mapping[str, Any], path: str) -> Any:
    """The component at a dotted path; None where there is none."""
    value: Any = components
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested mappings with their dotted paths, sorted; a list is a value."""
    if isinstance(value, Mapping) and value:
        for name in sorted(value):
            yield from leaves(f"{path}.{name}" if path else name, value[name])
    else:
        yield path, value
