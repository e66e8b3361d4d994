"""Sizes, batch and generations of a diffusers pipeline, told by what it really runs."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cachekit.errors import ConfigurationError
from cachekit.hooks.diffusers import DiffusersTarget, is_pipeline
from cachekit.identity import Plan
from cachekit.runtime import torch_private

diffusers = importlib.import_module("diffusers")
Attach = Callable[..., Any]


class TinyUNet(torch.nn.Module):
    """Multiplies latents of width 8; fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(8))

    def forward(self, sample: torch.Tensor, timestep: int) -> torch.Tensor:
        """Take one step."""
        return sample @ self.weight


class TinyDecoder(torch.nn.Module):
    """A decoder of three levels, as far as pipelines look at it."""

    config = SimpleNamespace(block_out_channels=(8, 8, 8))


class TinyPipeline(diffusers.DiffusionPipeline):  # type: ignore[misc, name-defined]
    """What real pipelines have in common, and nothing else: sizes are rounded down to multiples of 8."""

    def __init__(self, unet: Any) -> None:
        super().__init__()
        self.register_modules(unet=unet)
        self.vae_scale_factor = 8

    @property
    def do_classifier_free_guidance(self) -> bool:
        """Whether both halves go through the denoiser at once; unknown before the first call, as in real ones."""
        return bool(self._guidance > 1)

    def check_inputs(self, height: int, width: int) -> None:
        """Refuse sizes below 8."""
        if height < 8 or width < 8:
            raise ValueError("too small")

    def prepare_latents(self, batch: int, height: int, width: int) -> torch.Tensor:
        """Start from ones."""
        return torch.ones(batch, 4, height // 8, width // 8)

    @torch.no_grad()
    def __call__(
        self, height: int = 64, width: int = 64, batch: int = 1, guidance: float = 1.0, cancel: bool = False
    ) -> torch.Tensor:
        """Generate in two steps."""
        self._guidance = guidance
        self.check_inputs(height, width)
        latents = self.prepare_latents(batch, height, width)
        for step in range(2):
            both = torch.cat([latents] * 2) if self.do_classifier_free_guidance else latents
            latents = self.unet(both, step).chunk(2)[0] if both is not latents else self.unet(both, step)
            if cancel:
                raise KeyboardInterrupt
        self.maybe_free_model_hooks()
        return latents


@pytest.fixture
def pipe() -> TinyPipeline:
    """A tiny pipeline."""
    return TinyPipeline(TinyUNet())


# --- labels --------------------------------------------------------------------------------------------------------


def target(**attributes: Any) -> DiffusersTarget:
    """A target of a pipeline that has just these attributes."""
    return DiffusersTarget(SimpleNamespace(**attributes))


def label(of: DiffusersTarget, *args: Any, **kwargs: Any) -> str | None:
    """The label of one forward."""
    shape = of.label("denoiser", args, kwargs)
    return shape.label if shape else None


@pytest.mark.parametrize(
    ("scale", "shape", "wanted"),
    [
        (8, (1, 4, 64, 96), "768x512x1"),
        (8, (3, 4, 128, 128), "1024x1024x3"),
        (32, (1, 32, 32, 16), "512x1024x1"),
    ],
)
def test_latents_of_four_dimensions_are_pictures(scale: int, shape: tuple[int, ...], wanted: str) -> None:
    """Width before height, in pixels, whatever the VAE scales by."""
    assert label(target(vae_scale_factor=scale), torch.empty(shape)) == wanted


def test_latents_of_five_dimensions_are_videos() -> None:
    """Frames are a variant."""
    assert label(target(vae_scale_factor=8), torch.empty(1, 16, 5, 60, 104)) == "832x480x1,frames=5"


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({}, "64x64x1"),
        ({"vae": None}, "512x512x1"),
        ({"vae": None, "vae_scale_factor_spatial": 16}, "1024x1024x1"),
        ({"vae": SimpleNamespace(config=SimpleNamespace(block_out_channels=(1, 2, 3)))}, "256x256x1"),
        ({"movq": SimpleNamespace(config=SimpleNamespace(block_out_channels=(1,) * 4))}, "512x512x1"),
        ({"vqgan": SimpleNamespace(config=SimpleNamespace(levels=2, up_down_scale_factor=2))}, "256x256x1"),
        ({"vae_spatial_compression_ratio": 32}, "2048x2048x1"),
    ],
    ids=["on pixels", "left out", "named", "by its levels", "movq", "vqgan", "another name"],
)
def test_the_scale_is_that_of_what_makes_pictures(attributes: dict[str, Any], wanted: str) -> None:
    """A pipeline without a decoder works on pixels; one that has it tells the scale, or the decoder does."""
    assert label(target(**attributes), torch.empty(1, 4, 64, 64)) == wanted


