"""The plan: how a pipeline is compiled.

A value; :meth:`Plan.for_pipeline` looks at a pipeline to choose the usual one for its denoiser. It compiles
nothing and changes nothing: the hooks carry it out.

    Plan.for_pipeline(pipe)                       # what attach() does by itself
    Plan(device="cuda:0", scope="module", dynamic=False, mode="max-autotune-no-cudagraphs")
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cachekit.errors import ConfigurationError

Scalar = str | int | float | bool | None
Scope = Literal["module", "blocks", "caller"]

SCOPES: Final = ("module", "blocks", "caller")
MODES: Final = (None, "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_DEVICE: Final = re.compile(r"(cpu|mps|(?:cuda|xpu):(?:0|[1-9]\d{0,3}))\Z")


@dataclass(frozen=True, slots=True)
class Plan:
    """How one pipeline is compiled, and for which device.

    Args:
        device: ``cpu``, ``cuda:0``, ...; ``cuda`` alone means the current GPU of this process.
        scope: ``module`` compiles each denoiser whole, ``blocks`` its repeated blocks, and ``caller`` says that
            the engine compiles by itself.
        dynamic: as in ``torch.compile``: None lets torch decide after the first recompile.
        fullgraph: a graph break is an error.
        mode: a ``torch.compile`` mode; ``default`` is the same as None.
        options: Inductor options as a mapping or as pairs; kept as sorted pairs.
        fuse_qkv: query, key and value projections are fused before compiling.

    Raises:
        ConfigurationError: a value is not one of those allowed; the message names them.
    """

    device: str
    scope: Scope = "module"
    dynamic: bool | None = False
    fullgraph: bool = False
    mode: str | None = None
    options: tuple[tuple[str, Scalar], ...] = ()
    fuse_qkv: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", _device(self.device))
        object.__setattr__(self, "mode", None if self.mode == "default" else self.mode)
        object.__setattr__(self, "options", _options(self.options))
        if self.scope not in SCOPES:
            raise ConfigurationError(f"scope is {self.scope!r}; allowed: {', '.join(SCOPES)}")
        if self.mode not in MODES:
            allowed = ", ".join(["default", *(mode for mode in MODES if mode)])
            raise ConfigurationError(f"mode is {self.mode!r}; allowed: {allowed}")
        if self.mode and self.options:
            raise ConfigurationError("torch.compile takes a mode or options, not both")
        for name, allowed_types in _FLAGS.items():
            if not isinstance(getattr(self, name), allowed_types):
                raise ConfigurationError(f"{name} is {getattr(self, name)!r}; it must be true or false")

    @classmethod
    def for_pipeline(cls, pipe_or_module: Any, *, device: Any = None) -> Plan:
        """The usual plan: repeated blocks, dynamic, for transformers that have them; else whole and static.

        ``device`` is where it will run (text or ``torch.device``); by default where the denoiser is now.

        Raises:
            ConfigurationError: no denoiser is found, or it is on the meta device and no device was given.
        """
        from cachekit.identity import pipeline

        found = pipeline.denoisers(pipe_or_module)
        where = str(device) if device is not None else pipeline.device_of(found[0][1])
        if all(pipeline.repeated_blocks(module) for _, module in found):
            return cls(device=where, scope="blocks", dynamic=True, fullgraph=True)
        return cls(device=where, scope="module", dynamic=False)

    @property
    def device_type(self) -> str:
        """``cpu``, ``cuda``, ...: the device without its ordinal."""
        return self.device.partition(":")[0]

    @property
    def ordinal(self) -> int | None:
        """The number of the GPU; None where devices are not numbered."""
        _, _, index = self.device.partition(":")
        return int(index) if index else None

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object; options as an object."""
        return {
            "device": self.device,
            "scope": self.scope,
            "dynamic": self.dynamic,
            "fullgraph": self.fullgraph,
            "mode": self.mode,
            "options": dict(self.options),
            "fuse_qkv": self.fuse_qkv,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_json` wrote.

        Raises:
            ConfigurationError: a key is unknown or missing, or a value is not allowed.
        """
        try:
            return cls(**data)
        except TypeError as exc:
            raise ConfigurationError(f"not a plan: {exc}") from exc


_FLAGS: Final[Mapping[str, tuple[type, ...]]] = {
    "dynamic": (bool, type(None)),
    "fullgraph": (bool,),
    "fuse_qkv": (bool,),
}


def _device(text: Any) -> str:
    name = str(text)
    if name in ("cpu:0", "mps:0"):  # torch prints a number where there is only one
        return name[:3]
    if name in ("cuda", "xpu"):
        name = f"{name}:{_current_ordinal(name)}"
    if not _DEVICE.match(name):
        raise ConfigurationError(f"device is {name!r}; allowed: cpu, cuda, cuda:N, xpu, xpu:N, mps")
    return name


def _current_ordinal(kind: str) -> int:
    """The ordinal that torch would use; 0 on a planner that has no such device."""
    import torch

    backend = getattr(torch, kind)
    return int(backend.current_device()) if backend.is_available() else 0


def _options(options: Any) -> tuple[tuple[str, Scalar], ...]:
    pairs: Iterable[Any] = options.items() if isinstance(options, Mapping) else (options or ())
    try:
        found = {str(name): value for name, value in pairs}
    except (TypeError, ValueError) as exc:
        raise ConfigurationError("options are a mapping or pairs of name and value") from exc
    for name, value in found.items():
        if not isinstance(value, (str, int, float, bool, type(None))):
            raise ConfigurationError(
                f"option {name} is a {type(value).__name__}; only text, numbers and booleans"
            )
    return tuple(sorted(found.items()))
