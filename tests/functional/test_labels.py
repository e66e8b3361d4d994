"""The sizes and batch that a pipeline's denoiser really ran, on real pipelines that run eagerly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachekit.demo.models import QWEN_GGUF, SDXL, DemoPipeline, generate
from cachekit.hooks.diffusers import DiffusersTarget


class Generations:
    """Stands where a session would: what the target told, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._undo: list[tuple[Any, tuple[Any, ...]]] = []

    def generation_started(self) -> None:
        """A generation began."""
        self.events.append("started")

    def generation_finished(self) -> None:
        """A generation ended well."""
        self.events.append("finished")

    def undo(self, function: Any, *arguments: Any) -> None:
        """What closing will put back."""
        self._undo.append((function, arguments))

    def close(self) -> None:
        """Put everything back, last first."""
        for function, arguments in reversed(self._undo):
            function(*arguments)


def watched(demo: DemoPipeline, folder: Path) -> tuple[Any, Generations, set[str]]:
    """A loaded pipeline, what it tells, and the labels of its forwards as they come."""
    demo.build(folder)
    pipe = demo.load(folder)
    target, session, labels = DiffusersTarget(pipe), Generations(), set()
    target.watch(session)  # type: ignore[arg-type]

    def note(module: Any, args: Any, kwargs: Any) -> None:
        shape = target.label("denoiser", args, kwargs)
        labels.add(shape.label if shape else "unknown")

    for _, module in target.denoisers():
        module.register_forward_pre_hook(note, with_kwargs=True)
    return pipe, session, labels


def test_a_unet_is_labelled_by_its_latents(tmp_path: Path) -> None:
    """SDXL: width before height, batch in images, and guidance's second half counted as a variant."""
    pipe, session, labels = watched(SDXL, tmp_path)

    generate(pipe, 96, 64, batch=2, steps=1)

    assert labels == {"96x64x2,cfg=true"}
    assert session.events == ["started", "finished"]


def test_packed_latents_are_labelled_by_what_was_rounded(tmp_path: Path) -> None:
    """Qwen-Image rounds 150 x 118 down to 144 x 112, and that is what ran."""
    pipe, session, labels = watched(QWEN_GGUF, tmp_path)

    generate(pipe, 150, 118, steps=1)

    assert labels == {"144x112x1"}
    assert session.events == ["started", "finished"]


def test_a_generation_that_fails_does_not_finish(tmp_path: Path) -> None:
    """A pipeline interrupted by its callback tells of a start and of no end; closing takes the wrappers away."""
    pipe, session, _ = watched(SDXL, tmp_path)

    def cancel(*arguments: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipe("x", width=64, height=64, num_inference_steps=1, callback_on_step_end=cancel)
    session.close()

    assert session.events == ["started"]
    assert "maybe_free_model_hooks" not in vars(pipe)
    assert "prepare_latents" not in vars(pipe)
