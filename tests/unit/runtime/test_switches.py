"""What is switched off in torch is told with what to set, whether by its configuration, a variable or an option."""

from __future__ import annotations

import importlib

import pytest

from cachekit.runtime import switches

NOTHING = (
    ("torch._dynamo.config", "disable", True, "unset TORCH_COMPILE_DISABLE"),
    ("torch.compiler.config", "force_disable_caches", True, "unset TORCHINDUCTOR_FORCE_DISABLE_CACHES"),
    ("torch._inductor.config", "force_disable_caches", True, "unset TORCHINDUCTOR_FORCE_DISABLE_CACHES"),
    ("torch._inductor.config", "fx_graph_cache", False, "TORCHINDUCTOR_FX_GRAPH_CACHE"),
)
LESS = (
    ("torch._functorch.config", "enable_autograd_cache", False, "TORCHINDUCTOR_AUTOGRAD_CACHE"),
    ("torch._inductor.config", "autotune_local_cache", False, "set it to True"),
)


def test_torch_as_it_comes_keeps_everything() -> None:
    """Nobody is told to change what nobody changed."""
    assert switches.nothing_is_kept({}) is None
    assert switches.less_is_kept({}) == []


@pytest.mark.parametrize(("module", "name", "value", "advice"), NOTHING)
def test_a_switch_that_leaves_nothing_to_keep_is_named(
    module: str, name: str, value: bool, advice: str
) -> None:
    """Each of these exists in this torch, is seen under every name it has, and comes with what to do."""
    with importlib.import_module(module).patch(**{name: value}):
        told = switches.nothing_is_kept({})

    assert told is not None
    assert f"{name} is {value}" in told
    assert advice in told
    assert switches.nothing_is_kept({}) is None


@pytest.mark.parametrize(("module", "name", "value", "advice"), LESS)
def test_a_switch_that_leaves_less_to_keep_is_named(module: str, name: str, value: bool, advice: str) -> None:
    """The session goes on, and says what each start repeats."""
    with importlib.import_module(module).patch(**{name: value}):
        (told,) = switches.less_is_kept({})
        assert switches.nothing_is_kept({}) is None

    assert f"{name} is {value}" in told
    assert advice in told


def test_options_of_the_plan_win_over_the_configuration() -> None:
    """torch.compile takes these as options too, for one compile."""
    inductor = importlib.import_module("torch._inductor.config")

    assert "fx_graph_cache is False" in (switches.nothing_is_kept({"fx_graph_cache": False}) or "")
    with inductor.patch(fx_graph_cache=False):
        assert switches.nothing_is_kept({"fx_graph_cache": True}) is None
