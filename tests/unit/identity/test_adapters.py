"""LoRA and its relatives: told by structure, order and scale, never by name or weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoHaConfig, LoraConfig, inject_adapter_in_model

from cachekit.identity import Plan, fingerprint

CPU = Plan("cpu")
Maker = Callable[..., Any]
QV = ("to_q", "to_v")


def lora(
    rank: int = 4, *, targets: tuple[str, ...] = QV, alpha: float | None = None, **more: Any
) -> LoraConfig:
    """A LoRA of one rank; alpha follows the rank unless given."""
    return LoraConfig(r=rank, lora_alpha=alpha or rank, target_modules=list(targets), **more)


def of(model: Any) -> str:
    """The id of a model on the CPU."""
    return fingerprint(model, CPU).id


def adapted(make: Maker, *configs: LoraConfig, names: tuple[str, ...] = ("one", "two", "three")) -> Any:
    """A fresh model with adapters loaded in order, all active."""
    model = make()
    for name, config in zip(names, configs, strict=False):
        model.add_adapter(config, adapter_name=name)
    if configs:
        model.set_adapters(list(names[: len(configs)]))
    return model


@pytest.mark.parametrize("family", ["unet", "flux"])
def test_attached_and_detached(family: str, request: pytest.FixtureRequest) -> None:
    """A LoRA makes another program; unloading it returns to the first id."""
    make = request.getfixturevalue(family)
    model = make()
    before = fingerprint(model, CPU)
    model.add_adapter(lora(), adapter_name="style")
    attached = fingerprint(model, CPU)
    model.unload_lora()

    told = {difference.path for difference in before.diff(attached)}
    assert "pipeline.denoisers.module.adapters" in told
    assert fingerprint(model, CPU) == before


def test_rank_alpha_and_targets(flux: Maker) -> None:
    """Each changes shapes or a constant in the code."""
    variants = [lora(4), lora(8), lora(4, alpha=8), lora(4, targets=("to_q",)), lora(4, use_dora=True)]

    assert len({of(adapted(flux, config)) for config in variants}) == len(variants)


def test_rank_is_named(flux: Maker) -> None:
    """The difference says rank, not just digest."""
    mine, theirs = (fingerprint(adapted(flux, lora(rank)), CPU) for rank in (4, 8))
    (adapters,) = [found for found in mine.diff(theirs) if found.path.endswith(".adapters")]

    assert adapters.mine[0]["r"] == {"4": 10}
    assert adapters.theirs[0]["r"] == {"8": 10}


def test_names_and_weights_do_not_count(flux: Maker) -> None:
    """Every style of one rank shares compiled code, whatever users call it."""
    ids = {of(adapted(flux, lora(), names=(name,))) for name in ("style", "to_q", "weight", "0", "default_0")}

    assert len(ids) == 1


def test_order_of_active_adapters_counts_and_of_loading_does_not(flux: Maker) -> None:
    """What is added first is computed first; in which order the files were read does not matter."""
    ab, ba = adapted(flux, lora(4), lora(8)), adapted(flux, lora(8), lora(4), names=("two", "one"))
    reordered = adapted(flux, lora(4), lora(8))
    reordered.set_adapters(["two", "one"])

    assert of(ab) != of(ba)
    assert of(reordered) == of(ba)


def test_scale(flux: Maker) -> None:
    """The scale is a constant in the code: setting it makes another program, and setting it back the first."""
    model = adapted(flux, lora())
    before = of(model)
    model.set_adapters(["one"], weights=[0.5])

    assert of(model) != before
    model.set_adapters(["one"], weights=[1.0])
    assert of(model) == before


def test_switched_off_and_on(flux: Maker) -> None:
    """A disabled adapter is in the model and not in the program."""
    model = adapted(flux, lora())
    attached = of(model)
    model.disable_lora()
    off = of(model)
    model.enable_lora()

    assert off != attached
    assert of(model) == attached


def test_fused_into_the_weights(flux: Maker) -> None:
    """A merged adapter is skipped in forward."""
    model = adapted(flux, lora())
    attached = of(model)
    model.fuse_lora()

    assert of(model) != attached
    model.unfuse_lora()
    assert of(model) == attached


def test_dtype_of_the_adapter(flux: Maker) -> None:
    """An adapter in half precision casts on the way."""
    a, b = adapted(flux, lora()), adapted(flux, lora())
    for name, parameter in b.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(torch.bfloat16)

    assert of(a) != of(b)


def test_on_meta(flux: Maker) -> None:
    """A planner can plan for a LoRA."""
    with torch.device("meta"):
        planned = adapted(flux, lora())

    assert of(planned) == of(adapted(flux, lora()))


def test_adapters_of_another_method() -> None:
    """Not only LoRA: whatever peft wraps around a layer."""

    def make(*ranks: int) -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        for rank in ranks:
            model = inject_adapter_in_model(LoHaConfig(r=rank, target_modules=["0"]), model)
        return model

    assert len({of(make()), of(make(2)), of(make(4))}) == 3


def test_peft_is_named_only_when_it_is_used(flux: Maker) -> None:
    """An upgrade of peft does not touch models without adapters."""
    plain, with_lora = (fingerprint(model, CPU).components for model in (flux(), adapted(flux, lora())))

    assert "peft" not in plain["toolchain"]["packages"]
    assert with_lora["toolchain"]["packages"]["peft"]
