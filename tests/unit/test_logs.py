"""The log and the texts of errors cannot fail, whatever the engine has plugged in."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from cachekit.logs import Log, said


class MuteError(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("nothing to say")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ValueError("  "), "ValueError"),
        (MuteError(), "MuteError"),
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
    ],
)
def test_an_error_says_its_type_and_what_it_has_to_say(error: Exception, text: str) -> None:
    """Without a text there is no colon, and an error that cannot be printed has its type."""
    assert said(error) == text


@pytest.fixture(params=["handler", "filter"])
def broken(request: pytest.FixtureRequest) -> Log:
    """A logger with a handler, or a filter, that raises."""
    name = f"cachekit.test.{request.param}"
    logger = logging.getLogger(name)
    logger.setLevel(logging.DEBUG)

    def fail(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    if request.param == "filter":
        logger.addFilter(fail)
    else:
        handler = logging.Handler()
        handler.emit = fail  # type: ignore[assignment]
        logger.addHandler(handler)
    return Log(name)


@pytest.mark.parametrize(
    "tell",
    [
        lambda log: log.debug("a"),
        lambda log: log.info("a %s", MuteError()),
        lambda log: log.warning("a", exc_info=ValueError()),
        lambda log: log.exception("a"),  # noqa: LOG004
        lambda log: log.log(logging.INFO, "a %d", "b"),
    ],
)
def test_a_handler_or_filter_that_raises_is_passed_over(broken: Log, tell: Callable[[Log], None]) -> None:
    """Nothing comes out, whatever level it is."""
    tell(broken)


def test_an_interrupt_in_a_handler_passes() -> None:
    """Only exceptions end here: whoever interrupts wants to stop."""
    logger = logging.getLogger("cachekit.test.interrupt")

    def interrupt(record: logging.LogRecord) -> bool:
        raise KeyboardInterrupt

    logger.addFilter(interrupt)
    with pytest.raises(KeyboardInterrupt):
        Log("cachekit.test.interrupt").warning("a")


def test_a_record_says_who_told_it(caplog: pytest.LogCaptureFixture) -> None:
    """File and function are those of the caller, as with a plain logger."""
    Log("cachekit.test").warning("a")
    Log("cachekit.test").log(logging.WARNING, "b")

    assert {record.funcName for record in caplog.records} == {"test_a_record_says_who_told_it"}
    assert len(caplog.records) == 2
