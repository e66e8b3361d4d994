"""Two minutes of coverage-guided fuzzing in every run of the tests, from the corpus that the long runs left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import processes
from tests.fuzz.targets import TARGETS

SECONDS = {"pickle": 24, "document": 18, "store": 18, "wire": 15, "coverage": 10, "guards": 8}
OTHERS = 5


def test_two_minutes_are_fuzzed_in_all() -> None:
    """What the targets get adds up to two minutes."""
    assert sum(SECONDS.get(name, OTHERS) for name in TARGETS) >= 120


@pytest.mark.slow
@pytest.mark.skipif(processes.missing() is not None, reason=processes.missing() or "")
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_coverage_guided_fuzzing_finds_nothing(name: str, tmp_path: Path) -> None:
    """No input breaks a promise, takes twenty seconds or a gigabyte; one that does is shown as bytes in hex."""
    outcome = processes.fuzz(name, seconds=SECONDS.get(name, OTHERS), scratch=tmp_path)
    assert outcome.reproducer is None, outcome.complaint()
    assert outcome.executions > 100, outcome.log[-2000:]
    assert outcome.counters > 5, "the code was not instrumented"
