"""Processes killed at random calls: nothing acknowledged is lost, and the next one clears up after them."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Run

pytestmark = pytest.mark.slow


def test_kill_in_the_middle_of_saving_starting_and_collecting(faulty: Run) -> None:
    """Fifty of each, at different calls, before or after the call took place."""
    assert faulty("store_kills", "50") == {"first save": 25, "save": 25, "start": 50, "collect": 50}


def test_kill_in_the_middle_of_a_real_session(faulty: Run) -> None:
    """Five that compile: what was saved before is hit afterwards, and the killed session's work can be done again."""
    assert faulty("session_kills", "5") == {"sessions": 5}
