"""The toolchain: what compiles and runs on one machine, and how this process has set it up.

:meth:`Toolchain.current` captures everything once; :meth:`Toolchain.components` selects what belongs to one plan. A
captured toolchain is JSON, so ``cachekit toolchain --json`` on a GPU machine lets a planner without a GPU compute
that machine's fingerprints.

Not in it: user, host name, paths, drivers, and environment variables as such (those that torch reads show in its
configuration).
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachekit.bundle import canonical
from cachekit.errors import ConfigurationError, CorruptError, NewerSchemaError
from cachekit.identity import host
from cachekit.identity.host import cpu_flags
from cachekit.identity.plan import Plan
from cachekit.identity.stable import LIBRARIES, version_of

__all__ = ["Toolchain", "cpu_flags", "host_facts", "host_requirements"]

SCHEMA: Final = 1
_REQUIRED: Final = ("torch", "python", "platform", "packages", "gpus", "cpu", "flags", "config", "diffusers")
_CPU_COMPONENTS: Final = ("arch", "vector_isa", "threads")
_REQUIREMENTS: Final = ("arch", "vector_isa", "threads", "vec_isa_ok")
_ORDINAL: Final = "ordinal"
_TRITON: Final = ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A captured toolchain; immutable, equal if everything captured is."""

    canonical: bytes

    @classmethod
    def current(cls) -> Toolchain:
        """Capture this process now, on this thread: autocast and compile settings are per thread in torch.

        Starts CUDA if there is a GPU. Costs about 40 ms the first time in a process and 2 ms after that.
        """
        from cachekit.identity import configs, flags

        return cls.of(
            {
                **_installed(),
                "gpus": _gpus(),
                "current_gpu": _current_gpu(),
                "cpu": host.facts(),
                "flags": flags.current(),
                "config": configs.deviations(),
                "cache_key_tag": _cache_key_tag(),
                "diffusers": _diffusers(),
            }
        )

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Toolchain:
        """Make one from its parts.

        Raises:
            CorruptError: a part is missing.
            NewerSchemaError: captured by a newer release.
        """
        schema = data.get("schema", SCHEMA)
        if isinstance(schema, int) and schema > SCHEMA:
            raise NewerSchemaError(
                f"toolchain schema {schema!r:.80} is newer than {SCHEMA}, which this release reads"
            )
        missing = [name for name in _REQUIRED if name not in data]
        if schema != SCHEMA or missing:
            raise CorruptError(
                f"not a toolchain: {', '.join(missing) or f'schema {schema!r:.80}'} is missing or wrong"
            )
        return cls(canonical.dumps({**data, "schema": schema}))

    @classmethod
    def from_json(cls, text: bytes | str) -> Toolchain:
        """Read what :meth:`to_json` or ``cachekit toolchain --json`` wrote.

        Raises:
            CorruptError: it is not a toolchain.
            NewerSchemaError: captured by a newer release.
        """
        data = canonical.loads(text)
        if not isinstance(data, dict):
            raise CorruptError("a toolchain is a JSON object")
        return cls.of(data)

    def to_json(self) -> str:
        """The canonical JSON text."""
        return self.canonical.decode()

    @property
    def data(self) -> dict[str, Any]:
        """Everything captured, as a new copy at each access."""
        loaded: dict[str, Any] = canonical.loads(self.canonical)
        return loaded

    def components(self, plan: Plan, *, packages: Iterable[str] = ()) -> dict[str, Any]:
        """What belongs in the fingerprint of a pipeline compiled by ``plan`` that depends on ``packages``.

        Raises:
            ConfigurationError: the plan's GPU is not one of this toolchain's; the message says which are.
        """
        from cachekit.identity import configs

        data = self.data
        on_cpu = plan.device_type == "cpu"
        by_plan = configs.SET_BY_DYNAMIC if plan.dynamic is not None or plan.scope == "caller" else ()
        return {
            "torch": data["torch"],
            "triton": data.get("triton"),
            "python": data["python"],
            "system": data["platform"],
            "packages": {name: data["packages"].get(name) for name in packages},
            "gpu": _beside_cpu(data) if on_cpu else _planned_gpu(data, plan),
            "cpu": {name: data["cpu"].get(name) for name in _CPU_COMPONENTS} if on_cpu else None,
            "flags": data["flags"],
            "config": {name: value for name, value in data["config"].items() if name not in by_plan},
            "cache_key_tag": data.get("cache_key_tag", ""),
            "gguf_kernels": data["diffusers"].get("gguf_kernels", False) if "gguf" in packages else None,
        }

    def requirements(self) -> dict[str, str]:
        """What C++ code made by this toolchain needs of a host: architecture, vector ISA, threads, probe setting."""
        cpu = self.data["cpu"]
        return {name: str(cpu.get(name)) for name in _REQUIREMENTS}

    @property
    def attention_backend(self) -> str:
        """diffusers' process-wide attention back end."""
        return str(self.data["diffusers"].get("attention_backend", "native"))

    def __repr__(self) -> str:
        return f"<Toolchain torch {self.data['torch'].get('version')}, {len(self.data['gpus'])} GPUs>"