@pytest.mark.parametrize(
    ("name", "components", "wanted"),
    [
        ("DDPMPipeline", {}, "16x16x1"),
        ("DDIMPipeline", {}, "16x16x1"),
        ("ScoreSdeVePipeline", {}, "16x16x1"),
        ("IFPipeline", {"requires_safety_checker": False}, "16x16x1"),
        ("IFSuperResolutionPipeline", {"requires_safety_checker": False}, "16x16x1"),
        ("StableDiffusionPipeline", {"requires_safety_checker": False}, "128x128x1"),
        ("FluxPipeline", {}, "128x128x1"),
        ("WanPipeline", {}, "128x128x1"),
        ("KandinskyV22Pipeline", {"movq": {}}, "64x64x1"),
        ("Kandinsky3Pipeline", {"movq": {}}, "64x64x1"),
        ("DiTPipeline", {"vae": {}}, "64x64x1"),
    ],
)
def test_pipelines_of_diffusers_tell_their_scale(name: str, components: dict[str, Any], wanted: str) -> None:
    """Real ones, with and without a decoder; a decoder here has three levels."""
    kind = getattr(diffusers, name)
    names = [name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "kwargs")]
    optional = {n for n, p in inspect.signature(kind.__init__).parameters.items() if p.default is not p.empty}
    parts: dict[str, Any] = {name: None for name in names if name not in optional}
    scheduler = diffusers.ScoreSdeVeScheduler if "Score" in name else diffusers.DDPMScheduler
    parts |= {"scheduler": scheduler()} if "scheduler" in parts else {}
    parts |= {n: TinyDecoder() if value == {} else value for n, value in components.items()}

    assert label(DiffusersTarget(kind(**parts)), torch.empty(1, 3, 16, 16)) == wanted


@pytest.mark.parametrize(
    ("guided", "kind", "wanted"),
    [
        (True, "unet", "512x512x1,cfg=true"),
        (False, "unet", "512x512x2"),
        (True, "transformer", "512x512x2"),
    ],
)
def test_a_guided_unet_runs_two_halves(guided: bool, kind: str, wanted: str) -> None:
    """The unconditional half is no image; transformers run it as a call of its own."""
    of = target(**{kind: object()}, vae_scale_factor=8, do_classifier_free_guidance=guided)

    assert label(of, torch.empty(2, 4, 64, 64)) == wanted


def test_an_odd_batch_is_not_two_halves() -> None:
    """Whoever calls a denoiser with three images did not join halves."""
    assert (
        label(
            target(unet=None, vae_scale_factor=8, do_classifier_free_guidance=True), torch.empty(3, 4, 64, 64)
        )
        == "512x512x3"
    )


@pytest.mark.parametrize("name", ["sample", "hidden_states", "x", "latent_model_input"])
def test_latents_may_come_by_name(name: str) -> None:
    """Under any of the names that denoisers give them."""
    assert (
        label(target(vae_scale_factor=8), **{name: torch.empty(1, 4, 64, 64), "timestep": torch.ones(1)})
        == "512x512x1"
    )


@pytest.mark.parametrize(
    "args",
    [
        (),
        (3,),
        (torch.ones(4),),
        (torch.ones(2, 3),),
        ([torch.ones(4, 64, 64)],),
        (torch.ones(1, 1, 1, 1, 1, 1),),
    ],
)
def test_anything_else_has_no_label(args: tuple[Any, ...]) -> None:
    """What cannot be told is left to the engine."""
    assert label(target(vae_scale_factor=8), *args) is None


@pytest.mark.parametrize(
    ("asked", "tokens", "wanted"),
    [
        ((1024, 768), 64 * 48, "1024x768x1"),
        ((150, 118), 9 * 7, "144x112x1"),
        ((150, 118), 2 * 9 * 7, "144x112x1"),
        ((1024, 768), 100, None),
        ((8, 8), 64, None),
    ],
    ids=["exact", "rounded", "with a reference image", "of another call", "less than a token"],
)
def test_packed_latents_have_the_size_that_was_prepared(
    asked: tuple[int, int], tokens: int, wanted: str | None
) -> None:
    """Tokens do not tell width from height: the pipeline's own preparation does, rounded to what it can pack."""
    of = target(vae_scale_factor=8)
    of._remember_size({"width": asked[0], "height": asked[1]})

    assert label(of, hidden_states=torch.empty(1, tokens, 64)) == wanted


def test_packing_joins_what_the_pipeline_says_it_joins() -> None:
    """LTX makes a token of each latent."""
    of = target(vae_spatial_compression_ratio=32, transformer_spatial_patch_size=1)
    of._remember_size({"width": 96, "height": 64})

    assert label(of, hidden_states=torch.empty(1, 3 * 2, 64)) == "96x64x1"


@pytest.mark.parametrize("prepared", [{}, {"width": None, "height": None}, {"width": 64}])
def test_packed_latents_of_unknown_size_have_no_label(prepared: dict[str, Any]) -> None:
    """Where nothing was prepared, nothing is guessed."""
    of = target(vae_scale_factor=8)
    of._remember_size(prepared)

    assert label(of, hidden_states=torch.empty(1, 64, 64)) is None


# --- what is a pipeline --------------------------------------------------------------------------------------------


def test_pipelines_are_known_by_their_class(pipe: TinyPipeline) -> None:
    """A subclass of diffusers' own, and nothing that only looks like one."""

    class DiffusionPipeline:
        """Somebody else's."""

    assert is_pipeline(pipe)
    assert not is_pipeline(DiffusionPipeline())
    assert not is_pipeline(TinyUNet())
    assert not is_pipeline(None)


