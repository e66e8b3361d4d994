"""A diffusers pipeline as a target: its denoisers, the sizes they really ran, and when a generation has ended.

Sizes come from the latents of the forward, not from what was asked for: a pipeline rounds sizes, and an engine may
split a batch. Where latents are packed into tokens (Flux, Qwen-Image) the height and width are those of the
pipeline's own ``prepare_latents`` call, rounded down to what its packing can hold.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cachekit.bundle import Shape
from cachekit.identity import pipeline as identity
from cachekit.runtime.session import Session

Hook = Callable[[Mapping[str, Any]], None]
"""Gets the arguments of the call by name."""

_LATENTS = ("sample", "hidden_states", "x", "latent_model_input")
_END = "maybe_free_model_hooks"
_START = "check_inputs"
_LATENT_SIZE = "prepare_latents"
_SCALES = (
    "vae_scale_factor",
    "vae_scale_factor_spatial",
    "vae_spatial_compression_ratio",
    "vae_spatial_scale_factor",
    "movq_scale_factor",
)
_DECODERS = ("vae", "movq", "vqvae", "vqgan")
"""What makes a picture of latents, by the names that pipelines give it."""


class DiffusersTarget:
    """One pipeline and its generations."""

    def __init__(self, pipe: Any) -> None:
        self.target = pipe
        self._asked: tuple[int, int] | None = None

    def denoisers(self) -> list[tuple[str, Any]]:
        """(component name, module) of each denoiser, in its ``torch.compile`` wrapping if it has one."""
        return [(name, getattr(self.target, name)) for name, _ in identity.denoisers(self.target)]

    def watch(self, session: Session) -> None:
        """Learn of a generation's start, size and end through methods that every pipeline calls."""
        _before(self.target, _LATENT_SIZE, self._remember_size, session)
        if _calls(self.target, _END):
            _before(self.target, _START, lambda _: session.generation_started(), session)
            _before(self.target, _END, lambda _: session.generation_finished(), session)

    def _remember_size(self, bound: Mapping[str, Any]) -> None:
        height, width = bound.get("height"), bound.get("width")
        if isinstance(height, int) and isinstance(width, int):
            self._asked = (width, height)

    def label(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shape | None:
        """The shape that one forward really ran, None where it cannot be told.

        Width and height in pixels; batch in images, classifier-free guidance's second half not counted (it is the
        variant ``cfg``); frames of a video and the length of the prompt where they vary are variants too.
        """
        latents = _latents(args, kwargs)
        if latents is None or latents.ndim not in (3, 4, 5):
            return None
        size = self._packed_size(latents) if latents.ndim == 3 else self._latent_size(latents)
        if size is None:
            return None
        width, height, variant = size
        batch = int(latents.shape[0])
        if batch % 2 == 0 and _guided_in_one_batch(self.target):
            batch, variant["cfg"] = batch // 2, True
        return Shape.of(width, height, batch, **variant)

    def _latent_size(self, latents: Any) -> tuple[int, int, dict[str, Any]]:
        scale = _scale(self.target)
        variant = {"frames": int(latents.shape[2])} if latents.ndim == 5 else {}
        return int(latents.shape[-1]) * scale, int(latents.shape[-2]) * scale, variant

    def _packed_size(self, latents: Any) -> tuple[int, int, dict[str, Any]] | None:
        if self._asked is None:
            return None
        # Packing joins 2 x 2 latents into a token, unless the pipeline says otherwise (LTX).
        grid = _scale(self.target) * getattr(self.target, "transformer_spatial_patch_size", 2)
        width, height = (side // grid * grid for side in self._asked)
        tokens = (width // grid) * (height // grid)
        return (width, height, {}) if tokens and latents.shape[1] % tokens == 0 else None


def is_pipeline(target: Any) -> bool:
    """Whether ``target`` is a diffusers pipeline; does not import diffusers."""
    return any(
        cls.__name__ == "DiffusionPipeline" and cls.__module__.startswith("diffusers.")
        for cls in type(target).__mro__
    )


def _latents(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The latents of a denoiser's call: its first tensor by position or by the usual names."""
    found = args[0] if args else next((kwargs[name] for name in _LATENTS if name in kwargs), None)
    return found if hasattr(found, "ndim") else None


def _scale(pipe: Any) -> int:
    """Pixels a latent, along a side: what the pipeline or its decoder says; 1 where it works on pixels."""
    named = (getattr(pipe, name, None) for name in _SCALES)
    found = next((int(scale) for scale in named if scale), None)
    if found is not None:
        return found
    decoders = [getattr(pipe, name) for name in _DECODERS if hasattr(pipe, name)]
    return _decoder_scale(next(iter(decoders))) if decoders else 1


def _decoder_scale(decoder: Any) -> int:
    """That of a decoder by its levels; the usual 8 where it does not tell, or was left out."""
    config = getattr(decoder, "config", None)
    blocks = getattr(config, "block_out_channels", None)
    if blocks:
        return int(2 ** (len(blocks) - 1))
    levels = getattr(config, "levels", None)
    return int(config.up_down_scale_factor**levels) if config is not None and levels else 8


def _guided_in_one_batch(pipe: Any) -> bool:
    """Whether unconditional and conditional halves go through one forward (U-Nets do that)."""
    try:
        guided = bool(pipe.do_classifier_free_guidance)
    except AttributeError:
        return False  # guidance is unknown before the first call, or the pipeline has none
    return guided and hasattr(pipe, "unet")


def _calls(pipe: Any, name: str) -> bool:
    code = getattr(inspect.unwrap(type(pipe).__call__), "__code__", None)
    return code is not None and name in code.co_names and callable(getattr(pipe, name, None))


def _before(pipe: Any, name: str, hook: Hook, session: Session) -> None:
    """Shadow a method on the instance by one that tells ``hook`` first; the shadow is taken away on close."""
    original = getattr(pipe, name, None)
    if not inspect.ismethod(original) or name in vars(pipe):
        return  # absent, or somebody else's patch: leave it
    setattr(pipe, name, _Shadow(original, hook))
    session.undo(vars(pipe).pop, name, None)


class _Shadow:
    """A bound method with a hook before it. In a copy of the pipeline, or a pickle, it is the plain method again."""

    def __init__(self, method: Any, hook: Hook) -> None:
        functools.update_wrapper(self, method)
        self._method = method
        self._hook = hook
        self._signature = inspect.signature(method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(TypeError):  # a wrong call: the method itself says so better
            self._hook(self._signature.bind(*args, **kwargs).arguments)
        return self._method(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = memo.get(id(self._method.__self__), self._method.__self__)
        return types.MethodType(self._method.__func__, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return types.MethodType, (self._method.__func__, self._method.__self__)
