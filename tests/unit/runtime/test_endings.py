"""Putting back: once each, the last change first, whoever asks and whatever fails."""

from __future__ import annotations

import pytest

from cachekit.runtime import endings
from cachekit.runtime.endings import Undo


def fail() -> None:
    """Fail."""
    raise ZeroDivisionError("unforeseen")


def test_the_last_change_is_put_back_first_and_once() -> None:
    """Asking again puts nothing back a second time."""
    done: list[int] = []
    undo = Undo()
    for number in (1, 2, 3):
        undo.add(done.append, number)

    assert undo.run() == []
    assert undo.run() == []

    assert done == [3, 2, 1]


def test_what_fails_keeps_nothing_else_from_being_put_back() -> None:
    """The failures are told."""
    done: list[int] = []
    undo = Undo()
    undo.add(done.append, 1)
    undo.add(fail)
    undo.add(done.append, 2)

    (error,) = undo.run()

    assert isinstance(error, ZeroDivisionError)
    assert done == [2, 1]


def test_an_interrupt_leaves_the_rest_to_whoever_comes_next() -> None:
    """The change that was interrupted is put back as well."""
    done: list[int] = []
    undo = Undo()
    undo.add(done.append, 1)
    interrupts = [KeyboardInterrupt()]

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        done.append(2)

    undo.add(interrupted)
    with pytest.raises(KeyboardInterrupt):
        undo.run()
    assert done == []

    assert undo.run() == []
    assert done == [2, 1]


def test_a_signal_handler_that_cuts_in_puts_the_rest_back() -> None:
    """The one that was cut into finishes, and nothing is left for it to do."""
    done: list[int] = []
    undo = Undo()
    undo.add(done.append, 1)
    cut = [undo.run]

    def cut_into() -> None:
        if cut:
            cut.pop()()
        done.append(2)

    undo.add(cut_into)

    assert undo.run() == []
    assert done == [2, 1, 2]


def test_all_sessions_of_an_exit_share_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten hung saves do not wait ten times as long as one."""
    now = [100.0]
    waits: list[float] = []

    class Hung:
        def close(self, *, timeout: float | None = None) -> None:
            assert timeout is not None
            waits.append(timeout)
            now[0] += timeout

    sessions = [Hung(), Hung()]
    monkeypatch.setattr(endings, "_open", sessions)
    monkeypatch.setattr("cachekit.runtime.endings.time.monotonic", lambda: now[0])

    endings._close_all()

    assert waits == [endings.EXIT_TIMEOUT_S, 0.0]
