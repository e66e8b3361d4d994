"""A Qwen-Image pipeline whose transformer is a real ``.gguf`` file of mixed quant types.

Qwen-Image, and not Flux: the Flux converter of diffusers 0.42 splits fused weights at a fixed width of 3072, so no
small Flux file loads, while the names in a Qwen-Image file are diffusers' own at every size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    GGUFQuantizationConfig,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from cachekit.demo import tokenizers

FILE = "transformer-mixed.gguf"
LAYERS = 3
LATENT_CHANNELS = 4
TEXT_WIDTH = 32
Quant = gguf.GGMLQuantizationType


def build(folder: Path) -> None:
    """Write the ``.gguf`` file and, in diffusers' layout, all other parts to ``folder``. The caller seeds torch."""
    transformer = _transformer()
    transformer.save_config(folder / "transformer")
    write_gguf(transformer.state_dict(), folder / FILE)
    tokenizer = tokenizers.write_qwen(folder / "tokenizer")
    pipe = QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_vae(),
        text_encoder=Qwen2_5_VLForConditionalGeneration(_text_config(tokenizer)),
        tokenizer=tokenizer,
        transformer=None,
    )
    pipe.save_pretrained(folder)


def load(folder: Path) -> Any:
    """The pipeline in ``folder``, its transformer read from the ``.gguf`` file, computing in float32 on the CPU."""
    transformer = QwenImageTransformer2DModel.from_single_file(
        str(folder / FILE),
        quantization_config=GGUFQuantizationConfig(compute_dtype=torch.float32),
        config=str(folder / "transformer"),
    )
    return QwenImagePipeline.from_pretrained(folder, transformer=transformer)


def write_gguf(weights: dict[str, torch.Tensor], path: Path) -> None:
    """Write ``weights`` (float32, by diffusers' names) to ``path``, each in the type that `quant_of` gives it."""
    writer = gguf.GGUFWriter(path, arch="qwen_image")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for name, weight in weights.items():
        kind = quant_of(name, weight)
        writer.add_tensor(name, gguf.quants.quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quant_of(name: str, weight: torch.Tensor) -> Quant:
    """The type of one tensor: as in published files, the first block is kept finer than the rest, and vectors and the
    layers outside the blocks are not quantised.
    """
    if weight.dim() < 2:
        return Quant.F32
    if not name.startswith("transformer_blocks."):
        return Quant.F16
    return Quant.Q8_0 if name.startswith("transformer_blocks.0.") else Quant.Q4_0


def _transformer() -> Any:
    return QwenImageTransformer2DModel(
        in_channels=4 * LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=LAYERS,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=TEXT_WIDTH,
        axes_dims_rope=(4, 6, 6),
    )


def _vae() -> Any:
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )


def _text_config(tokenizer: Any) -> Any:
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    vision_start, vision_end, image, video = tokenizer.convert_tokens_to_ids(list(tokenizers.QWEN_VISION))
    return Qwen2_5_VLConfig(
        vision_start_token_id=vision_start,
        vision_end_token_id=vision_end,
        image_token_id=image,
        video_token_id=video,
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3]},
            "rope_theta": 1e6,
            "bos_token_id": start,
            "eos_token_id": end,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": TEXT_WIDTH,
        },
    )
