"""Saves run one after another on a thread of their own; nobody waits for one that never comes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from cachekit.runtime.saver import Saver

TIMEOUT_S = 20
"""Longer than any of these takes; a test that needs it has failed."""


class Work:
    """Work that waits for a go each time, and counts."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []
        self.running = 0
        self.most = 0

    def __call__(self) -> None:
        """Run once."""
        self.running += 1
        self.most = max(self.most, self.running)
        self.threads.append(threading.current_thread())
        self.started.release()
        assert self.go.acquire(timeout=TIMEOUT_S)
        self.running -= 1


@pytest.fixture
def work() -> Work:
    """Work that waits for a go."""
    return Work()


@pytest.fixture
def saver(work: Work) -> Iterator[Saver]:
    """A saver of that work, waited for in the end."""
    saver = Saver(work, name="test-save")
    yield saver
    work.go.release(100)
    assert saver.wait(timeout=TIMEOUT_S)


def test_a_request_runs_in_the_background(saver: Saver, work: Work) -> None:
    """The requesting thread goes on while the work runs on a daemon thread of the given name."""
    ticket = saver.request()

    assert work.started.acquire(timeout=TIMEOUT_S)
    assert not saver.wait(ticket, timeout=0)
    work.go.release()
    assert saver.wait(ticket, TIMEOUT_S)

    assert work.threads[0] is not threading.current_thread()
    assert work.threads[0].name == "test-save"
    assert work.threads[0].daemon


def test_requests_that_wait_together_are_one_run(saver: Saver, work: Work) -> None:
    """Whatever is asked for while a run is in progress is one more run, which all of them wait for."""
    first = saver.request()
    assert work.started.acquire(timeout=TIMEOUT_S)
    later = [saver.request() for _ in range(5)]
    work.go.release(2)

    assert all(saver.wait(ticket, TIMEOUT_S) for ticket in (first, *later))
    assert len(work.threads) == 2


def test_a_ticket_is_not_served_by_a_run_that_began_before_it(saver: Saver, work: Work) -> None:
    """A run in progress may have missed what is new, so a later ticket waits for the next one."""
    saver.request()
    assert work.started.acquire(timeout=TIMEOUT_S)
    ticket = saver.request()
    work.go.release()
    assert work.started.acquire(timeout=TIMEOUT_S)

    assert not saver.wait(ticket, timeout=0)

    work.go.release()
    assert saver.wait(ticket, TIMEOUT_S)


def test_the_work_never_runs_twice_at_once(saver: Saver, work: Work) -> None:
    """Requests from many threads are worked off one at a time."""
    threads = [threading.Thread(target=saver.request) for _ in range(8)]
    for thread in threads:
        thread.start()
    work.go.release(8)
    for thread in threads:
        thread.join()

    assert saver.wait(timeout=TIMEOUT_S)
    assert work.most == 1


def test_waiting_without_a_ticket_is_for_everything(saver: Saver, work: Work) -> None:
    """The wait before closing ends with the last run that anybody asked for."""
    saver.request()
    assert work.started.acquire(timeout=TIMEOUT_S)
    saver.request()

    assert not saver.wait(timeout=0)
    work.go.release(2)
    assert saver.wait(timeout=TIMEOUT_S)

    assert len(work.threads) == 2


def test_waiting_for_nothing_ends_at_once(saver: Saver) -> None:
    """Where nothing was requested there is nothing to wait for, and no thread."""
    before = threading.active_count()

    assert saver.wait(timeout=0)

    assert threading.active_count() == before


def test_an_idle_saver_has_no_thread(saver: Saver, work: Work) -> None:
    """The thread ends with the last request, and a later one starts another."""
    for _ in range(2):
        work.go.release()
        assert saver.wait(saver.request(), TIMEOUT_S)
        work.threads[-1].join(TIMEOUT_S)
        assert not work.threads[-1].is_alive()

    assert work.threads[0] is not work.threads[1]


def test_work_that_fails_is_told_and_the_next_request_runs(caplog: pytest.LogCaptureFixture) -> None:
    """After a failure, which the log tells, the waiting end, and the next request runs."""
    runs: list[int] = []

    def fail_once() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise ValueError("no space")

    saver = Saver(fail_once, name="test-save")
    with caplog.at_level(logging.ERROR, logger="cachekit"):
        assert saver.wait(saver.request(), TIMEOUT_S)
    assert "no space" in caplog.text

    assert saver.wait(saver.request(), TIMEOUT_S)
    assert runs == [0, 1]


