"""The one call an engine makes: wrong arguments raise, and nothing else does."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cachekit
from cachekit.errors import ConfigurationError, StrictMissError
from cachekit.identity import Plan
from cachekit.runtime import torch_private
from cachekit.settings import Settings

hook = importlib.import_module("cachekit.hooks.attach")  # `cachekit.hooks.attach` as a name is the function

Attach = Callable[..., Any]
RESULT = 128
"""What a call with four rows sums up to."""


class Product(torch.nn.Module):
    """A matrix product: compiles without any C++ kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8, 8), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return x @ self.weight


def call(module: Any, rows: int = 4) -> float:
    """The sum of one call's result."""
    with torch.no_grad():
        return float(module(torch.ones(rows, 8)).sum())


def graphs() -> int:
    """How many graphs Dynamo has compiled."""
    return torch_private.compile_counters()["stats"]["unique_graphs"]


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, object(), torch.nn.Linear, call, {"unet": torch.nn.Linear(1, 1)}])
def test_a_target_that_is_no_module_is_refused(target: Any) -> None:
    """The error says what was given."""
    with pytest.raises(ConfigurationError, match=f"not {type(target).__name__}"):
        cachekit.attach(target)


@pytest.mark.parametrize("plan", ["blocks", {"device": "cpu"}, Settings])
def test_a_plan_of_another_type_is_refused(plan: Any) -> None:
    """A plan is a Plan."""
    with pytest.raises(ConfigurationError, match=r"plan must be a cachekit\.Plan"):
        cachekit.attach(Product(), plan=plan)


@pytest.mark.parametrize(
    ("argument", "allowed"), [({"mode": "nonsense"}, "readonly"), ({"save": "sometimes"}, "never")]
)
def test_a_mode_that_does_not_exist_is_refused(argument: dict[str, Any], allowed: str) -> None:
    """The error names what is allowed; a mistake in the code is not one of the environment."""
    with pytest.raises(ConfigurationError, match=allowed):
        cachekit.attach(Product(), **argument)


def test_a_wrong_argument_leaves_an_earlier_session_alone(attach: Attach) -> None:
    """The call that is refused changes nothing."""
    module = Product()
    earlier = attach(module)

    with pytest.raises(ConfigurationError):
        attach(module, mode="nonsense")

    assert earlier.state == "recording"
    assert torch_private.compiled_call(module) is not None


