"""The demonstration's pipelines: made on the spot, loaded as engines load them, and deterministic."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
gguf = pytest.importorskip("gguf")

from cachekit.demo.models import DEMOS, QWEN_GGUF, SDXL, DemoPipeline, generate  # noqa: E402

FRESH_PROCESS = """
import hashlib, sys
from pathlib import Path
from cachekit.demo.models import DEMOS, generate
assert not {"torch", "diffusers", "transformers"} & set(sys.modules), "the descriptions loaded a model library"
for demo in DEMOS:
    folder = Path(sys.argv[1]) / demo.name
    demo.build(folder)
    latents = generate(demo.load(folder), *demo.sizes[0])
    print(demo.name, hashlib.sha256(latents.numpy().tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every pipeline of the demonstration in it."""
    folder = tmp_path_factory.mktemp("models")
    for demo in DEMOS:
        demo.build(folder / demo.name)
    return folder


@pytest.fixture(scope="module")
def pipes(root: Path) -> dict[str, Any]:
    """The loaded pipelines by name."""
    return {demo.name: demo.load(root / demo.name) for demo in DEMOS}


def quant_types(module: Any) -> set[str]:
    """Names of the quant types among the GGUF parameters of ``module``."""
    from diffusers.quantizers.gguf.utils import GGUFParameter

    return {
        gguf.GGMLQuantizationType(p.quant_type).name
        for p in module.parameters()
        if isinstance(p, GGUFParameter)
    }


def test_sdxl_has_the_parts_of_the_real_one(pipes: dict[str, Any]) -> None:
    """The small SDXL is the stock pipeline, with resnets, sampling, cross-attention and text_time embeddings."""
    pipe = pipes[SDXL.name]
    classes = {type(module).__name__ for module in pipe.unet.modules()}
    assert isinstance(pipe, diffusers.StableDiffusionXLPipeline)
    assert {"ResnetBlock2D", "Downsample2D", "Upsample2D", "BasicTransformerBlock"} <= classes
    assert pipe.unet.config.addition_embed_type == "text_time"
    assert all(block.attn2 is not None for block in pipe.unet.modules() if hasattr(block, "attn2"))
    assert type(pipe.text_encoder_2).__name__ == "CLIPTextModelWithProjection"


def test_gguf_file_mixes_types(root: Path) -> None:
    """The .gguf file itself holds two quantised types, and floats for what is never quantised."""
    (path,) = (root / QWEN_GGUF.name).glob("*.gguf")
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert {"Q8_0", "Q4_0", "F16", "F32"} == kinds


def test_gguf_blocks_keep_their_types(pipes: dict[str, Any]) -> None:
    """The transformer computes from GGUF parameters: one block finer than the rest, none dequantised on loading."""
    transformer = pipes[QWEN_GGUF.name].transformer
    per_block = [quant_types(block) for block in transformer.transformer_blocks]
    linears = [m for m in transformer.transformer_blocks.modules() if isinstance(m, torch.nn.Linear)]
    assert [{"Q8_0"}, {"Q4_0"}, {"Q4_0"}] == per_block
    assert {"GGUFLinear"} == {type(linear).__name__ for linear in linears}


def test_gguf_folder_holds_no_dense_transformer(root: Path) -> None:
    """Only the .gguf file has the transformer's weights, so that loading cannot have taken them elsewhere."""
    assert [path.name for path in (root / QWEN_GGUF.name / "transformer").iterdir()] == ["config.json"]


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_generation_is_deterministic_and_finite(demo: DemoPipeline, pipes: dict[str, Any]) -> None:
    """Both sizes give finite latents, the same bits for the same seed, and other bits for another."""
    for width, height in demo.sizes:
        first, again = (generate(pipes[demo.name], width, height) for _ in range(2))
        assert bool(first.isfinite().all())
        assert torch.equal(first, again)
        assert not torch.equal(first, generate(pipes[demo.name], width, height, seed=1))


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_pixels_have_the_size_asked_for(demo: DemoPipeline, pipes: dict[str, Any]) -> None:
    """Decoded images have the asked width, height and batch, and are not one flat colour."""
    width, height = demo.sizes[1]
    images = generate(pipes[demo.name], width, height, batch=2, output="pt")
    assert (2, 3, height, width) == tuple(images.shape)
    assert images.std() > 0.01
    assert not torch.equal(images[0], images[1])


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_result_depends_on_the_denoiser(demo: DemoPipeline, pipes: dict[str, Any]) -> None:
    """A small change in one weight inside the denoiser shows in the latents, so a wrong kernel would as well."""
    pipe, (width, height) = pipes[demo.name], demo.sizes[0]
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    bias = next(p for name, p in denoiser.named_parameters() if name.endswith("to_out.0.bias"))
    kept = bias.detach().clone()
    before = generate(pipe, width, height)
    with torch.no_grad():
        bias.add_(1e-3)
        after = generate(pipe, width, height)
        bias.copy_(kept)
    assert not torch.equal(before, after)


def test_other_seed_gives_other_weights(root: Path, tmp_path: Path) -> None:
    """Two seeds give two models, and building leaves torch's own random state alone."""
    state = torch.random.get_rng_state()
    QWEN_GGUF.build(tmp_path, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    (first,), (second,) = ((folder.glob("*.gguf")) for folder in (root / QWEN_GGUF.name, tmp_path))
    assert first.stat().st_size == second.stat().st_size
    assert first.read_bytes() != second.read_bytes()


def test_fresh_process_is_quiet_and_equal(pipes: dict[str, Any], tmp_path: Path) -> None:
    """Another process builds the same weights, generates the same bits and writes nothing to standard error."""
    command = [sys.executable, "-c", FRESH_PROCESS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    expected = [
        f"{demo.name} {hashlib.sha256(generate(pipes[demo.name], *demo.sizes[0]).numpy().tobytes()).hexdigest()}"
        for demo in DEMOS
    ]
    assert done.stderr == ""
    assert expected == done.stdout.splitlines()
