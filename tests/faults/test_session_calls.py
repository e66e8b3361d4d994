"""Calls of real sessions fail in turn: the pipeline generates, its result is right, and nothing is lost."""

from __future__ import annotations

import os

import pytest

from tests.faults.conftest import Run
from tests.faults.table import compare, contains, rendered, rows

pytestmark = pytest.mark.slow


def test_a_call_that_fails_never_reaches_the_engine(faulty: Run) -> None:
    """A first start (compile, save) and a later one (find, verify, install), with each kind of call failing once.

    ``FAULTS=all`` tries all that the table says.
    """
    everything = os.environ.get("FAULTS") == "all"

    seen = rows(faulty("session_calls", "all" if everything else ""))

    assert len(seen) > 20
    if everything:
        compare("session", rendered(seen))
    else:
        contains("session", seen)
