"""A long run: every target in turn, then the corpus minimised and the facts written down.

    make fuzz FUZZ_SECONDS=1800

Findings are printed as bytes in hex and make the exit status 1; the corpus, ``runs.json`` and ``README.md`` are written
all the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import sys
import tempfile
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.fuzz import processes, samples
from tests.fuzz.targets import TARGETS

MAX_FILES = 120
MAX_BYTES = 160 * 1024
"""Of one target's corpus: it is committed, and every run of the tests reads it."""
_ONE_FILE = 32 * 1024
_WEIGHTS = {"pickle": 4, "document": 3, "store": 3, "wire": 3, "coverage": 2, "guards": 2}
"""How much more time than the others a target gets: there is more behind it."""

_HERE = Path(__file__).parent
_README = """# Long runs

Written by `make fuzz` from `runs.json`; do not edit. How it works: `targets.py` says what each target promises,
`guided.py` is the process that Atheris runs in, `corpus/` is what was kept. Every run of the tests fuzzes for two
minutes from there.

In all: {seconds:,} seconds of coverage-guided fuzzing on one core, {executions:,} executions, {findings} findings.
An input that takes {one} seconds or {memory} MB of memory is a finding; inputs have up to {size} KiB.

| run | Python | Atheris | machine | seconds | executions | findings |
|---|---|---|---|---|---|---|
{runs}

| target | seconds | executions | counters | features | corpus files | corpus bytes | findings |
|---|---|---|---|---|---|---|---|
{targets}

Seconds, executions and findings are those of all runs, counters and features those of the last: Atheris counts the
edges of `cachekit.bundle`, `cachekit.store` and `cachekit.identity.fingerprint` that were reached, and features tell
how often.
"""


def main() -> int:
    """Run, minimise, write; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=1800, help="of all targets together")
    parser.add_argument("--targets", nargs="*", default=sorted(TARGETS))
    arguments = parser.parse_args()
    problem = processes.missing()
    if problem:
        print(problem, file=sys.stderr)
        return 1
    outcomes, weights = [], sum(_WEIGHTS.get(name, 1) for name in arguments.targets)
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.targets:
            share = math.ceil(arguments.seconds * _WEIGHTS.get(name, 1) / weights)
            outcome = _one(name, share, Path(scratch) / name)
            print(f"{name}: {outcome.executions} executions, {outcome.counters} counters", flush=True)
            outcomes.append(outcome)
    broken = [outcome for outcome in outcomes if outcome.reproducer is not None]
    for outcome in broken:
        print(outcome.complaint(), flush=True)
    if set(arguments.targets) == set(TARGETS):
        _write_down(outcomes)
    return 1 if broken else 0


def _one(name: str, seconds: int, scratch: Path) -> processes.Outcome:
    outcome = processes.fuzz(name, seconds=seconds, scratch=scratch)
    kept = processes.CORPUS / name
    processes.minimise(name, [scratch / "corpus", *([kept] if kept.is_dir() else [])], scratch / "small")
    _replace(kept, _chosen(scratch / "small", name))
    return outcome


def _chosen(folder: Path, name: str) -> list[bytes]:
    """The smallest inputs, as many as may be committed; samples are made anew each time and left out."""
    known = set(samples.seeds()[name])
    inputs = sorted((path.read_bytes() for path in folder.iterdir()), key=lambda data: (len(data), data))
    chosen: list[bytes] = []
    for data in inputs:
        if data in known or len(data) > _ONE_FILE:
            continue
        if len(chosen) < MAX_FILES and sum(map(len, chosen)) + len(data) <= MAX_BYTES:
            chosen.append(data)
    return chosen


def _replace(folder: Path, inputs: list[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {hashlib.sha256(data).hexdigest()[:20]: data for data in inputs}
    for path in folder.iterdir():
        # What has a name that somebody gave it is a finding of the past, kept whatever it covers.
        if len(path.name) == 20 and path.name not in names:
            path.unlink()
    for digest, data in names.items():
        (folder / digest).write_bytes(data)


def _write_down(outcomes: list[processes.Outcome]) -> None:
    """Add this run to ``runs.json`` and write ``README.md`` anew from it."""
    path = _HERE / "runs.json"
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "atheris": version("atheris"),
        "machine": platform.machine(),
    }
    targets = {
        outcome.target: {
            "seconds": outcome.seconds,
            "executions": outcome.executions,
            "counters": outcome.counters,
            "features": outcome.features,
            "findings": int(outcome.reproducer is not None),
        }
        for outcome in outcomes
    }
    runs.append({**facts, "targets": targets})
    path.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    (_HERE / "README.md").write_text(readme(runs), encoding="utf-8")


def readme(runs: list[dict[str, Any]]) -> str:
    """What people read about all runs, and about the corpus as it is."""

    def total(name: str, chosen: list[dict[str, Any]], target: str | None = None) -> int:
        return sum(
            facts[name]
            for run in chosen
            for found, facts in run["targets"].items()
            if target in (None, found)
        )

    rows = []
    for name, last in runs[-1]["targets"].items():
        sizes = [path.stat().st_size for path in (processes.CORPUS / name).iterdir()]
        done = [f"{total(one, runs, name):,}" for one in ("seconds", "executions")]
        reached = [f"{last[one]:,}" for one in ("counters", "features")]
        kept = [f"{len(sizes):,}", f"{sum(sizes):,}", f"{total('findings', runs, name)}"]
        rows.append(f"| {' | '.join([name, *done, *reached, *kept])} |")
    return _README.format(
        **{name: total(name, runs) for name in ("seconds", "executions", "findings")},
        one=processes.ONE_INPUT_S,
        memory=processes.MEMORY_MB,
        size=processes.MAX_INPUT // 1024,
        runs="\n".join(
            f"| {run['date']} | {run['python']} | {run['atheris']} | {run['machine']} | {total('seconds', [run]):,} "
            f"| {total('executions', [run]):,} | {total('findings', [run])} |"
            for run in runs
        ),
        targets="\n".join(rows),
    )


if __name__ == "__main__":
    sys.exit(main())
