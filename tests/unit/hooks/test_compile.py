"""A plan is carried out on the right modules, with the right arguments, and can be taken back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cachekit.hooks.compile import compile_denoiser, compiled_parts
from cachekit.identity import Plan
from cachekit.runtime import torch_private
from cachekit.runtime.process import RECOMPILE_LIMIT


class Block(torch.nn.Module):
    """One of several."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double."""
        return x * 2


class SingleBlock(Block):
    """Another kind."""


class Transformer(torch.nn.Module):
    """Two kinds of repeated blocks, and a part that is not one."""

    _repeated_blocks = ("Block", "SingleBlock")

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 4)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.single_blocks = torch.nn.ModuleList([SingleBlock()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all of it."""
        x = self.embed(x)
        for block in [*self.blocks, *self.single_blocks]:
            x = block(x)
        return x


class Undo:
    """Collects the way back."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    def __call__(self, function: Any, *arguments: Any) -> None:
        """Remember one step."""
        self.steps.append((function, *arguments))

    def all(self) -> None:
        """Go back, the last step first."""
        for function, *arguments in reversed(self.steps):
            function(*arguments)


def compiled_modules(module: torch.nn.Module) -> list[str]:
    """Names of the modules that have a compiled call."""
    return [name for name, part in module.named_modules() if torch_private.compiled_call(part) is not None]


@pytest.mark.parametrize(
    ("scope", "parts"),
    [("module", [""]), ("blocks", ["blocks.0", "blocks.1", "single_blocks.0"]), ("caller", [])],
)
def test_the_scope_says_what_is_compiled(scope: Any, parts: list[str]) -> None:
    """The whole module, each of its repeated blocks, or nothing, and all of it is taken back."""
    module, undo = Transformer(), Undo()

    compile_denoiser(module, Plan("cpu", scope=scope), "eager", undo)
    assert compiled_modules(module) == parts

    undo.all()
    assert compiled_modules(module) == []


def test_a_module_without_repeated_blocks_has_none_to_compile() -> None:
    """A plan for blocks compiles nothing where there are none."""
    assert compiled_parts(torch.nn.Linear(1, 1), Plan("cpu", scope="blocks")) == []


LIMIT = {"recompile_limit": RECOMPILE_LIMIT} if torch_private.takes_recompile_limit() else {}
"""Where torch takes it, because its configuration holds in one thread only."""


@pytest.mark.parametrize(
    ("plan", "wanted"),
    [
        (Plan("cpu", dynamic=True, fullgraph=True), {"dynamic": True, "fullgraph": True, "options": None}),
        (Plan("cpu", mode="max-autotune"), {"dynamic": False, "fullgraph": False, "mode": "max-autotune"}),
        (
            Plan("cpu", dynamic=None, options=(("max_autotune", True),)),
            {"dynamic": None, "fullgraph": False, "options": {"max_autotune": True}},
        ),
    ],
)
def test_without_a_cache_torch_gets_the_plan(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, wanted: dict[str, Any]
) -> None:
    """Plain Inductor compiles as planned: same mode, options and dynamic sizes."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **arguments: asked.append(arguments))

    compile_denoiser(Transformer(), plan, None, Undo())

    assert asked == [{**wanted, **LIMIT}]


def test_with_a_cache_the_backend_knows_mode_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.compile`` takes neither beside a backend of one's own."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **arguments: asked.append(arguments))

    compile_denoiser(Transformer(), Plan("cpu", mode="max-autotune"), "ours", Undo())

    assert asked == [{"dynamic": False, "fullgraph": False, "backend": "ours", **LIMIT}]


def test_a_sequential_is_compiled_as_well(compiling: object) -> None:
    """Dynamo skips frames of torch's own modules: one that is a denoiser by itself is compiled all the same."""
    seen: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return graph.forward

    module, undo = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), Undo()
    x = torch.ones(2, 4)
    wanted = module(x)

    compile_denoiser(module, Plan("cpu"), backend, undo)

    assert torch.equal(module(x), wanted)
    assert len(seen) == 1
    undo.all()
    assert torch_private.compiled_call(module) is None
    assert torch.equal(module(x), wanted)
    assert len(seen) == 1
