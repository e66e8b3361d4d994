"""Cold against warm on this machine: the demonstration's two pipelines, started several times; one JSON comes out.

    python -m benchmarks --runs 3

Each run is ``cachekit demo --json``: both pipelines, each started cold and warm in processes of its own with empty
caches. Seconds vary with the machine and with what else runs on it, so what counts is the ratio of two starts of the
same run; ``best`` compares the quickest cold with the quickest warm start of all runs, which is what is left when
disturbances are taken out on both sides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.children import bare_environment, write_json

RESULTS = environment.ROOT / "benchmarks" / "results"
SCHEMA = 1

Run = Mapping[str, Any]
"""One ``cachekit demo --json``: its document (``pipelines``, ``failed``), with ``exit_status`` and ``seconds``."""


def run_demo(folder: Path, timeout: float) -> dict[str, Any]:
    """One demonstration; its progress goes to standard error. ``timeout`` in seconds."""
    folder.mkdir(parents=True)
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cachekit", "demo", "--json"],
            cwd=environment.ROOT,
            env=bare_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"exit_status": None, "seconds": round(time.monotonic() - started, 1)}
    found = {"exit_status": done.returncode, "seconds": round(time.monotonic() - started, 1)}
    return found | _document(done.stdout)


def _document(output: str) -> dict[str, Any]:
    """What the demonstration answered; nothing if it was cut off before it could, as its exit status says."""
    try:
        found = json.loads(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Of each pipeline: all cold and warm seconds, cold ÷ warm by run, their best and median, and what was proved."""
    told: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for pipeline in run.get("pipelines", ()):
            told.setdefault(pipeline["name"], []).append(pipeline)
    return {name: _summary(found) for name, found in told.items()}


def _summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cold, warm = [one["cold_s"] for one in found], [one["warm_s"] for one in found]
    ratios = [round(above / below, 2) for above, below in zip(cold, warm, strict=True)]
    return {
        "runs": len(found),
        "cold_s": [round(seconds, 2) for seconds in cold],
        "warm_s": [round(seconds, 2) for seconds in warm],
        "ratios": ratios,
        "best": round(min(cold) / min(warm), 2),
        "median": round(statistics.median(ratios), 2),
        "hits": min(one["hits"] for one in found),
        "misses": max(one["misses"] for one in found),
        "raw_bytes": found[0]["raw_bytes"],
        "stored_bytes": found[0]["stored_bytes"],
        "bit_identical": all(one["bit_identical"] for one in found),
        "shapes": found[0]["shapes"],
        "problems": [problem for one in found for problem in one["problems"]],
    }


def lines(summary: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The summary as text, a line for each pipeline."""
    return [
        f"{name}: cold {_seconds(one['cold_s'])}, warm {_seconds(one['warm_s'])}, cold ÷ warm best {one['best']}, "
        f"median {one['median']}, warm {'equals' if one['bit_identical'] else 'differs from'} cold bit for bit"
        for name, one in summary.items()
    ]


def _seconds(values: Sequence[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values) + " s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if every run ended well, 1 otherwise; how quick it was decides nothing."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    out = given.out or RESULTS / f"warm-start-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    document: dict[str, Any] = {
        "benchmark": "warm_start",
        "schema": SCHEMA,
        "command": environment.command_line("-m benchmarks", arguments),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": environment.revision(),
        "machine": environment.machine(),
        "versions": environment.versions(),
        "runs": [],
    }
    with tempfile.TemporaryDirectory(prefix="cachekit-bench-") as name:
        work = Path(name)
        for number in range(1, given.runs + 1):
            print(f"run {number} of {given.runs}", flush=True)
            document["runs"].append(run_demo(work / f"run-{number}", given.timeout))
            document["summary"] = summarise(document["runs"])
            write_json(out, document, hide=[work])
    print("\n".join(lines(document["summary"])))
    print(f"wrote {out}")
    return 0 if all(run["exit_status"] == 0 for run in document["runs"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="demonstrations to run; default 3")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the JSON goes; default benchmarks/results/"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600, metavar="S", help="kill a run after S seconds; default 3600"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
