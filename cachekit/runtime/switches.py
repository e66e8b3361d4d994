"""Switches of torch that make a session pointless, or less use than it could be: what is off, and what to set.

torch compiles in silence without its caches, and keeps nothing: without a look at these, a report would tell of a cold
start for ever, and never why. They change no code, so they are no part of the fingerprint, except where torch keys on
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cachekit.identity import configs


class _Switch(NamedTuple):
    """A setting of torch, the value that switches something off, and what to do about it."""

    name: str
    off: bool
    advice: str
    option: str = ""
    """Its name among the options of ``torch.compile``, which win over the configuration; "" if it is none."""


_NOTHING_IS_KEPT = (
    _Switch("torch._dynamo.config.disable", off=True, advice="unset TORCH_COMPILE_DISABLE"),
    _Switch(
        "torch.compiler.config.force_disable_caches",
        off=True,
        advice="unset TORCHINDUCTOR_FORCE_DISABLE_CACHES and TORCH_COMPILE_FORCE_DISABLE_CACHES",
        option="force_disable_caches",
    ),
    _Switch(
        "torch._inductor.config.fx_graph_cache",
        off=False,
        advice="unset TORCHINDUCTOR_FX_GRAPH_CACHE or set it to 1",
        option="fx_graph_cache",
    ),
)
_LESS_IS_KEPT = (
    _Switch(
        "torch._functorch.config.enable_autograd_cache",
        off=False,
        advice="every start repeats AOTAutograd's part: unset TORCHINDUCTOR_AUTOGRAD_CACHE or set it to 1",
    ),
    _Switch(
        "torch._inductor.config.autotune_local_cache",
        off=False,
        advice="every start tunes its kernels again: set it to True",
        option="autotune_local_cache",
    ),
)


def nothing_is_kept(options: Mapping[str, Any]) -> str | None:
    """Why torch keeps nothing of what it compiles with these options, and what to do; None where it does."""
    return next(_off(_NOTHING_IS_KEPT, options), None)


def less_is_kept(options: Mapping[str, Any]) -> list[str]:
    """Which of torch's other caches are off, what that costs and what to do."""
    return list(_off(_LESS_IS_KEPT, options))


def _off(switches: Iterable[_Switch], options: Mapping[str, Any]) -> Iterator[str]:
    for switch in switches:
        value = options.get(switch.option, configs.setting(switch.name))
        if value is not None and bool(value) is switch.off:  # None: this torch has no such switch
            yield f"{switch.name} is {value}: {switch.advice}"