def test_a_relative_folder_is_made_absolute(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine may change its folder later."""
    monkeypatch.chdir(tmp_path)

    session = attach(Product(), dir="here")

    assert session.settings.dir == tmp_path / "here"


def test_arguments_go_before_the_environment(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    """What code asks for is not overridden by a variable."""
    monkeypatch.setenv("CACHEKIT_MODE", "strict")
    monkeypatch.setenv("CACHEKIT_SAVE", "close")

    session = attach(Product(), mode="readonly")

    assert (session.settings.mode, session.settings.save) == ("readonly", "close")


def test_settings_replace_the_environment(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given settings are used as they are, with single arguments on top; the variables are not read at all."""
    monkeypatch.setenv("CACHEKIT_MODE", "nonsense")

    session = attach(Product(), settings=Settings(dir=tmp_path / "mine", mode="readonly"), save="never")

    assert session.settings == Settings(dir=tmp_path / "mine", mode="readonly", save="never")
    assert session.state == "recording"


# --- plain modules -------------------------------------------------------------------------------------------------


def test_a_module_is_compiled_recorded_and_put_back(attach: Attach) -> None:
    """The first call compiles, the report tells it, and after closing the module is as it was."""
    module = Product()
    before = {**vars(module), "_compiled_call_impl": None}

    session = attach(module)
    result = call(module)
    report = session.report()
    session.close()

    assert result == RESULT
    assert report.misses == {"inductor": 1, "aot_autograd": 1}
    assert vars(module) == before
    assert session.report().saved_generations == (1,)


def test_a_module_is_static_by_default(attach: Attach) -> None:
    """Another size is another graph."""
    module = Product()
    session = attach(module)

    call(module, 4)
    call(module, 6)

    assert session.plan == Plan("cpu", scope="module", dynamic=False)
    assert session.report().misses["inductor"] == 2


def test_a_session_is_a_context(attach: Attach) -> None:
    """Leaving it closes it."""
    with attach(Product()) as session:
        assert session.state == "recording"

    assert session.state == "closed"


def test_attaching_again_closes_the_session_before(attach: Attach) -> None:
    """A denoiser belongs to one session; the earlier one saves first, so that the later one starts warm."""
    module = Product()
    first = attach(module)
    call(module)

    second = attach(module)
    torch._dynamo.reset()
    call(module)

    assert first.state == "closed"
    assert second.state in ("clean", "warm")
    assert second.report().misses == {}
    second.close()
    assert torch_private.compiled_call(module) is None


def test_strict_mode_raises_out_of_the_module(attach: Attach) -> None:
    """The only error of ours that an engine sees."""
    module = Product()
    attach(module, mode="strict")

    with pytest.raises(StrictMissError, match="no bundle for this fingerprint"):
        call(module)


def test_labels_of_a_plain_module_are_the_engine_s(attach: Attach) -> None:
    """Nothing tells what people call its shapes."""
    module = Product()
    session = attach(module)
    call(module)
    assert session.report().shapes == ()

    assert session.register_shape(4, 8, 1)

    assert session.report().shapes == ("4x8x1",)


# --- compiled by the engine ----------------------------------------------------------------------------------------


def test_an_optimized_module_is_left_to_its_engine(attach: Attach) -> None:
    """What ``torch.compile`` gave is observed through its forward, under a plan that says so, and put back."""
    module: Any = torch.compile(Product(), dynamic=False)
    forward = module.forward

    session = attach(module)
    assert session.plan == Plan("cpu", scope="caller", dynamic=None, fullgraph=False)
    assert call(module) == RESULT
    report = session.report()
    session.close()

    assert report.misses["inductor"] == 1
    assert any("the engine compiles by itself" in reason for reason in report.reasons)
    assert module.forward is forward
    assert session.report().saved_generations == (1,)


def test_a_caller_s_own_compile_is_left_alone(attach: Attach) -> None:
    """With such a plan the module keeps the compile that its engine gave it, before and after."""
    module = Product()
    module.compile(dynamic=False)
    theirs = torch_private.compiled_call(module)

    session = attach(module, plan=Plan("cpu", scope="caller", dynamic=None))
    assert call(module) == RESULT
    assert session.report().misses["inductor"] == 1
    session.close()

    assert torch_private.compiled_call(module) is theirs


def test_an_earlier_compile_is_back_after_closing(attach: Attach) -> None:
    """A plan that compiles takes over for as long as the session lives."""
    module = Product()
    module.compile(backend="eager")
    theirs = torch_private.compiled_call(module)

    attach(module).close()

    assert torch_private.compiled_call(module) is theirs


# --- disabled ------------------------------------------------------------------------------------------------------


def check_disabled(session: Any, module: Product, reason: str, folder: Path) -> None:
    """Disabled for this reason, compiled by plain torch all the same, nothing made on disk, and put back on close."""
    assert session.state == "disabled"
    assert reason in session.report().reasons[0]
    before = graphs()
    assert call(module) == RESULT
    assert graphs() == before + 1
    assert session.report().misses == {}
    assert not session.save(wait=True)
    assert not (folder / "cachekit").exists()
    session.close()
    assert torch_private.compiled_call(module) is None


def test_a_wrong_environment_disables(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's mistake does not stop the engine; the reason names the variable and what is allowed."""
    monkeypatch.setenv("CACHEKIT_MODE", "nonsense")
    module = Product()

    session = attach(module)

    assert "auto, on, readonly, strict, off" in session.report().reasons[0]
    check_disabled(session, module, "CACHEKIT_MODE='nonsense'", tmp_path)


def test_off_is_off(attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's switch."""
    monkeypatch.setenv("CACHEKIT_MODE", "off")
    module = Product()

    check_disabled(attach(module), module, "CACHEKIT_MODE=off", tmp_path)


def test_rights_of_another_user_disable(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setuid process must not load code from a folder that whoever started it names."""
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    module = Product()

    check_disabled(attach(module), module, "the process runs with another user's rights", tmp_path)


def test_a_network_file_system_is_readonly(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The session installs and never saves, and the report and one warning say what to set."""
    monkeypatch.setattr(hook.mounts, "unsafe_to_write", lambda folder: f"{folder} is far away")

    session = attach(Product())

    assert session.settings.mode == "readonly"
    assert f"{session.settings.store_root} is far away" in session.report().reasons
    assert "cachekit saves nothing" in caplog.text


def test_another_platform_disables(attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be cached, engines run all the same."""
    monkeypatch.setattr(hook, "sys", SimpleNamespace(platform="darwin", modules=sys.modules))
    module = Product()

    check_disabled(attach(module), module, "platform darwin is not supported", tmp_path)


def test_more_than_one_rank_disables(attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that decided alone would wait for each other."""
    module = Product()
    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_world_size", lambda: 2)
        session = attach(module)

    check_disabled(session, module, "torch.distributed has more than one rank", tmp_path)


@pytest.mark.parametrize("available", [True, False])
def test_one_rank_does_not_disable(attach: Attach, monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    """A process group of one, or a torch without any, is nothing special."""
    monkeypatch.setattr(torch.distributed, "is_available", lambda: available)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: available)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)

    session = attach(Product())

    assert session.state == "recording"


def test_a_fingerprint_that_fails_disables(
    attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that nobody can describe is compiled by plain torch, into the engine's own folder."""
    theirs = os.environ["TORCHINDUCTOR_CACHE_DIR"]

    def fail(*args: Any) -> Any:
        raise RecursionError("too deep")

    monkeypatch.setattr(hook, "fingerprint", fail)
    module = Product()

    session = attach(module)

    assert session.report().reasons == ("RecursionError: too deep",)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == theirs
    before = graphs()
    assert call(module) == RESULT
    assert graphs() == before + 1


def test_a_compile_that_cannot_be_set_up_leaves_the_module_eager(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever torch raises while it is told to compile, the module runs."""

    def fail(*args: Any) -> Any:
        raise RuntimeError("torch.compile is not supported on this Python")

    monkeypatch.setattr(hook, "compile_denoiser", fail)
    module = Product()

    session = attach(module)

    assert session.state == "disabled"
    assert "not supported on this Python" in session.report().reasons[0]
    before = graphs()
    assert call(module) == RESULT
    assert graphs() == before


def test_unknown_variables_are_named(
    attach: Attach, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt variable would otherwise do nothing in silence."""
    monkeypatch.setenv("CACHEKIT_MOED", "off")

    with caplog.at_level(logging.WARNING, logger="cachekit"):
        session = attach(Product())

    assert session.state == "recording"
    assert "CACHEKIT_MOED" in caplog.text
