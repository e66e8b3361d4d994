"""Ratios of what one run measured. Pure: results in, a summary and lines for people out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Child = Mapping[str, Any]
"""What ``children.Child.to_json`` gives, with ``row``."""


def summarise(children: Sequence[Child]) -> dict[str, Any]:
    """Seconds, ratios, hits and equality of one denoiser's rows; what was not measured is left out.

    Ratios compare first steps of the same run of this script: ``cold_over_warm`` is cold ÷ warm, above 1 where the
    warm start is quicker. ``best`` takes the quickest warm start, ``median`` the middle one.
    """
    rows = {row: [child["result"] for child in children if child["row"] == row] for row in _rows(children)}
    shapes = list(dict.fromkeys(shape for child in children for shape in child["result"].get("shapes", ())))
    summary: dict[str, Any] = {"shapes": {shape: _shape(rows, shape) for shape in shapes}}
    stored = [found["end"]["stored"] for found in rows.get("cold", []) if "stored" in found.get("end", {})]
    if stored:
        summary["stored_bytes"] = stored[0]["bytes"]
    return summary


def _rows(children: Sequence[Child]) -> list[str]:
    return list(dict.fromkeys(child["row"] for child in children))


def _shape(rows: Mapping[str, Sequence[Any]], shape: str) -> dict[str, Any]:
    facts = {
        row: [found["shapes"][shape] for found in rows[row] if shape in found.get("shapes", {})]
        for row in rows
    }
    first = {row: _values(facts[row], "first_step_s") for row in facts}
    summary: dict[str, Any] = {f"{row}_s": seconds for row, seconds in first.items() if seconds}
    for name, above, below in (
        ("cold_over_warm", "cold", "warm"),
        ("cold_over_raw", "cold", "raw"),
        ("raw_over_warm", "raw", "warm"),
        ("cold_over_plain", "cold", "plain"),
    ):
        if first.get(above) and first.get(below):
            summary[name] = _ratio(first[above], first[below])
    every = [found for row in facts.values() for found in row]
    summary |= {
        "eager_first_s": _median(_values(every, "eager_first_s")),
        "eager_step_s": _median(_values(every, "eager_step_s")),
        "compiled_step_s": {row: _median(_values(facts[row], "step_s")) for row in facts},
        "relative_error": {row: max(_values(facts[row], "relative_error"), default=None) for row in facts},
        "bit_identical": {
            row: all(found["bit_identical"] for found in facts[row])
            for row in facts
            if facts[row] and all("bit_identical" in found for found in facts[row])
        },
        "counters": {row: facts[row][0].get("counters", {}) for row in facts if facts[row]},
    }
    reports = [found["report"] for found in facts.get("warm", ()) if "report" in found]
    if reports:
        summary["warm_reports"] = [_proof(report) for report in reports]
    raw = [found["raw"]["bytes"] for found in facts.get("cold", ()) if "raw" in found]
    if raw:
        summary["raw_bytes"] = raw[0]
    return summary


def _proof(report: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("state", "installed", "hits", "misses", "effective", "saved_generations", "reasons")
    return {name: report.get(name) for name in kept}


def _ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    return {
        "best": round(min(above) / min(below), 2),
        "median": round(statistics.median(above) / statistics.median(below), 2),
    }


def _values(facts: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [found[name] for found in facts if name in found]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def lines(name: str, summary: Mapping[str, Any]) -> list[str]:
    """A denoiser's summary as text."""
    told = []
    for shape, facts in summary["shapes"].items():
        seconds = ", ".join(
            f"{row} {'/'.join(f'{s:.1f}' for s in facts[f'{row}_s'])} s"
            for row in ("cold", "plain", "warm", "raw")
            if f"{row}_s" in facts
        )
        ratios = ", ".join(
            f"{key.replace('_over_', ' ÷ ')} {facts[key]['median']}"
            for key in ("cold_over_warm", "cold_over_raw", "raw_over_warm")
            if key in facts
        )
        identical = ", ".join(
            f"{row} {'equals' if same else 'differs from'} cold"
            for row, same in facts["bit_identical"].items()
        )
        told.append(f"{name} {shape}: " + "; ".join(part for part in (seconds, ratios, identical) if part))
    return told
