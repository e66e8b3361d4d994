"""Attention of one denoiser: which processor each layer has, and which back end computes it.

diffusers resolves the back end at each call: a processor's own, or the process-wide default. Here it is resolved the
same way, with the default given by the toolchain, so that a planner gets the back end of the machine it plans for.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any, Final

from cachekit.bundle import canonical
from cachekit.identity.classes import patch_of
from cachekit.identity.compact import compact
from cachekit.identity.stable import stable, type_name

_NONE: Final = object()
_PACKAGES: Final = {
    "flash": "flash-attn",
    "_flash_3": "flash-attn-3",
    "sage": "sageattention",
    "_sage": "sageattention",
    "xformers": "xformers",
}
"""Back ends by the start of their name, and the distribution that computes them."""


class Attention:
    """Processors as the walk finds them."""

    def __init__(self) -> None:
        self.processors: list[tuple[str, str]] = []
        self._backends: list[str | None] = []

    def add(self, path: str, processor: Any) -> None:
        """Note the processor of the layer at ``path``; an unreadable one is told by its class."""
        kind = type(processor)
        name = type_name(kind) + patch_of(kind, "__call__")
        try:
            told = _settings(processor)
            backend = getattr(processor, "_attention_backend", _NONE)
        except Exception as exc:  # noqa: BLE001 - code of users
            self.processors.append((path, f"{name} unreadable:{type(exc).__name__}"))
            return
        self.processors.append((path, f"{name} {canonical.dumps(told).decode()}" if told else name))
        if backend is not _NONE:
            self._backends.append(None if backend is None else backend_name(backend))

    def backends(self, *, default: str) -> dict[str, int]:
        """Layers by back end; processors that never ask for one are not counted."""
        return dict(Counter(backend or default for backend in self._backends))

    def describe(self, *, default_backend: str) -> dict[str, Any]:
        """JSON: ``processors`` folded over layers, ``backends`` with their number of layers."""
        return {"processors": compact(self.processors), "backends": self.backends(default=default_backend)}

    def packages(self, *, default_backend: str) -> set[str]:
        """Distributions that the back ends come from."""
        used = self.backends(default=default_backend)
        hub = {"kernels" for name in used if name.endswith("_hub")}
        return hub | {dist for start, dist in _PACKAGES.items() for name in used if name.startswith(start)}


def backend_name(backend: Any) -> str:
    """``native``, ``flash``, ...: diffusers keeps it as an enum or as text."""
    return str(backend.value if isinstance(backend, enum.Enum) else backend)


def _settings(processor: Any) -> dict[str, Any]:
    """What a processor carries besides its class: plain public fields, and whether it runs in parallel."""
    fields = getattr(processor, "__dict__", {})
    told = {
        name: stable(value)
        for name, value in fields.items()
        if name[:1] != "_" and name != "training" and _is_plain(value)
    }
    parallel = getattr(processor, "_parallel_config", None)
    if parallel is not None:
        told["parallel"] = stable(parallel)
    return told


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, enum.Enum)) or callable(value)
