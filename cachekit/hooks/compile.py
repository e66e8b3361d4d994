"""Carrying out a plan: compile a denoiser, whole or by its repeated blocks, so that it can be put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachekit.identity import Plan
from cachekit.identity.pipeline import repeated_blocks
from cachekit.runtime import torch_private
from cachekit.runtime.process import RECOMPILE_LIMIT

Undo = Callable[..., None]


def compile_denoiser(module: Any, plan: Plan, backend: Any, undo: Undo) -> None:
    """Compile ``module`` as the plan says, through ``backend``; ``undo(function, *args)`` collects the way back.

    ``backend`` None compiles through plain Inductor. A plan whose caller compiles by itself changes nothing.
    """
    arguments: dict[str, Any] = {"dynamic": plan.dynamic, "fullgraph": plan.fullgraph}
    if torch_private.takes_recompile_limit():
        arguments["recompile_limit"] = RECOMPILE_LIMIT
    if backend is None:
        arguments |= {"mode": plan.mode} if plan.mode else {"options": dict(plan.options) or None}
    else:
        arguments["backend"] = backend
    for part in compiled_parts(module, plan):
        undo(torch_private.set_compiled_call, part, torch_private.compiled_call(part))
        if type(part).__module__.startswith("torch.nn."):
            torch_private.set_compiled_call(part, _compiled_container(part, arguments))
        else:
            part.compile(**arguments)


def _compiled_container(part: Any, arguments: dict[str, Any]) -> Callable[..., Any]:
    """What ``part.compile()`` should do for torch's own classes (``Sequential``): Dynamo skips frames of torch."""
    import torch

    plain = torch_private.plain_call(part)

    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    compiled: Callable[..., Any] = torch.compile(call, **arguments)
    return compiled


def compiled_parts(module: Any, plan: Plan) -> list[Any]:
    """The modules that the plan compiles one by one."""
    if plan.scope == "caller":
        return []
    if plan.scope == "module":
        return [module]
    names = repeated_blocks(module)
    return [part for part in module.modules() if type(part).__name__ in names]
