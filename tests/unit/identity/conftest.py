"""Tiny denoisers of two families, and what several topics need of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

UNET = {
    "sample_size": 8,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 2,
    "norm_num_groups": 4,
    "cross_attention_dim": 8,
}
FLUX = {
    "in_channels": 4,
    "num_layers": 2,
    "num_single_layers": 3,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 8,
    "pooled_projection_dim": 8,
    "axes_dims_rope": (4, 4, 8),
}
Maker = Callable[..., Any]


@pytest.fixture
def unet() -> Maker:
    """Make a tiny ``UNet2DConditionModel``; keywords change its config."""
    from diffusers import UNet2DConditionModel

    return lambda **changes: UNet2DConditionModel(**{**UNET, **changes})


@pytest.fixture
def flux() -> Maker:
    """Make a tiny ``FluxTransformer2DModel``; keywords change its config."""
    from diffusers import FluxTransformer2DModel

    return lambda **changes: FluxTransformer2DModel(**{**FLUX, **changes})


@pytest.fixture
def flux_pipe(flux: Maker) -> Maker:
    """Make a ``FluxPipeline`` with nothing but its transformer; keywords change its config."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    def make(**changes: Any) -> Any:
        return FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(),
            vae=None,
            text_encoder=None,
            tokenizer=None,
            text_encoder_2=None,
            tokenizer_2=None,
            transformer=flux(**changes),
        )

    return make


@pytest.fixture
def restored_flags() -> Iterator[None]:
    """Put torch's precision switches back, through the interface that can say "never set"."""
    pairs = [(b, o) for b in ("cuda", "mkldnn") for o in ("all", "matmul", "conv", "rnn")]
    before = {pair: torch._C._get_fp32_precision_getter(*pair) for pair in pairs}
    generic = torch._C._get_fp32_precision_getter("generic", "all")
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    torch._C._set_fp32_precision_setter("generic", "all", generic)
    for pair, value in before.items():
        torch._C._set_fp32_precision_setter(*pair, value)
