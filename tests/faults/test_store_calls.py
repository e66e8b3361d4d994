"""Every call that a save or a start makes fails in turn, without torch: nothing acknowledged is lost."""

from __future__ import annotations

import os

import pytest

from tests.faults.conftest import Run
from tests.faults.table import compare, rendered, rows

pytestmark = pytest.mark.slow


def test_a_call_that_fails_costs_a_save_or_a_start_and_nothing_else(faulty: Run) -> None:
    """After each fault the store verifies, the next save and the next start are whole, and the table says what was.

    Each kind of call fails with all five; ``FAULTS=all`` has every single call fail with all.
    """
    told = faulty("store_calls", os.environ.get("FAULTS", ""))

    assert told["cases"] > 500
    if os.environ.get("FAULTS") != "all":
        compare("store", rendered(rows(told)))
