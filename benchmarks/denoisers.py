"""The denoisers that the GPU benchmark starts: real classes at full width, random weights, and their inputs.

``sdxl`` is the whole U-Net of Stable Diffusion XL with fused QKV projections, ``flux`` six double and twelve single
blocks of Flux, ``gguf`` two and four of them with every linear layer in the blocks quantised to Q8_0. Same seed, same
weights and inputs in every process. ``tiny`` variants run on a CPU and exist to try the scripts, not to be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Shape = tuple[int, int, int]
"""Width and height in pixels, images a call."""

SEED = 0


@dataclass(frozen=True)
class Scale:
    """Where and in which precision a denoiser runs, and whether it is a tiny one."""

    device: str
    dtype: torch.dtype
    tiny: bool

    @classmethod
    def of(cls, *, tiny: bool) -> Scale:
        """bf16 on the GPU; float32 on the CPU for tiny models."""
        return cls("cpu", torch.float32, tiny=True) if tiny else cls("cuda", torch.bfloat16, tiny=False)


@dataclass(frozen=True)
class Denoiser:
    """A built module, how one call of it looks, and the shapes to run in order."""

    module: Any
    inputs: Callable[[Shape], dict[str, Any]]
    shapes: tuple[Shape, ...]
    regional: bool
    """Compiled by its repeated blocks, dynamic; otherwise whole and static."""


def build(name: str, scale: Scale) -> Denoiser:
    """The denoiser called ``name``, in eval mode on its device. Raises KeyError for another name."""
    torch.manual_seed(SEED)
    with torch.device(scale.device):
        denoiser = BUILDERS[name](scale)
    denoiser.module.eval().requires_grad_(False)  # noqa: FBT003  torch's signature
    return denoiser


def seeded(inputs: Callable[[Shape], dict[str, Any]], scale: Scale) -> Callable[[Shape], dict[str, Any]]:
    """``inputs`` made on the device from one seed, so that every process calls with the same numbers."""

    def make(shape: Shape) -> dict[str, Any]:
        torch.manual_seed(SEED + 1)
        with torch.device(scale.device):
            return inputs(shape)

    return make


# --- Stable Diffusion XL -------------------------------------------------------------------------------------------

_SDXL: Mapping[str, Any] = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
_SDXL_TINY: Mapping[str, Any] = {
    "block_out_channels": (32,),
    "down_block_types": ("DownBlock2D",),  # the middle block has cross-attention all the same
    "up_block_types": ("UpBlock2D",),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "transformer_layers_per_block": 1,
    "attention_head_dim": 2,
    "cross_attention_dim": 64,
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 80,
}


def _sdxl(scale: Scale) -> Denoiser:
    from diffusers import UNet2DConditionModel

    config = _SDXL_TINY if scale.tiny else _SDXL
    unet = UNet2DConditionModel(
        sample_size=128, use_linear_projection=True, addition_embed_type="text_time", **config
    ).to(scale.dtype)
    unet.fuse_qkv_projections()
    pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
    tokens = 8 if scale.tiny else 77

    def inputs(shape: Shape) -> dict[str, Any]:
        width, height, batch = shape[0], shape[1], shape[2] * 2  # classifier-free guidance
        sizes = [height, width, 0, 0, height, width]
        return {
            "sample": torch.randn(batch, 4, height // 8, width // 8, dtype=scale.dtype),
            "timestep": torch.tensor(501),
            "encoder_hidden_states": torch.randn(
                batch, tokens, config["cross_attention_dim"], dtype=scale.dtype
            ),
            "added_cond_kwargs": {
                "text_embeds": torch.randn(batch, pooled, dtype=scale.dtype),
                "time_ids": torch.tensor([sizes] * batch, dtype=scale.dtype),
            },
            "return_dict": False,
        }

    shapes = ((64, 64, 1), (96, 64, 1)) if scale.tiny else ((1024, 1024, 1), (768, 768, 1))
    return Denoiser(unet, seeded(inputs, scale), shapes, regional=False)


# --- Flux, dense and GGUF ------------------------------------------------------------------------------------------

_FLUX: Mapping[str, Any] = {"joint_attention_dim": 4096, "pooled_projection_dim": 768}
_FLUX_TINY: Mapping[str, Any] = {
    "joint_attention_dim": 64,
    "pooled_projection_dim": 32,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "axes_dims_rope": (8, 12, 12),
}


def _flux(scale: Scale) -> Denoiser:
    return _flux_of(scale, 1, 1) if scale.tiny else _flux_of(scale, 6, 12)


def _flux_of(scale: Scale, layers: int, single_layers: int) -> Denoiser:
    from diffusers import FluxTransformer2DModel

    config = _FLUX_TINY if scale.tiny else _FLUX
    transformer = FluxTransformer2DModel(
        num_layers=layers, num_single_layers=single_layers, guidance_embeds=True, **config
    ).to(scale.dtype)
    text = 16 if scale.tiny else 512

    def inputs(shape: Shape) -> dict[str, Any]:
        width, height, batch = shape
        rows, columns = height // 16, width // 16
        return {
            "hidden_states": torch.randn(batch, rows * columns, 64, dtype=scale.dtype),
            "encoder_hidden_states": torch.randn(
                batch, text, config["joint_attention_dim"], dtype=scale.dtype
            ),
            "pooled_projections": torch.randn(batch, config["pooled_projection_dim"], dtype=scale.dtype),
            "timestep": torch.full((batch,), 0.5, dtype=scale.dtype),
            "img_ids": _positions(rows, columns, scale.dtype),
            "txt_ids": torch.zeros(text, 3, dtype=scale.dtype),
            "guidance": torch.full((batch,), 3.5, dtype=scale.dtype),
            "return_dict": False,
        }

    # Token counts that coincide with no width inside a block: a dynamic compile takes such a count for a constant.
    shapes = ((144, 112, 1), (176, 80, 1)) if scale.tiny else ((1024, 1024, 1), (1344, 768, 1))
    return Denoiser(transformer, seeded(inputs, scale), shapes, regional=True)


def _positions(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Row and column of each image token, (rows × columns, 3), as Flux pipelines give them."""
    ids = torch.zeros(rows, columns, 3, dtype=dtype)
    ids[..., 1] += torch.arange(rows)[:, None]
    ids[..., 2] += torch.arange(columns)[None, :]
    return ids.reshape(rows * columns, 3)


