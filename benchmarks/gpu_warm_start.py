"""Cold, warm and raw starts of full-width denoisers on one big GPU; one JSON comes out.

    python3 benchmarks/gpu_warm_start.py --only sdxl --out benchmarks/results/gpu-sdxl.json

Each row is a process of its own with empty caches (``children.py``); what it does is in ``measure.py`` and
``starts.py``. The JSON is written again after every row, so that a run that is cut off loses nothing. ``--tiny`` runs
the same on a CPU with tiny models, to try the script; its numbers say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    sys.path[0] = str(ROOT)  # started by path: our own modules are imported by their full names all the same

from benchmarks import children, environment, summary  # noqa: E402

DENOISERS = ("sdxl", "flux", "gguf")
SCRIPT = "benchmarks/gpu_warm_start.py"
SCHEMA = 1


@dataclass(frozen=True)
class Row:
    """One process to come: ``run`` counts equal rows from 1."""

    denoiser: str
    row: str
    run: int

    @property
    def name(self) -> str:
        """For people and folders."""
        return f"{self.denoiser}-{self.row}-{self.run}"


@dataclass
class Benchmark:
    """The rows of one call of this script, and what came of them."""

    rows: Sequence[Row]
    work: Path
    out: Path
    tiny: bool
    time_limit: float | None
    child_timeout: float
    header: dict[str, Any]
    done: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> bool:
        """Run all rows, within the time limit. Returns whether every row was run and ended well."""
        started = time.monotonic()
        self._write()
        for number, row in enumerate(self.rows, 1):
            elapsed = time.monotonic() - started
            if self.time_limit is not None and elapsed > self.time_limit:
                print(f"[{elapsed:5.0f} s] time limit reached, {len(self.rows) - number + 1} rows not run")
                break
            print(f"[{elapsed:5.0f} s] {number}/{len(self.rows)} {row.name}", flush=True)
            self.done.append(self._run_row(row))
            self._write()
        for name, found in self._summaries().items():
            print("\n".join(summary.lines(name, found)), flush=True)
        print(f"wrote {self.out}", flush=True)
        return len(self.done) == len(self.rows) and all(child["exit_status"] == 0 for child in self.done)

    def _run_row(self, row: Row) -> dict[str, Any]:
        shared = self.work / row.denoiser
        shared.mkdir(parents=True, exist_ok=True)
        child = children.run(
            row.name,
            "benchmarks.measure",
            [
                *("--denoiser", row.denoiser, "--row", row.row, "--work", str(shared)),
                *(["--tiny"] if self.tiny else []),
            ],
            folder=self.work / row.name,
            timeout=self.child_timeout,
            # Ten probes of the compiler in every empty folder take 15 s on a CPU and are no part of what is tried here.
            variables={"TORCHINDUCTOR_VEC_ISA_OK": "1"} if self.tiny else None,
        )
        if not child.ok:
            print(f"    failed with status {child.exit_status}:\n{child.stderr[-600:]}", flush=True)
        return {"denoiser": row.denoiser, "row": row.row, "run": row.run, **child.to_json()}

    def _summaries(self) -> dict[str, Any]:
        names = dict.fromkeys(row.denoiser for row in self.rows)
        return {
            name: summary.summarise([child for child in self.done if child["denoiser"] == name])
            for name in names
        }

    def _write(self) -> None:
        ran = {child["name"] for child in self.done}
        document = {
            **self.header,
            "not_run": [row.name for row in self.rows if row.name not in ran],
            "failed": [child["name"] for child in self.done if child["exit_status"] != 0],
            "summary": self._summaries(),
            "children": self.done,
        }
        children.write_json(self.out, document, hide=[self.work])


def plan(names: Sequence[str], *, warm: int, plain: bool) -> list[Row]:
    """The rows in order: what is needed to compare comes first, repetitions last, in case time runs out."""
    rows = []
    for name in names:
        rows += [Row(name, "cold", 1), Row(name, "warm", 1), Row(name, "raw", 1)]
        rows += [Row(name, "plain", 1)] if plain else []
        rows += [Row(name, "warm", run) for run in range(2, warm + 1)]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if everything was measured, 1 if a row is missing or failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    work = Path(given.keep or tempfile.mkdtemp(prefix="cachekit-bench-")).absolute()
    header = {
        "benchmark": "gpu_warm_start",
        "schema": SCHEMA,
        "tiny": given.tiny,
        "command": environment.command_line(SCRIPT, arguments),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": given.revision or environment.revision(),
        "machine": environment.machine(),
        "versions": environment.versions(),
    }
    benchmark = Benchmark(
        plan(given.only, warm=given.warm or (1 if given.tiny else 3), plain=given.plain),
        work,
        given.out,
        tiny=given.tiny,
        time_limit=given.time_limit,
        child_timeout=given.child_timeout,
        header=header,
    )
    try:
        return 0 if benchmark.run() else 1
    finally:
        if not given.keep:
            shutil.rmtree(work, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=SCRIPT, description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add(
        "--only",
        type=_names,
        default=DENOISERS,
        metavar="NAMES",
        help=f"of {','.join(DENOISERS)}; default all",
    )
    add("--out", type=Path, required=True, metavar="FILE", help="where the JSON goes")
    add("--warm", type=int, metavar="N", help="warm starts of each denoiser; default 3, with --tiny 1")
    add("--plain", action="store_true", help="also a cold start without cachekit: what recording costs")
    add("--tiny", action="store_true", help="tiny models on the CPU, to try this script")
    add("--time-limit", type=float, metavar="S", help="start no further process after S seconds")
    add(
        "--child-timeout",
        type=float,
        default=900,
        metavar="S",
        help="kill a process after S seconds; default 900",
    )
    add(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep stores, raw bundles and logs in FOLDER, which is made",
    )
    add("--revision", help="the commit, where this is no git checkout")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DENOISERS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(DENOISERS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
