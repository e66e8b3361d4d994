"""Calls of real sessions fail in turn: the pipeline generates, its result is right, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Run
from tests.faults.table import compare, rendered, rows

pytestmark = pytest.mark.slow


def test_a_call_that_fails_never_reaches_the_engine(faulty: Run) -> None:
    """A first start (compile, save) and a later one (find, verify, install), with each kind of call failing once."""
    told = faulty("session_calls")

    assert told["cases"] > 50
    compare("session", rendered(rows(told)))