def _gguf(scale: Scale) -> Denoiser:
    denoiser = _flux_of(scale, 1, 0) if scale.tiny else _flux_of(scale, 2, 4)
    transformer = denoiser.module
    for block in [*transformer.transformer_blocks, *transformer.single_transformer_blocks]:
        for name, layer in list(block.named_modules()):
            if isinstance(layer, torch.nn.Linear):
                parent, _, leaf = name.rpartition(".")
                setattr(block.get_submodule(parent), leaf, _q8_0(layer, scale.dtype))
    return denoiser


def _q8_0(layer: torch.nn.Linear, dtype: torch.dtype) -> Any:
    """A GGUF layer of the same size with random quanta: blocks of a float16 scale and 32 int8, 34 bytes each."""
    from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter
    from gguf import GGMLQuantizationType

    rows, columns = layer.weight.shape
    blocks = rows * columns // 32
    scales = torch.full((blocks, 1), 1e-4, dtype=torch.float16).view(torch.uint8)
    quanta = torch.randint(-127, 128, (blocks, 32), dtype=torch.int8).view(torch.uint8)
    packed = torch.cat([scales, quanta], dim=1).reshape(rows, columns // 32 * 34)
    with torch.device("meta"):
        quantised = GGUFLinear(columns, rows, bias=layer.bias is not None, compute_dtype=dtype)
    quantised.weight = GGUFParameter(packed, quant_type=GGMLQuantizationType.Q8_0)
    quantised.bias = layer.bias
    return quantised


BUILDERS: Mapping[str, Callable[[Scale], Denoiser]] = {"sdxl": _sdxl, "flux": _flux, "gguf": _gguf}