def test_a_request_outlives_a_thread_that_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limit on threads is reached, or the interpreter ends, whoever waits does the work."""
    ran: list[threading.Thread] = []
    saver = Saver(lambda: ran.append(threading.current_thread()), name="test-save")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        ticket = saver.request()
        assert ran == []
        assert saver.wait(ticket, TIMEOUT_S)

    assert ran == [threading.current_thread()]
    assert saver.wait(saver.request(), TIMEOUT_S)
    assert ran[1] is not ran[0]


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_while_requesting_loses_nothing(monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    """Before or after the thread began: the request is worked off once, and nobody waits for ever."""
    ran: list[int] = []
    saver = Saver(lambda: ran.append(1), name="test-save")
    real = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if started:
            real(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saver.request()

    assert saver.wait(timeout=TIMEOUT_S)
    assert ran == [1]


def test_an_interrupted_wait_can_be_repeated(
    saver: Saver, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever interrupts a wait leaves the work to its thread."""
    ticket = saver.request()
    assert work.started.acquire(timeout=TIMEOUT_S)

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(saver._change, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saver.wait(ticket)
    work.go.release()

    assert saver.wait(ticket, TIMEOUT_S)


class Dying:
    """Work that ends its thread with each of these, if any, and then works."""

    def __init__(self, *deaths: BaseException) -> None:
        self.deaths = list(deaths)
        self.started = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.runs = 0

    def __call__(self) -> None:
        """Run once."""
        self.runs += 1
        self.started.release()
        assert self.go.acquire(timeout=TIMEOUT_S)
        if self.deaths:
            raise self.deaths.pop(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("death", [SystemExit(), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("timeout", [None, TIMEOUT_S])
def test_a_thread_that_dies_at_work_hands_over(death: BaseException, timeout: float | None) -> None:
    """A request that arrived while the dying thread counted as working is worked off by another one."""
    work = Dying(death)
    saver = Saver(work, name="test-save")
    first = saver.request()
    assert work.started.acquire(timeout=TIMEOUT_S)
    second = saver.request()
    work.go.release(2)

    ended: list[bool] = []
    waiter = threading.Thread(target=lambda: ended.append(saver.wait(second, timeout)), daemon=True)
    waiter.start()
    waiter.join(TIMEOUT_S)

    assert ended == [True]
    assert work.runs == 2
    assert saver.succeeded(second)
    assert saver.wait(first, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_hands_over_though_nobody_waits() -> None:
    """What was asked for meanwhile needs no third request and no wait."""
    work = Dying(SystemExit(), SystemExit())
    saver = Saver(work, name="test-save")
    for _ in range(3):
        saver.request()
        assert work.started.acquire(timeout=TIMEOUT_S)
        if work.runs < 3:
            saver.request()
        work.go.release()

    assert saver.wait(timeout=TIMEOUT_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_does_the_work_of_a_dead_thread_that_has_no_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads can be had no more when it dies: the one who waits already is woken, and works."""
    work = Dying(SystemExit())
    saver = Saver(work, name="test-save")
    saver.request()
    assert work.started.acquire(timeout=TIMEOUT_S)
    second = saver.request()
    ended: list[bool] = []
    waiter = threading.Thread(target=lambda: ended.append(saver.wait(second)), daemon=True)
    waiter.start()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    work.go.release(2)
    waiter.join(TIMEOUT_S)

    assert ended == [True]


def test_a_run_that_failed_did_not_succeed_and_a_later_one_makes_up_for_it() -> None:
    """Raising and returning False are failures; what they left is done by the run after them."""
    answers: list[object] = [ValueError("no"), False, None]

    def work() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    saver = Saver(work, name="test-save")
    tickets = []
    for expected in (False, False, True):
        tickets.append(saver.request())
        assert saver.wait(tickets[-1], TIMEOUT_S)
        assert saver.succeeded(tickets[-1]) is expected
    assert all(map(saver.succeeded, tickets))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_handler_that_raises_keeps_nobody_waiting() -> None:
    """The failure is told to a handler that fails itself; the thread goes on with what comes next."""
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        raise ValueError("no space")

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError

    logger, handler = logging.getLogger("cachekit"), Broken()
    logger.addHandler(handler)
    try:
        saver = Saver(work, name="test-save")
        assert saver.wait(saver.request(), TIMEOUT_S)
        assert saver.wait(saver.request(), TIMEOUT_S)
    finally:
        logger.removeHandler(handler)
    assert runs == [1, 1]
