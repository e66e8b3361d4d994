"""What the four starts of one pipeline prove, as one row. Pure: values in, values out.

**Hits and misses** are totals over the two warm starts, B and D: every artifact that was looked up and found, or that
had to be made, by kind (``inductor``, ``aot_autograd``, ``autotune``, ``kernel``), all kinds added up into one number.
A graph that is found counts twice, once as ``inductor`` and once as ``aot_autograd``. The numbers are those of
``Session.report()``: torch's own ``autograd_cache_miss`` also counts attempts that were abandoned, and is no miss.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachekit.bundle import Bundle, Shape
from cachekit.demo.models import DemoPipeline
from cachekit.demo.start import Started

PROCESSES = ("A", "B", "C", "D")
WARM = ("B", "D")

REASON_LENGTH = 300
"""Characters shown of one reason."""


@dataclass(frozen=True)
class Kept:
    """What is stored at the end: bytes before and after compression, and the labels of the covered shapes."""

    raw_bytes: int = 0
    stored_bytes: int = 0
    shapes: tuple[str, ...] = ()

    @classmethod
    def of(cls, bundle: Bundle | None) -> Kept:
        """What a bundle holds; nothing, if there is none."""
        if bundle is None:
            return cls()
        return cls(
            raw_bytes=sum(entry.raw_size for entry in bundle.entries),
            stored_bytes=sum(entry.stored_size for entry in bundle.entries),
            shapes=tuple(row.shape.label for row in bundle.coverage.shapes),
        )


def sizes_of(demo: DemoPipeline, process: str) -> tuple[tuple[int, int], ...]:
    """The sizes that a process generates: A and B the first, C the second, D both."""
    first, second = demo.sizes
    return {"A": (first,), "B": (first,), "C": (second,), "D": (first, second)}[process]


def row(demo: DemoPipeline, starts: Mapping[str, Started], kept: Kept) -> dict[str, Any]:
    """The pipeline's entry in the answer of ``cachekit demo``; plain JSON values.

    Beside what the names say: ``cold_s`` and ``warm_s`` are A's and B's seconds from ``attach`` to the end of the first
    generation; ``bit_identical`` compares the latents of A, B and D at the first size and of C and D at the second;
    ``cxx_compiles`` and ``isa_probes`` are totals over B and D; ``problems`` names everything that was not warm or not
    identical, and is empty on success; ``processes`` has the four raw results.
    """
    cold_s, warm_s = starts["A"]["first_s"], starts["B"]["first_s"]
    warm = [starts[process] for process in WARM]
    return {
        "name": demo.name,
        "cold_s": round(cold_s, 3),
        "warm_s": round(warm_s, 3),
        "ratio": round(cold_s / warm_s, 2),
        "hits": sum(sum(start["report"]["hits"].values()) for start in warm),
        "misses": sum(sum(start["report"]["misses"].values()) for start in warm),
        "raw_bytes": kept.raw_bytes,
        "stored_bytes": kept.stored_bytes,
        "bit_identical": not list(_differences(demo, starts)),
        "shapes": list(kept.shapes),
        "cxx_compiles": sum(start["cxx_compiles"] for start in warm),
        "isa_probes": sum(start["isa_probes"] for start in warm),
        "problems": [
            *(problem for process in PROCESSES for problem in _wrong(starts[process])),
            *_differences(demo, starts),
            *_uncovered(demo, kept.shapes),
        ],
        "processes": dict(starts),
    }


def _wrong(start: Started) -> Iterator[str]:
    """Why a start that should have been warm was not, and why any start had no cache."""
    process, report = start["process"], start["report"]
    found: list[str] = []
    if report["state"] == "disabled":
        found.append("had no cache")
    elif process in WARM and not report["hits"]:
        found.append("hit nothing")
    if process in WARM:
        if report["misses"]:
            found.append(f"compiled {counted(report['misses'])}")
        if start["cxx_compiles"]:
            found.append(f"ran the C++ compiler {start['cxx_compiles']} times")
        if start["isa_probes"]:
            found.append(f"probed for vector instructions {start['isa_probes']} times")
    if found:
        yield "; ".join((f"{process} {', '.join(found)}", *_reasons(report)))


def _reasons(report: Mapping[str, Any]) -> list[str]:
    """The report's reasons, each cut where it would fill the screen: the JSON document has them whole."""
    return [textwrap.shorten(reason, REASON_LENGTH, placeholder=" ...") for reason in report["reasons"]]


def _differences(demo: DemoPipeline, starts: Mapping[str, Started]) -> Iterator[str]:
    """Which processes made other latents than the first one to run a size."""
    for size in demo.sizes:
        first: tuple[str, str] | None = None
        for process in PROCESSES:
            for one in starts[process]["generations"]:
                if (one["width"], one["height"]) != size:
                    continue
                first = first or (process, one["sha256"])
                if one["sha256"] != first[1]:
                    yield f"{process} made other latents than {first[0]} at {_text(size)}"


def _uncovered(demo: DemoPipeline, labels: Sequence[str]) -> Iterator[str]:
    covered = {(shape.width, shape.height) for shape in map(Shape.parse, labels)}
    for size in demo.sizes:
        if size not in covered:
            yield f"{_text(size)} is not covered at the end"


def told(start: Started) -> str:
    """What one start did, in a few words."""
    report = start["report"]
    parts = [f"hit {counted(report['hits'])}", f"compiled {counted(report['misses'])}"]
    if start["cxx_compiles"] or start["isa_probes"]:
        parts.append(f"{start['cxx_compiles']} C++ compiles, {start['isa_probes']} probes")
    parts += [f"saved generation {generation}" for generation in report["saved_generations"]]
    if report["state"] == "disabled":
        parts.append(f"disabled: {'; '.join(_reasons(report))}")
    return "; ".join(parts)


def counted(counts: Mapping[str, int]) -> str:
    """``2 inductor, 31 kernel``, or ``nothing``."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count) or "nothing"


def meaning(demo: DemoPipeline, found: Mapping[str, Any]) -> str:
    """What a row means, in a sentence."""
    if found["problems"]:
        return f"{demo.title}: not warm: {'; '.join(found['problems'])}."
    return (
        f"{demo.title}: with empty compile caches, a second process had its first image after {found['warm_s']:.1f} s "
        f"instead of {found['cold_s']:.1f} s. It compiled nothing, nor did another one at both sizes "
        f"({' and '.join(found['shapes'])}), and every image equals the first of its size bit for bit."
    )


def _text(size: tuple[int, int]) -> str:
    return f"{size[0]} × {size[1]}"
