"""A forked child finds free locks, and no fork happens in a stretch that must not be cut in half."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from cachekit.runtime import forks

TIMEOUT_S = 20


class Owner:
    """Something with a lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        forks.renew_in_child(self)


def in_child(check: Callable[[], bool]) -> bool:
    """What ``check`` finds in a forked child."""
    pid = os.fork()
    if not pid:
        found = False
        try:
            found = check()
        finally:
            os._exit(0 if found else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.fixture
def elsewhere() -> Callable[[object], threading.Event]:
    """Have a lock or stretch entered on another thread until the event that is given is set."""

    def enter(context: object) -> threading.Event:
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with context:  # type: ignore[attr-defined]
                entered.set()
                leave.wait(TIMEOUT_S)

        threading.Thread(target=hold, daemon=True).start()
        assert entered.wait(TIMEOUT_S)
        return leave

    return enter


def test_a_lock_of_another_thread_is_free_in_a_child(elsewhere: Callable[[object], threading.Event]) -> None:
    """The thread that would release it does not exist there."""
    owner = Owner()
    leave = elsewhere(owner._lock)

    assert in_child(lambda: owner._lock.acquire(blocking=False))
    assert not owner._lock.acquire(blocking=False)

    leave.set()


def test_the_forking_thread_may_hold_the_lock() -> None:
    """It leaves its own lock in the child as it does in the parent."""
    owner = Owner()

    def leave() -> bool:
        return not forks.held_here(owner._lock)

    with owner._lock:
        assert forks.held_here(owner._lock)
        assert in_child(leave)
        assert forks.held_here(owner._lock)


def test_a_fork_waits_for_an_unforkable_stretch(elsewhere: Callable[[object], threading.Event]) -> None:
    """It goes on as soon as the stretch ends, and the child may enter one itself."""
    leave = elsewhere(forks.unforkable())
    forked: list[bool] = []

    def enter() -> bool:
        with forks.unforkable():
            return True

    forking = threading.Thread(target=lambda: forked.append(in_child(enter)))
    forking.start()
    forking.join(0.05)
    assert forking.is_alive()

    leave.set()
    forking.join(TIMEOUT_S)
    assert forked == [True]


def test_a_fork_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[object], threading.Event]
) -> None:
    """A hung disk keeps no engine from starting a worker."""
    monkeypatch.setattr(forks, "FORK_WAIT_S", 0.01)
    leave = elsewhere(forks.unforkable())

    assert in_child(lambda: True)

    leave.set()


def test_a_stretch_may_fork_itself() -> None:
    """What is imported in it may start a process."""
    with forks.unforkable(), forks.unforkable():
        assert in_child(lambda: True)