def host_requirements(plan: Plan | None = None) -> dict[str, str]:  # noqa: ARG001 - so far every plan needs the same
    """What an artifact with C++ in it needs of its host beyond the fingerprint, as this host has it.

    Keys ``arch``, ``vector_isa``, ``threads``, ``vec_isa_ok``; the same for every plan, since a GPU pipeline may
    contain C++ kernels too. Compiles nothing.
    """
    facts = host.facts()
    return {name: str(facts[name]) for name in _REQUIREMENTS}


def host_facts() -> dict[str, str]:
    """:func:`host_requirements` and what compiled kernels depend on besides: CPU flag set and libc."""
    return {name: str(value) for name, value in host.facts().items()}


# --- gathering -----------------------------------------------------------------------------------------------------


@functools.cache
def _installed() -> dict[str, Any]:
    """What is installed: it does not change while the process lives."""
    import torch

    version = torch.version
    return {
        "torch": {
            "version": str(torch.__version__),
            "git": getattr(version, "git_version", None),
            "cuda": version.cuda,
            "hip": getattr(version, "hip", None),
            "xpu": getattr(version, "xpu", None),
        },
        "triton": next((found for name in _TRITON if (found := version_of(name)) is not None), None),
        "python": _python(),
        "platform": sys.platform,
        "packages": {name: found for name in LIBRARIES.values() if (found := version_of(name)) is not None},
    }


def _python() -> str:
    """``cpython-3.11``; free-threaded builds end in ``t``. Patch releases run the same bytecode."""
    free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}{free}"


def _gpus() -> list[dict[str, Any]]:
    import torch

    if torch.cuda.is_available():
        return [_cuda_gpu(ordinal) for ordinal in range(torch.cuda.device_count())]
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_available():
        names = [xpu.get_device_properties(ordinal).name for ordinal in range(xpu.device_count())]
        return [{"type": "xpu", _ORDINAL: ordinal, "name": name} for ordinal, name in enumerate(names)]
    return []


@functools.cache
def _cuda_gpu(ordinal: int) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(ordinal)
    return {
        "type": "cuda",
        _ORDINAL: ordinal,
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "multi_processors": found.multi_processor_count,
        "gcn_arch": getattr(found, "gcnArchName", None) if torch.version.hip else None,
    }


def _current_gpu() -> int | None:
    import torch

    return int(torch.cuda.current_device()) if torch.cuda.is_available() else None


def _cache_key_tag() -> str:
    from cachekit.identity import configs

    return str(configs.setting("torch.compiler.config.cache_key_tag") or "")


def _diffusers() -> dict[str, Any]:
    from cachekit.identity import diffusers_state

    return {
        "attention_backend": diffusers_state.attention_backend(),
        "gguf_kernels": diffusers_state.gguf_kernels(),
    }


# --- selecting -----------------------------------------------------------------------------------------------------


def _planned_gpu(data: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    if plan.device == "mps":
        return {"type": "mps"}
    for gpu in data["gpus"]:
        if gpu["type"] == plan.device_type and gpu[_ORDINAL] == plan.ordinal:
            return dict(gpu)
    known = ", ".join(f"{gpu['type']}:{gpu[_ORDINAL]}" for gpu in data["gpus"]) or "no GPU"
    raise ConfigurationError(
        f"the plan is for {plan.device}, the toolchain has {known}: capture one there with `cachekit toolchain --json`"
    )


def _beside_cpu(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """For a CPU plan, the name of the GPU that torch would use: its system key holds it for CPU graphs too."""
    current = data.get("current_gpu")
    names = [gpu.get("gcn_arch") or gpu["name"] for gpu in data["gpus"] if gpu[_ORDINAL] == current]
    return {"name": names[0]} if names else None
