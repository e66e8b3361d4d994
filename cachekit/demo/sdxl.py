"""A Stable Diffusion XL pipeline with every part of the real one, at a size that compiles in a minute on two cores.

The U-Net keeps what makes SDXL compile the way it does: resnets, down- and upsampling, cross-attention transformers
with linear projections, and the text_time embedding of the pooled prompt and the six size ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from cachekit.demo import tokenizers

TEXT_WIDTH = 32
POOLED_WIDTH = 32
TIME_WIDTH = 8


def build(folder: Path) -> None:
    """Write the pipeline to ``folder`` in diffusers' own layout. The caller seeds torch."""
    tokenizer = tokenizers.write_clip(folder / "tokenizer")
    tokenizer_2 = tokenizers.write_clip(folder / "tokenizer_2")
    pipe = StableDiffusionXLPipeline(
        vae=_vae(),
        text_encoder=CLIPTextModel(_text_config(tokenizer)),
        text_encoder_2=CLIPTextModelWithProjection(_text_config(tokenizer_2)),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer_2,
        unet=_unet(),
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        add_watermarker=False,
    )
    pipe.save_pretrained(folder)


def load(folder: Path) -> Any:
    """The pipeline in ``folder``, as an engine loads it, in float32 on the CPU."""
    return StableDiffusionXLPipeline.from_pretrained(folder, add_watermarker=False)


def _unet() -> Any:
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=1,
        attention_head_dim=(2, 4),
        norm_num_groups=8,
        cross_attention_dim=2 * TEXT_WIDTH,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=TIME_WIDTH,
        projection_class_embeddings_input_dim=POOLED_WIDTH + 6 * TIME_WIDTH,
    )


def _vae() -> Any:
    # Four levels, because three downsamplings make the factor of 8 between pixels and latents.
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
        force_upcast=False,
    )


def _text_config(tokenizer: Any) -> Any:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=tokenizers.CLIP_LENGTH,
        projection_dim=POOLED_WIDTH,
        hidden_act="gelu",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
