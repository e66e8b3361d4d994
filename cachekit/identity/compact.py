"""Fold what repeats over layers into a few lines that people can read and compare.

``{"blocks.0.ff": "Q8_0", "blocks.1.ff": "Q4_0", "blocks.2.ff": "Q4_0"}`` becomes
``{"blocks.*.ff": {"Q4_0": "1-2", "Q8_0": "0"}}``. Nothing is lost: two foldings are equal exactly if what was folded
is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def compact(entries: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Fold (dotted path, value) pairs, one a path: numbers become ``*``, and each value lists where it stands.

    Paths without a number map to their value. Where two numbers are in one path, places read ``0.1-3``: block 0,
    layers 1 to 3.
    """
    folded: dict[str, Any] = {}
    places: dict[str, dict[str, list[tuple[int, ...]]]] = {}
    for path, value in entries:
        parts = path.split(".")
        numbers = tuple(int(part) for part in parts if _is_number(part))
        if not numbers:
            folded[path] = value
            continue
        pattern = ".".join("*" if _is_number(part) else part for part in parts)
        places.setdefault(pattern, {}).setdefault(value, []).append(numbers)
    for pattern, values in places.items():
        folded[pattern] = {value: ",".join(_ranges(sorted(found))) for value, found in values.items()}
    return folded


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit() and (part == "0" or part[0] != "0")


def _ranges(places: list[tuple[int, ...]]) -> Iterator[str]:
    """``[(0, 1), (0, 2), (1, 5)]`` as ``0.1-2`` and ``1.5``."""
    index = 0
    while index < len(places):
        *outer, first = places[index]
        last = first
        while index + 1 < len(places) and places[index + 1] == (*outer, last + 1):
            last, index = last + 1, index + 1
        yield ".".join([*map(str, outer), f"{first}-{last}" if last > first else str(first)])
        index += 1
