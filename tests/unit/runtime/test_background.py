"""Working beside another thread: what is changed for its sake is put back, whoever leaves first."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from cachekit.runtime.background import SWITCH_INTERVAL_S, quietly

Settings = tuple[float, tuple[int, int, int]]


def settings() -> Settings:
    """What the interpreter is set to."""
    return sys.getswitchinterval(), gc.get_threshold()


@pytest.fixture(autouse=True)
def before() -> Iterator[Settings]:
    """The settings before a test, which it must leave as they were."""
    found = settings()
    yield found
    assert found == settings()


def test_threads_take_turns_quickly_and_nobody_walks_the_heap(before: Settings) -> None:
    """While something works, a waiting thread gets its turn soon, and young objects alone are collected."""
    with quietly():
        interval, (young, middle, old) = settings()

    assert interval == pytest.approx(SWITCH_INTERVAL_S)
    assert (young, middle) == before[1][:2]
    assert old > 1_000_000
    assert gc.isenabled()


def test_an_error_puts_everything_back(before: Settings) -> None:
    """A save that fails leaves the interpreter as it was."""
    with pytest.raises(RuntimeError), quietly():
        raise RuntimeError("disk full")

    assert settings() == before


def test_the_last_to_leave_puts_back(before: Settings) -> None:
    """Two sessions that save at once: the first to end takes nothing away from the other."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with quietly():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    with quietly():
        pass
    between = settings()
    leave.set()
    thread.join()

    assert between != before


def test_an_engine_that_switches_even_faster_is_left_alone() -> None:
    """An interval that is short already stays."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S / 5)
    try:
        with quietly():
            assert sys.getswitchinterval() < SWITCH_INTERVAL_S / 4
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_its_own_settings_back(before: Settings) -> None:
    """A child has no thread that saves, so nothing would ever put its settings back."""
    reading, writing = os.pipe()
    with quietly():
        child = os.fork()
        if child == 0:
            os.write(writing, b"same" if settings() == before else b"different")
            os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 16) == b"same"
    os.close(reading)
    os.close(writing)
