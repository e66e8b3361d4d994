"""Ratios of what one run measured. Pure: results in, a summary and lines for people out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Child = Mapping[str, Any]
"""What ``children.Child.to_json`` gives, with ``row``."""


RATIOS = (("cold", "warm"), ("cold", "raw"), ("raw", "warm"), ("cold", "plain"))


def summarise(children: Sequence[Child]) -> dict[str, Any]:
    """Seconds, ratios, hits and equality of one denoiser's rows; what was not measured is left out.

    Ratios compare first steps of one call of the script: ``cold_over_warm`` is cold ÷ warm, above 1 where the warm
    start is quicker; ``best`` takes the quickest start of each row, ``median`` the middle one. A shape for which the
    cold start had nothing to compile, because the graphs of an earlier shape cover it, is marked ``covered`` and has
    no ratios.
    """
    results: dict[str, list[Any]] = {}
    for child in children:
        results.setdefault(child["row"], []).append(child["result"])
    shapes = list(dict.fromkeys(shape for child in children for shape in child["result"].get("shapes", ())))
    summary: dict[str, Any] = {"shapes": {shape: _shape(_facts(results, shape)) for shape in shapes}}
    stored = [found["end"]["stored"] for found in results.get("cold", ()) if "stored" in found.get("end", {})]
    if stored:
        summary["stored_bytes"] = stored[0]["bytes"]
    return summary


def _facts(results: Mapping[str, Sequence[Any]], shape: str) -> dict[str, list[Any]]:
    """What each row found out about one shape; a row that failed before its first step is left out."""
    facts = {
        row: [found["shapes"][shape] for found in every if shape in found.get("shapes", {})]
        for row, every in results.items()
    }
    ran = {row: [found for found in every if "first_step_s" in found] for row, every in facts.items()}
    return {row: every for row, every in ran.items() if every}


def _shape(facts: Mapping[str, list[Any]]) -> dict[str, Any]:
    first = {row: _values(every, "first_step_s") for row, every in facts.items()}
    summary: dict[str, Any] = {f"{row}_s": [round(s, 3) for s in seconds] for row, seconds in first.items()}
    if facts.get("cold") and not _missed(facts["cold"][0]):
        summary["covered"] = True
    else:
        for above, below in RATIOS:
            if above in first and below in first:
                summary[f"{above}_over_{below}"] = _ratio(first[above], first[below])
    return summary | _steps(facts) | _equality(facts) | _proofs(facts)


def _missed(facts: Mapping[str, Any]) -> bool:
    return any(name.endswith("miss") for name in facts.get("counters", ()))


def _steps(facts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Eager and steady seconds: medians over everything that ran."""
    every = [found for row in facts.values() for found in row]
    return {
        "eager_first_s": _median(_values(every, "eager_first_s")),
        "eager_step_s": _median(_values(every, "eager_step_s")),
        "compiled_step_s": {row: _median(_values(found, "step_s")) for row, found in facts.items()},
    }


def _equality(facts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Largest relative error against eager, and whether all outputs of a row equal the cold start's bit for bit."""
    compared = {
        row: [found["bit_identical"] for found in every if "bit_identical" in found]
        for row, every in facts.items()
    }
    return {
        "relative_error": {
            row: max(_values(found, "relative_error"), default=None) for row, found in facts.items()
        },
        "bit_identical": {row: all(same) for row, same in compared.items() if same},
    }


def _proofs(facts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """torch's counters as they moved in the first call, cachekit's own reports, and the size of the raw bundle."""
    proofs: dict[str, Any] = {"counters": {row: every[0].get("counters", {}) for row, every in facts.items()}}
    kept = ("state", "installed", "hits", "misses", "effective", "saved_generations", "reasons")
    reports = [found["report"] for found in facts.get("warm", ()) if "report" in found]
    if reports:
        proofs["warm_reports"] = [{name: report.get(name) for name in kept} for report in reports]
    raw = [found["raw"]["bytes"] for found in facts.get("cold", ()) if "raw" in found]
    if raw:
        proofs["raw_bytes"] = raw[0]
    return proofs


def _ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    return {
        "best": round(min(above) / min(below), 2),
        "median": round(statistics.median(above) / statistics.median(below), 2),
    }


def _values(facts: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [found[name] for found in facts if name in found]


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 5) if values else None


def lines(name: str, summary: Mapping[str, Any]) -> list[str]:
    """A denoiser's summary as text, a line for each shape."""
    return [f"{name} {shape}: {_line(facts)}" for shape, facts in summary["shapes"].items()]


def _line(facts: Mapping[str, Any]) -> str:
    parts = [
        f"{row} {' '.join(f'{seconds:.2f}' for seconds in facts[f'{row}_s'])} s"
        for row in ("cold", "plain", "warm", "raw")
        if f"{row}_s" in facts
    ]
    if facts.get("covered"):
        parts.append("covered by the first shape's graphs")
    keys = [f"{above}_over_{below}" for above, below in RATIOS]
    parts += [f"{key.replace('_over_', ' ÷ ')} {facts[key]['median']}" for key in keys if key in facts]
    parts += [
        f"{row} {'equals' if same else 'differs from'} cold" for row, same in facts["bit_identical"].items()
    ]
    return ", ".join(parts)