def test_a_pipeline_without_a_denoiser_is_refused(attach: Attach) -> None:
    """The error says what it has instead."""

    class Vae(diffusers.DiffusionPipeline):  # type: ignore[misc, name-defined]
        def __init__(self, vae: Any) -> None:
            super().__init__()
            self.register_modules(vae=vae)

    with pytest.raises(ConfigurationError, match=r"no denoiser.*it has vae"):
        attach(Vae(torch.nn.Linear(1, 1)))


def test_denoisers_keep_their_wrapping(pipe: TinyPipeline) -> None:
    """What is observed is what the pipeline calls."""
    pipe.unet = torch.compile(pipe.unet, backend="eager")

    assert DiffusersTarget(pipe).denoisers() == [("unet", pipe.unet)]


# --- generations ---------------------------------------------------------------------------------------------------


def test_a_generation_registers_what_it_ran(pipe: TinyPipeline, attach: Attach) -> None:
    """The size that was rounded, the images without guidance's half, once the generation has ended."""
    session = attach(pipe)

    pipe(height=100, width=64, batch=2, guidance=5.0)

    report = session.report()
    assert report.shapes == ("64x96x2,cfg=true",)
    assert report.misses == {"inductor": 1, "aot_autograd": 1}
    assert session.plan == Plan("cpu", scope="module", dynamic=False)


def test_a_cancelled_generation_registers_nothing(pipe: TinyPipeline, attach: Attach) -> None:
    """What it compiled is kept, and the next generation counts for itself alone."""
    session = attach(pipe)

    with pytest.raises(KeyboardInterrupt):
        pipe(height=32, cancel=True)
    assert session.report().shapes == ()
    pipe(height=64)

    assert session.report().shapes == ("64x64x1",)
    assert session.report().misses["inductor"] == 2


def test_a_refused_generation_registers_nothing(pipe: TinyPipeline, attach: Attach) -> None:
    """The pipeline's own check raises as ever."""
    session = attach(pipe)

    with pytest.raises(ValueError, match="too small"):
        pipe(height=4)

    assert session.report().shapes == ()
    assert session.state == "recording"


def test_a_second_start_is_warm(pipe: TinyPipeline, attach: Attach) -> None:
    """The bundle of one pipeline serves another like it."""
    with attach(pipe):
        wanted = pipe()
    other = TinyPipeline(TinyUNet())
    torch._dynamo.reset()

    session = attach(other)
    result = other()

    assert torch.equal(result, wanted)
    assert session.report().misses == {}
    assert session.report().hits["inductor"] == 1


@pytest.mark.parametrize("name", ["check_inputs", "prepare_latents", "maybe_free_model_hooks"])
def test_methods_are_shadowed_and_restored(pipe: TinyPipeline, attach: Attach, name: str) -> None:
    """Only the instance is touched, the shadow says what it stands for, and closing takes it away."""
    original = getattr(pipe, name)

    session = attach(pipe)
    shadow = getattr(pipe, name)
    session.close()

    assert name not in vars(pipe)
    assert getattr(pipe, name) == original
    assert shadow.__name__ == name
    assert shadow.__wrapped__ == original
    assert torch_private.compiled_call(pipe.unet) is None


def test_somebody_else_s_patch_is_left_alone(pipe: TinyPipeline, attach: Attach) -> None:
    """A method that an engine replaced on the instance is neither wrapped nor removed."""
    seen: list[tuple[int, int]] = []
    pipe.check_inputs = lambda height, width: seen.append((height, width))
    theirs = pipe.check_inputs

    session = attach(pipe)
    pipe()
    session.close()

    assert pipe.check_inputs is theirs
    assert seen == [(64, 64)]


def test_a_wrong_call_is_refused_by_the_method_itself(pipe: TinyPipeline, attach: Attach) -> None:
    """The error is the one that the engine knows."""
    attach(pipe)

    with pytest.raises(TypeError, match="prepare_latents"):
        pipe.prepare_latents(1, heigth=64)


def test_a_copy_has_plain_methods(pipe: TinyPipeline, attach: Attach) -> None:
    """A copy of an attached pipeline belongs to no session: it calls its own methods, and nothing is registered."""
    session = attach(pipe)

    other = copy.deepcopy(pipe)

    assert other.check_inputs.__self__ is other
    assert other.prepare_latents(1, 64, 64).shape == (1, 4, 8, 8)
    other.maybe_free_model_hooks()
    assert session.report().shapes == ()


def test_a_pipeline_without_an_end_registers_each_call(attach: Attach) -> None:
    """Where nothing tells that a generation has ended, each forward counts as one."""

    class Endless(TinyPipeline):
        def __call__(self, height: int = 64) -> torch.Tensor:
            self._guidance = 1.0
            self.check_inputs(height, 64)
            with torch.no_grad():
                return self.unet(self.prepare_latents(1, height, 64), 0)

    pipe = Endless(TinyUNet())
    session = attach(pipe)

    pipe()

    assert session.report().shapes == ("64x64x1",)
