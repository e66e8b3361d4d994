"""What cachekit costs: a call of the denoiser, a save beside a generating thread, memory, and the way to a warm start.

    python -m benchmarks cost --runs 3

Every measurement is a process of its own with empty caches (``measure.py``), and whatever it is compared with was
measured in the same run. Seconds vary with the machine and with what else runs on it: quote the ratios.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.children import run, write_json
from benchmarks.cost.bundle import DESCRIPTION
from benchmarks.cost.summary import lines, summarise

RESULTS = environment.ROOT / "benchmarks" / "results"
SCHEMA = 1

ONCE = ("record", "calls", "blocks", "save", "save_memory", "install_memory", "load_memory")
"""In this order: ``record`` and ``save`` leave what the others read."""
REPEATED = ("install", "load")
"""Starts are short, so disturbances weigh: they are run several times in turns, and the quickest counts."""
STARTS = 3


def run_once(names: Sequence[str], work: Path, device: str, timeout: float) -> Iterator[dict[str, Any]]:
    """The measurements called ``names``, one after the other, below the new folder ``work``.

    Args:
        timeout: seconds for each.
    """
    shared = work / "shared"
    shared.mkdir(parents=True)
    for number, what in enumerate((*ONCE, *REPEATED * STARTS)):
        if what not in names:
            continue
        print(f"  {what}", flush=True)
        child = run(
            what,
            "benchmarks.cost.measure",
            ["--what", what, "--device", device, "--work", str(shared)],
            folder=work / f"{number}-{what}",
            timeout=timeout,
        )
        if not child.ok:
            print(f"    failed with status {child.exit_status}:\n{child.stderr[-600:]}", flush=True)
        yield child.to_json()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if everything was measured, 1 otherwise; what came out decides nothing."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    out = given.out or RESULTS / f"cost-{given.device}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    document: dict[str, Any] = {
        "benchmark": "cost",
        "schema": SCHEMA,
        "command": environment.command_line("-m benchmarks cost", arguments),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": given.revision or environment.revision(),
        "machine": environment.machine(),
        "versions": environment.versions(),
        "bundle": DESCRIPTION,
        "runs": [],
    }
    with tempfile.TemporaryDirectory(prefix="cachekit-bench-") as name:
        work = Path(name)
        for number in range(1, given.runs + 1):
            print(f"run {number} of {given.runs}", flush=True)
            document["runs"].append([])
            for child in run_once(given.only, work / f"run-{number}", given.device, given.timeout):
                document["runs"][-1].append(child)
                document["summary"] = summarise(document["runs"])
                write_json(out, document, hide=[work])
    print("\n".join(lines(document["summary"])))
    print(f"wrote {out}")
    return 0 if all(_ok(child) for one in document["runs"] for child in one) else 1


def _ok(child: Mapping[str, Any]) -> bool:
    return child["exit_status"] == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks cost", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--device", default="cpu", metavar="NAME", help="cpu or cuda; default cpu")
    add(
        "--only",
        type=_names,
        default=(*ONCE, *REPEATED),
        metavar="NAMES",
        help=f"of {','.join((*ONCE, *REPEATED))}",
    )
    add("--runs", type=int, default=1, metavar="N", help="how often to measure everything; default 1")
    add("--out", type=Path, metavar="FILE", help="where the JSON goes; default benchmarks/results/")
    add("--timeout", type=float, default=600, metavar="S", help="kill a process after S seconds; default 600")
    add("--revision", help="the commit, where this is no git checkout")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in (*ONCE, *REPEATED):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join((*ONCE, *REPEATED))}")
    return names


if __name__ == "__main__":
    sys.exit(main())
