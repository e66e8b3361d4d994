"""The demonstration's pipelines behind one description, and how one image is generated with either.

Importing this module loads neither torch nor diffusers: that waits until a pipeline is built or loaded.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PROMPT = "a lighthouse on a cliff at dusk"


@dataclass(frozen=True, slots=True)
class DemoPipeline:
    """One pipeline of the demonstration. ``sizes`` are two (width, height) in pixels, the first one compiled first."""

    name: str
    title: str
    sizes: tuple[tuple[int, int], tuple[int, int]]
    module: str

    def build(self, folder: Path, *, seed: int = 0) -> None:
        """Write the pipeline with random weights to ``folder``, which is made: same seed, same weights."""
        import torch

        folder.mkdir(parents=True, exist_ok=True)
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            importlib.import_module(self.module).build(folder)

    def load(self, folder: Path) -> Any:
        """The pipeline that `build` wrote to ``folder``, on the CPU, loaded the way an engine loads it."""
        with quiet():
            pipe = importlib.import_module(self.module).load(folder)
        pipe.set_progress_bar_config(disable=True)
        return pipe


SDXL = DemoPipeline(
    "sdxl", "Stable Diffusion XL, from_pretrained", ((64, 64), (96, 64)), "cachekit.demo.sdxl"
)
# 63 and 55 image tokens equal no width inside the transformer: a dynamic compile would take a count that does for that
# constant, and would then cover nothing else.
QWEN_GGUF = DemoPipeline(
    "qwen-image-gguf",
    "Qwen-Image, GGUF, from_single_file",
    ((144, 112), (176, 80)),
    "cachekit.demo.qwen_gguf",
)
DEMOS = (SDXL, QWEN_GGUF)


def generate(
    pipe: Any,
    width: int,
    height: int,
    *,
    batch: int = 1,
    seed: int = 0,
    steps: int = 2,
    output: str = "latent",
) -> torch.Tensor:
    """Generate ``batch`` images of ``width`` × ``height`` pixels from one fixed prompt.

    Returns the denoised latents, float32, which show a difference that decoding and clamping could hide; or, with
    ``output="pt"``, pixels in 0..1 of shape (batch, 3, height, width).
    """
    import torch

    # Qwen-Image guides by a scale of 4 unless told otherwise, and warns when there is no negative prompt for it.
    guided = "true_cfg_scale" in inspect.signature(type(pipe).__call__).parameters
    with warnings.catch_warnings():
        # Inductor leaves Qwen-Image's complex rotary embedding to eager kernels, which is as intended here.
        warnings.filterwarnings(
            "ignore", message="Torchinductor does not support code generation for complex"
        )
        result = pipe(
            PROMPT,
            width=width,
            height=height,
            num_images_per_prompt=batch,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(seed),
            output_type=output,
            return_dict=False,
            **({"true_cfg_scale": 1.0} if guided else {}),
        )
    images: torch.Tensor = result[0]
    return images


@contextmanager
def quiet() -> Iterator[None]:
    """Keep diffusers and transformers from writing progress bars and advice while a pipeline is made or loaded."""
    import diffusers.utils.logging
    import transformers.utils.logging

    libraries = (diffusers.utils.logging, transformers.utils.logging)
    before = [(library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity_error()
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library, (verbosity, bars) in zip(libraries, before, strict=True):
            library.set_verbosity(verbosity)
            if bars:
                library.enable_progress_bar()
