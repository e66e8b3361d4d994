"""Ten thousand mutations of every kind of foreign bytes, the same ones each time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fuzz import processes
from tests.fuzz.targets import TARGETS

COUNTS = {"coverage": 1200, "document": 1200, "guards": 1000, "pickle": 1200, "store": 1000, "wire": 1400}
OTHERS = 600
SLOWEST_S = 2.0
"""Measured 0.05; the rest is for a machine that does something else as well."""


def test_ten_thousand_mutations_give_a_value_or_our_error() -> None:
    """Whatever the bytes are, there is a value that round-trips or a named error, at once, and nothing is touched.

    The process has 768 MB of address space, and an audit hook that ends it when anything is written, run or connected.
    """
    counts = {name: COUNTS.get(name, OTHERS) for name in TARGETS}
    assert sum(counts.values()) >= 10_000
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.watched", "2026", *(f"{name}={n}" for name, n in counts.items())],
        cwd=processes.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {result["target"] for result in results} == set(TARGETS)
    for result in results:
        assert result["accepted"] > 20, f"hardly anything gets through to the deeper layers: {result}"
        assert result["refused"] > 20 or result["target"] == "guards", f"the mutations are too tame: {result}"
        assert result["slowest"] < SLOWEST_S, result


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_committed_inputs_keep_their_promises(name: str) -> None:
    """What coverage-guided fuzzing found interesting, and every finding of the past, is handled as promised."""
    from tests.fuzz import targets

    inputs = sorted((processes.CORPUS / name).iterdir())
    assert inputs, "the corpus of this target is missing; make fuzz writes it"
    for path in inputs:
        targets.run(name, path.read_bytes())


def test_corpus_stays_small() -> None:
    """The corpus is part of every clone: below 2 MB and 1500 files."""
    files = [path for path in processes.CORPUS.rglob("*") if path.is_file()]
    assert len(files) < 1500
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_what_people_read_about_the_long_runs_is_what_was_recorded() -> None:
    """README.md is that of runs.json and of the corpus as it is, and half an hour was fuzzed at least."""
    from tests.fuzz import campaign

    runs = json.loads((processes.CORPUS.parent / "runs.json").read_text(encoding="utf-8"))
    assert (processes.CORPUS.parent / "README.md").read_text(encoding="utf-8") == campaign.readme(runs)
    assert sum(facts["seconds"] for run in runs for facts in run["targets"].values()) >= 1800
