"""What does not change compiled code leaves the fingerprint alone."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    GGUFQuantizationConfig,
    QwenImageTransformer2DModel,
    UNet2DConditionModel,
)

from cachekit.identity import Fingerprint, Plan, fingerprint

CPU = Plan("cpu")
Maker = Callable[..., Any]
Quant = gguf.GGMLQuantizationType


def same(mine: Any, theirs: Any, plan: Plan = CPU) -> bool:
    """Whether two ids are equal; if not, pytest shows which components differ."""
    a = mine if isinstance(mine, Fingerprint) else fingerprint(mine, plan)
    b = theirs if isinstance(theirs, Fingerprint) else fingerprint(theirs, plan)
    assert [str(difference) for difference in a.diff(b)] == []
    return a.id == b.id


def on_meta(pipe: Any) -> Any:
    """The same pipeline with its denoisers on the meta device."""
    for module in vars(pipe).values():
        if isinstance(module, torch.nn.Module):
            module.to("meta")
    return pipe


def test_other_weights(unet: Maker) -> None:
    """Two trainings of one architecture share their compiled code."""
    assert same(unet(), unet())


@pytest.mark.parametrize("family", ["unet", "flux"])
def test_loaded_and_built_in_memory(family: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """``from_pretrained``, from any folder, gives the id of a model built in memory (which is in training mode)."""
    built = request.getfixturevalue(family)()
    built.save_pretrained(tmp_path / "here")
    built.save_pretrained(tmp_path / "elsewhere" / "under another name")
    here, elsewhere = (
        type(built).from_pretrained(folder)
        for folder in (tmp_path / "here", tmp_path / "elsewhere/under another name")
    )

    assert built.training
    assert not here.training
    assert same(built, here)
    assert same(here, elsewhere)


def test_whole_pipeline_loaded_and_built_in_memory(flux_pipe: Maker, tmp_path: Path) -> None:
    """The same for a pipeline, whose other parts do not count at all."""
    built = flux_pipe()
    built.save_pretrained(tmp_path)
    absent = ("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    loaded = FluxPipeline.from_pretrained(tmp_path, **dict.fromkeys(absent))

    assert same(built, loaded)
    loaded.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    loaded.vae = torch.nn.Linear(2, 2)
    assert same(built, loaded)


def test_loaded_in_half_precision_and_cast_to_it(flux: Maker, tmp_path: Path) -> None:
    """Two ways to the same tensors."""
    built = flux()
    built.save_pretrained(tmp_path)

    assert same(
        FluxTransformer2DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16),
        flux().to(torch.bfloat16),
    )


def test_image_to_image_shares_with_text_to_image(flux_pipe: Maker) -> None:
    """The task of a pipeline is not compiled: the denoiser is the same."""
    from diffusers import FluxImg2ImgPipeline, FluxInpaintPipeline

    pipe = flux_pipe()
    parts = {
        name: part
        for name, part in vars(pipe).items()
        if name in inspect.signature(FluxImg2ImgPipeline).parameters
    }

    assert same(pipe, FluxImg2ImgPipeline(**parts))
    assert same(pipe, FluxInpaintPipeline(**parts))


def test_config_in_another_order_and_with_lists(unet: Maker) -> None:
    """A config file has lists where code has tuples, in any order."""
    model = unet()
    config = {key: list(value) if isinstance(value, tuple) else value for key, value in model.config.items()}

    assert same(model, UNet2DConditionModel.from_config(dict(reversed(config.items()))))


def test_private_config_keys(unet: Maker) -> None:
    """Where a model came from is kept in keys that start with an underscore."""
    a, b = unet(), unet()
    b.register_to_config(_name_or_path="/home/ada/sdxl", _diffusers_version="0.1")

    assert same(a, b)


def test_meta_device(unet: Maker, flux_pipe: Maker) -> None:
    """A planner never loads weights: built on meta, moved to meta, or loaded gives one id."""
    with torch.device("meta"):
        planned, planned_pipe = unet(), flux_pipe()

    assert same(planned, unet())
    assert same(planned_pipe, flux_pipe(), Plan.for_pipeline(planned_pipe, device="cpu"))
    assert same(on_meta(flux_pipe()), planned_pipe)


def test_meta_device_fused(flux: Maker) -> None:
    """Projections can be fused on meta, so that a planner can plan for fused ones."""
    with torch.device("meta"):
        planned = flux()
    planned.fuse_qkv_projections()
    loaded = flux()
    loaded.fuse_qkv_projections()

    assert same(planned, loaded)


@pytest.fixture
def gguf_model(tmp_path: Path) -> Maker:
    """Load a tiny Qwen-Image transformer of mixed quant types from a real ``.gguf`` file with given weights."""

    def make(seed: int, folder: str = "a") -> Any:
        root = tmp_path / folder
        torch.manual_seed(seed)
        model = QwenImageTransformer2DModel(
            in_channels=4,
            out_channels=1,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            axes_dims_rope=(4, 6, 6),
        )
        model.save_config(root)
        writer = gguf.GGUFWriter(root / "model.gguf", arch="qwen_image")
        for name, weight in model.state_dict().items():
            kind = Quant.F32 if weight.dim() < 2 else Quant.F16
            if kind is Quant.F16 and name.startswith("transformer_blocks."):
                kind = Quant.Q8_0 if name.startswith("transformer_blocks.0.") else Quant.Q4_0
            writer.add_tensor(name, gguf.quants.quantize(weight.numpy(), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return QwenImageTransformer2DModel.from_single_file(
            str(root / "model.gguf"),
            quantization_config=GGUFQuantizationConfig(compute_dtype=torch.float32),
            config=str(root),
        )

    return make


def test_gguf_on_meta_from_another_folder(gguf_model: Maker) -> None:
    """A GGUF model keeps its quant types on the meta device; file and weights do not count."""
    loaded, other = gguf_model(0), gguf_model(1, "b")
    layers = fingerprint(loaded, CPU).components["pipeline"]["denoisers"]["module"]["quantization"]

    assert layers["types"] == {"Q4_0": 14, "Q8_0": 14}
    assert same(loaded, other)
    assert same(loaded, other.to("meta"))


def test_compiling_changes_nothing(flux: Maker) -> None:
    """Wrapped, compiled in place, or by blocks: attach must not turn a pipeline into another one."""
    before = fingerprint(flux(), CPU)
    wrapped = torch.compile(flux())
    in_place, by_blocks, nested = flux(), flux(), flux()
    in_place.compile()
    by_blocks.compile_repeated_blocks(fullgraph=True)
    nested.transformer_blocks[0] = torch.compile(nested.transformer_blocks[0])

    assert all(same(before, model) for model in (wrapped, in_place, by_blocks, nested))


def test_step_counters_on_the_model(flux: Maker) -> None:
    """Step caches count on the model itself while it runs; that must not make it another model each step."""
    model = flux()
    before = fingerprint(model, CPU)
    model.cnt, model.accumulated = 3, 0.25

    assert same(before, model)


def test_gradients(flux: Maker) -> None:
    """Loading and removing a LoRA leaves ``requires_grad`` off; inference does not look at it."""
    model = flux()
    before = fingerprint(model, CPU)
    model.requires_grad_(False)
    model.enable_gradient_checkpointing()

    assert same(before, model)


def test_paths_and_objects_on_plain_modules() -> None:
    """A module may carry where it was loaded from, a device, or any object."""
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    a.checkpoint, a.device, a.lock = "/home/ada/x.pt", torch.device("cpu"), object()
    b.checkpoint, b.device, b.lock = "/srv/y.pt", "cuda:0", object()

    assert same(a, b)


def test_dropout_that_drops_nothing(flux: Maker) -> None:
    """Training mode with p=0 computes the same."""
    model = flux()

    assert same(model.train(), flux().eval())


def test_hooks_of_our_own(flux: Maker) -> None:
    """A session watches the denoiser with hooks and wrappers; they are not part of the pipeline."""
    model = flux()
    before = fingerprint(model, CPU)
    scope: dict[str, Any] = {"__name__": "cachekit.hooks.attach"}
    exec("def watch(*args):\n    pass\ndef run(*args):\n    pass\n", scope)
    model.register_forward_hook(scope["watch"])
    scope["run"].__wrapped__ = model.forward
    model.forward = scope["run"]

    assert same(before, model)


def test_time_and_order_of_asking(flux: Maker) -> None:
    """Asking twice, later, or after another model gives the same id."""
    model = flux()
    first = fingerprint(model, CPU)
    fingerprint(torch.nn.Linear(2, 2), CPU)

    assert same(first, model)


def test_a_fingerprint_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    """It is computed at each backend call: 2,000 tensors take a few milliseconds of CPU time."""
    model = torch.nn.ModuleList(
        torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(8), "to_q": torch.nn.Linear(8, 8)})
        for _ in range(500)
    )
    seconds = []
    for _ in range(7):
        started = time.thread_time()
        fingerprint(model, CPU)
        seconds.append(time.thread_time() - started)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(list(model.parameters()))} tensors: {min(seconds) * 1e3:.1f} ms\n")

    assert min(seconds) < 0.1  # about 0.01 on a quiet core; ten times that means something is wrong
