"""Figures and ratios of what the runs measured. Pure: results in, a summary and lines for people out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Run = Sequence[Mapping[str, Any]]
"""The children of one run, see ``children.Child.to_json``."""


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians over runs of calls, maxima and medians of interruptions, peaks of memory, quickest starts.

    What was not measured is left out.
    """
    told: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for child in run:
            if child["exit_status"] == 0:
                told.setdefault(child["name"], []).append(child["result"])
    parts = {
        "calls": _calls,
        "blocks": _blocks,
        "save": _save,
        "save_memory": _save_memory,
        "install_memory": _install_memory,
        "install": _install,
    }
    return {name: make(told) for name, make in parts.items() if name in told}


def _calls(told: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Microseconds that the wrapper adds to an empty forward."""
    names = ("added_to_eager_s", "added_to_compiled_s")
    return {
        what: {name.replace("_s", "_us"): _us(found[what][name] for found in told["calls"]) for name in names}
        for what in ("module", "denoiser")
    }


def _blocks(told: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    found = told["blocks"]
    return {
        "blocks": found[0]["blocks"],
        "added_us": _us(one["added_to_compiled_s"] for one in found),
        "per_block_us": _us(one["per_block_s"] for one in found),
        "added_over_compiled": round(
            statistics.median(one["added_to_compiled_s"] / one["compiled_s"] for one in found), 3
        ),
    }


def _save(told: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Milliseconds. Longest standstill of each save, beside that of the same loop without one."""
    rounds = [one for found in told["save"] for one in found["rounds"]]
    return {
        "saves": len(rounds),
        "bundle_bytes": rounds[0]["bytes"],
        "artifacts": rounds[0]["artifacts"],
        "save_s": _rounded(one["save_s"] for one in rounds),
        "hand_over_ms": _ms(one["hand_over_s"] for one in rounds),
        "filing_ms": _ms(one["filing_s"] for one in rounds),
        **{
            f"longest_{where}_ms": _ms(one[where]["longest_s"] for one in rounds)
            for where in ("without_a_save", "during_a_save")
        },
        **{
            f"longest_{where}_without_queueing_ms": _ms(
                one[where]["longest_without_queueing_s"] for one in rounds
            )
            for where in ("without_a_save", "during_a_save")
        },
    }


def _save_memory(told: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Peak above what the process had before, over the bundle's raw bytes; torch's own save beside it."""
    found = told["save_memory"]
    return {
        "peak_over_bundle": _ratio(found),
        "torch_over_bundle": _ratio([one["torch"] for one in found]),
    }


def _install_memory(told: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {
        "peak_over_bundle": _ratio(told["install_memory"]),
        "torch_over_bundle": _ratio(told.get("load_memory", ())),
    }


def _install(told: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Seconds of the quickest start, where they went, and torch's own loader beside it."""
    best = min(told["install"], key=lambda found: found["report"]["load_s"])
    loads = told.get("load", ())
    summary: dict[str, Any] = {
        "load_s": sorted(_rounded(found["report"]["load_s"] for found in told["install"])),
        "attach_cpu_s": sorted(_rounded(found["attach_cpu_s"] for found in told["install"])),
        "again_attach_cpu_s": sorted(_rounded(found["again"]["attach_cpu_s"] for found in told["install"])),
        "again_s": sorted(_rounded(found["again"]["load_s"] for found in told["install"])),
        "steps_s": {name: round(seconds, 4) for name, seconds in best["report"]["steps"].items()},
        "again_steps_s": {name: round(seconds, 4) for name, seconds in best["again"]["steps"].items()},
    }
    if loads:
        summary["torch_s"] = sorted(_rounded(found["load_s"] for found in loads))
        summary["torch_again_s"] = sorted(_rounded(found["again_s"] for found in loads))
    return summary


def _ratio(found: Sequence[Mapping[str, Any]]) -> list[float]:
    return [round(one["peak_bytes"] / one["bundle_bytes"], 2) for one in found]


def _us(seconds: Iterable[float]) -> float:
    return round(statistics.median(seconds) * 1e6, 1)


def _ms(seconds: Iterable[float]) -> list[float]:
    return [round(one * 1e3, 2) for one in seconds]


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 3) for value in values]


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary as text."""
    found = []
    for what, facts in summary.get("calls", {}).items():
        found.append(
            f"an empty {what}'s call: {facts['added_to_compiled_us']} µs more than compiled by torch"
        )
    if "blocks" in summary:
        facts = summary["blocks"]
        found.append(
            f"{facts['blocks']} compiled blocks: {facts['added_us']} µs more, {facts['per_block_us']} a block"
        )
    if "save" in summary:
        facts = summary["save"]
        found.append(
            f"saving {facts['bundle_bytes'] / 1e6:.0f} MB: hand-over {facts['hand_over_ms']} ms, longest standstill "
            f"{facts['longest_during_a_save_without_queueing_ms']} ms, without a save "
            f"{facts['longest_without_a_save_without_queueing_ms']} ms"
        )
    for name, what in (("save_memory", "saving"), ("install_memory", "installing")):
        if name in summary:
            facts = summary[name]
            found.append(
                f"memory for {what}: {facts['peak_over_bundle']} bundles, torch alone {facts['torch_over_bundle']}"
            )
    if "install" in summary:
        facts = summary["install"]
        found.append(
            f"find, verify, install: {facts['load_s']} s, again {facts['again_s']} s; torch's loader alone "
            f"{facts.get('torch_s')} s, again {facts.get('torch_again_s')} s; {facts['steps_s']}"
        )
    return found
