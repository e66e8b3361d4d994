"""The plan as a value, and the plan that a pipeline gets by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cachekit.errors import ConfigurationError
from cachekit.identity.plan import Plan


def test_default_mode_is_no_mode() -> None:
    """torch treats ``mode="default"`` and none alike, so they are one plan."""
    assert Plan("cpu", mode="default") == Plan("cpu", mode=None)


def test_options_are_sorted_pairs_however_they_are_given() -> None:
    """Mapping or pairs, in any order: the same plan, and still hashable."""
    given = [Plan("cpu", options={"b": 1, "a": True}), Plan("cpu", options=(("a", True), ("b", 1)))]

    assert given[0].options == (("a", True), ("b", 1))
    assert len(set(given)) == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"device": "gpu"}, "cuda:N"),
        ({"device": "cuda:-1"}, "cuda:N"),
        ({"device": "cuda:01"}, "cuda:N"),
        ({"device": "cpu:0x"}, "cuda:N"),
        ({"device": "meta"}, "cuda:N"),
        ({"scope": "regional"}, "blocks"),
        ({"mode": "fast"}, "max-autotune"),
        ({"mode": "max-autotune", "options": {"max_autotune": True}}, "not both"),
        ({"options": {"pass": object()}}, "pass"),
        ({"options": 7}, "pairs"),
        ({"dynamic": "yes"}, "dynamic"),
        ({"fullgraph": None}, "fullgraph"),
        ({"fuse_qkv": 1}, "fuse_qkv"),
    ],
)
def test_wrong_values_are_refused_with_what_is_allowed(wrong: dict[str, Any], told: str) -> None:
    """A typing mistake in a plan must not become a fingerprint of its own."""
    with pytest.raises(ConfigurationError, match=told):
        Plan(**{"device": "cpu", **wrong})


def test_json_round_trip() -> None:
    """Plans travel in fingerprints and bake plans."""
    plan = Plan("cuda:3", scope="blocks", dynamic=True, fullgraph=True, options={"shape_padding": False})

    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(ConfigurationError, match="not a plan"):
        Plan.from_json({"device": "cpu", "speed": "max"})


def test_cuda_without_a_number_is_the_current_gpu() -> None:
    """Two spellings of one device are one plan; a planner without a GPU means the first."""
    expected = torch.cuda.current_device() if torch.cuda.is_available() else 0

    assert Plan("cuda").device == f"cuda:{expected}"
    assert Plan(f"cuda:{expected}").ordinal == expected
    assert Plan("cpu").ordinal is None


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), torch.device("cpu", 0), "cpu:0"])
def test_the_cpu_has_one_name(device: Any) -> None:
    """``torch.device("cpu", 0)`` prints as ``cpu:0`` and is the same CPU."""
    assert Plan(device).device == "cpu"


def test_unet_is_compiled_whole_and_static(unet: Any) -> None:
    """diffusers lists repeated blocks for U-Nets as well, but compiling those alone is slower."""
    assert Plan.for_pipeline(unet()) == Plan("cpu", scope="module", dynamic=False)


def test_transformer_is_compiled_by_blocks_and_dynamic(flux: Any) -> None:
    """One graph a block class serves every resolution."""
    assert Plan.for_pipeline(flux()) == Plan("cpu", scope="blocks", dynamic=True, fullgraph=True)


def test_plain_module_is_compiled_whole_and_static() -> None:
    """Nothing is known of it, so nothing is assumed."""
    assert Plan.for_pipeline(torch.nn.Linear(2, 2)) == Plan("cpu", scope="module", dynamic=False)


def test_meta_pipeline_needs_to_be_told_its_device() -> None:
    """Where a planned pipeline will run cannot be guessed."""
    module = torch.nn.Linear(2, 2, device="meta")

    with pytest.raises(ConfigurationError, match="meta"):
        Plan.for_pipeline(module)
    assert Plan.for_pipeline(module, device="cuda:1").device == "cuda:1"


def test_pipeline_without_a_denoiser_is_told_what_it_has() -> None:
    """The error names what was found, so that the reader sees the mistake."""

    class Upscaler:
        def __init__(self) -> None:
            self.vae = torch.nn.Identity()

    with pytest.raises(ConfigurationError, match=r"Upscaler: it has vae"):
        Plan.for_pipeline(Upscaler())
