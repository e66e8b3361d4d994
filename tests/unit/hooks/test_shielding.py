"""What the engine's own log handlers, timeouts and threads do while cachekit is at work."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cachekit.identity import Plan
from cachekit.runtime import endings, process, profiles, torch_private
from cachekit.runtime.library import Library

hook = importlib.import_module("cachekit.hooks.attach")  # `cachekit.hooks.attach` as a name is the function

Attach = Callable[..., Any]
TIMEOUT_S = 20


class Product(torch.nn.Module):
    """A matrix product: compiles without any C++ kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8, 8), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return x @ self.weight


def call(module: Any) -> float:
    """The sum of one call's result."""
    with torch.no_grad():
        return float(module(torch.ones(4, 8)).sum())


# --- logging -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["handler", "filter"])
def broken_log(request: pytest.FixtureRequest) -> Iterator[Callable[[int], None]]:
    """Sets the level from which on a handler, or filters, of the engine raise."""
    names = ("cachekit", "cachekit.session")
    loggers = [logging.getLogger(name) for name in names]

    def fail(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError("the engine's own")

    handler = logging.Handler()
    handler.emit = fail  # type: ignore[assignment]

    def start(level: int) -> None:
        loggers[0].setLevel(level)
        if request.param == "handler":
            loggers[0].addHandler(handler)
        else:
            for logger in loggers:
                logger.addFilter(fail)

    yield start
    loggers[0].setLevel(logging.NOTSET)
    loggers[0].removeHandler(handler)
    for logger in loggers:
        logger.removeFilter(fail)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING])
def test_a_log_that_raises_does_not_reach_the_engine_nor_end_a_session(
    attach: Attach, broken_log: Callable[[int], None], level: int
) -> None:
    """Attach, call, save and close go well, and the session is as if the log had been."""
    broken_log(level)
    module = Product()

    made = attach(module)
    assert call(module) == 128
    assert made.register_shape(4, 8, 1)
    assert made.save(wait=True)
    assert made.state == "clean"
    made.close()

    assert made.report().saved_generations
    assert torch_private.compiled_call(module) is None


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
def test_a_log_that_raises_does_not_make_trouble_worse(
    attach: Attach, broken_log: Callable[[int], None], level: int
) -> None:
    """Nothing can be kept where the folder is a device; that is told to nobody, and the engine runs."""
    broken_log(level)
    module = Product()

    made = attach(module, dir="/dev/null")

    assert call(module) == 128
    assert not made.save(wait=True)
    assert made.report().reasons
    made.close()
    assert torch_private.compiled_call(module) is None


# --- interrupts ----------------------------------------------------------------------------------------------------


class Timeout(BaseException):
    """What an engine raises from its signal handler."""


def _interrupt(*args: Any, **kwargs: Any) -> Any:
    raise Timeout


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (process.SharedState, "enter"),
        (Library, "__init__"),
        (Library, "find"),
        (profiles, "Profile"),
        (endings, "close_at_exit"),
        (hook, "_close_earlier"),
        (hook, "compile_denoiser"),
        (hook, "_observe"),
        (hook.ModuleTarget, "watch"),
    ],
)
def test_an_interrupt_passes_through_attach_and_leaves_nothing(
    attach: Attach, compiling: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """A timeout that is no `Exception` reaches the engine; module and environment are as before."""
    module = Product()
    before = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _interrupt)
        with pytest.raises(Timeout):
            attach(module)

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == before
    assert torch_private.compiled_call(module) is None
    made = attach(module)
    assert call(module) == 128
    assert made.save(wait=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("death", [SystemExit(), Timeout()], ids=repr)
def test_a_save_that_is_killed_is_no_save_and_loses_nothing(
    attach: Attach, monkeypatch: pytest.MonkeyPatch, death: BaseException
) -> None:
    """Whoever waited for it is told, and the next save has all of it."""

    def die(*args: Any, **kwargs: Any) -> Any:
        raise death

    module = Product()
    made = attach(module, save="close")
    call(module)
    with monkeypatch.context() as patch:
        patch.setattr(Library, "publish", die)
        assert not made.save(wait=True)
        assert made.state == "dirty"

    assert made.save(wait=True)
    assert made.state == "clean"
    assert made.report().saved_generations == (1,)


# --- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_of_two_attaches_at_once_the_later_one_has_the_module(
    attach: Attach, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    """The second begins while the first is compiling: it waits, closes the first, and all is put back in the end."""
    module = Product()
    looked, compiling = threading.Event(), threading.Event()
    close_earlier, compile_denoiser = hook._close_earlier, hook.compile_denoiser

    def close_and_tell(target: Any) -> None:
        close_earlier(target)
        if threading.current_thread() is second:
            looked.set()  # and has found nobody, if it did not wait for its turn

    def compile_slowly(inner: Any, plan: Plan, *rest: Any) -> None:
        if threading.current_thread() is not second:
            compiling.set()
            assert looked.wait(TIMEOUT_S)
        compile_denoiser(inner, plan, *rest)

    monkeypatch.setattr(hook, "_close_earlier", close_and_tell)
    monkeypatch.setattr(hook, "compile_denoiser", compile_slowly)
    made: dict[str, Any] = {}
    first = threading.Thread(target=lambda: made.update(first=attach(module)), daemon=True)
    second = threading.Thread(target=lambda: made.update(second=attach(module)), daemon=True)
    first.start()
    assert compiling.wait(TIMEOUT_S)
    second.start()
    first.join(TIMEOUT_S)
    second.join(TIMEOUT_S)

    assert [made["first"].state, made["second"].state] == ["closed", "recording"]
    assert call(module) == 128
    for name in order:
        made[name].close()
    assert torch_private.compiled_call(module) is None
