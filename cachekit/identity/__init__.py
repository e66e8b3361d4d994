"""Who a pipeline is: fingerprint, toolchain, plan.

    fingerprint(pipe)                                         # with the usual plan, on this machine
    fingerprint(meta_pipe, plan, Toolchain.from_json(text))   # for another machine, without a GPU

Importing this package loads neither torch nor diffusers, so the server may read fingerprints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachekit.identity.fingerprint import ABSENT, SCHEMA, Difference, Fingerprint, FingerprintId, nearest
from cachekit.identity.plan import Plan

if TYPE_CHECKING:
    from cachekit.identity.toolchain import Toolchain as Toolchain
    from cachekit.identity.toolchain import host_requirements as host_requirements

__all__ = [
    "ABSENT",
    "SCHEMA",
    "Difference",
    "Fingerprint",
    "FingerprintId",
    "Plan",
    "Toolchain",
    "fingerprint",
    "host_requirements",
    "nearest",
]


def fingerprint(
    pipe_or_module: Any, plan: Plan | None = None, toolchain: Toolchain | None = None
) -> Fingerprint:
    """Compute the fingerprint of a pipeline: everything that decides whether compiled code may be reused.

    Reads metadata only, never weights, so a pipeline on the meta device gives the id of a loaded one. Cheap enough
    for every backend call: about 10 ms for a full-size U-Net.

    Args:
        pipe_or_module: a diffusers pipeline, or any ``torch.nn.Module``.
        plan: how it is compiled; by default ``Plan.for_pipeline(pipe_or_module)``.
        toolchain: what compiles it; by default this process, on this thread, now.

    Raises:
        ConfigurationError: there is no denoiser, or the toolchain lacks the plan's GPU.
    """
    from cachekit.identity.pipeline import describe
    from cachekit.identity.toolchain import Toolchain

    plan = plan or Plan.for_pipeline(pipe_or_module)
    toolchain = toolchain or Toolchain.current()
    description = describe(pipe_or_module, attention_backend=toolchain.attention_backend)
    return Fingerprint.of(
        {
            "toolchain": toolchain.components(plan, packages=description.packages),
            "pipeline": description.components,
            "plan": plan.to_json(),
        }
    )


def __getattr__(name: str) -> Any:
    if name in ("Toolchain", "host_requirements"):
        from cachekit.identity import toolchain

        return getattr(toolchain, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
