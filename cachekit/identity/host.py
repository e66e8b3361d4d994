"""The CPU of this machine: architecture, vector ISA, flags, threads. Nothing is compiled to find out.

torch probes by compiling ten small programs (15 s in an empty folder). What those programs could only confirm is
read here from the CPU's own flags, in torch's order of preference, ``ATEN_CPU_CAPABILITY`` and ``cpp.simdlen``
honoured.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from cachekit.identity import configs

_X86: Final = frozenset({"x86_64", "amd64"})
_ARM: Final = frozenset({"aarch64", "arm64"})

_WIDTHS: Final[Mapping[str, int]] = {
    "amx_tile": 512,
    "avx512_vnni": 512,
    "avx512": 512,
    "avx2": 256,
    "sve256": 256,
    "sve128": 128,
    "neon": 128,
    "zvector": 256,
    "vsx": 256,
}
"""Bits of each ISA that Inductor generates code for."""

_FORCED: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "avx2": ("avx2",),
    "avx512": ("amx_tile", "avx512_vnni", "avx512"),
    "zvector": ("zvector",),
    "vsx": ("vsx",),
}
"""What ``ATEN_CPU_CAPABILITY`` leaves to choose from; torch ignores other values."""

NO_ISA: Final = "none"
_VNNI_SINCE: Final = "2.10"
"""The first torch that generates other code where AVX-512 comes with VNNI."""


def arch() -> str:
    """``x86_64``, ``aarch64``, ... (Windows and macOS name the same machines differently)."""
    machine = platform.machine().lower()
    return "x86_64" if machine in _X86 else "aarch64" if machine in _ARM else machine


def vector_isa() -> str:
    """The ISA that Inductor's C++ code is generated for on this host, e.g. ``avx512_vnni``; ``none`` for scalar."""
    return choose_isa(
        _available(),
        forced=os.environ.get("ATEN_CPU_CAPABILITY"),
        simdlen=configs.setting("torch._inductor.config.cpp.simdlen"),
    )


def choose_isa(available: Iterable[str], *, forced: str | None, simdlen: int | None) -> str:
    """Choose as Inductor does, from ISAs in its order of preference; ``simdlen`` is in bits and comes first."""
    candidates = list(available)
    if simdlen is not None:
        candidates = [isa for isa in candidates if _WIDTHS[isa] == simdlen]
    elif forced is not None and forced in _FORCED:
        allowed = _FORCED[forced]
        kept = [isa for isa in candidates if isa in allowed]
        candidates = kept if kept or not allowed else candidates
    return candidates[0] if candidates else NO_ISA


@functools.cache
def _available() -> tuple[str, ...]:
    """ISAs of this CPU that Inductor can generate code for, best first."""
    machine = arch()
    if machine == "x86_64":
        return _x86()
    if machine == "aarch64":
        return _arm()
    if machine == "ppc64le":
        return ("vsx",)
    return ("zvector",) if machine == "s390x" and "vxe" in cpu_flags() else ()


def _x86() -> tuple[str, ...]:
    import torch

    found = capabilities()
    avx512 = bool(found.get("avx512_f"))
    vnni = avx512 and bool(found.get("avx512_vnni")) and torch.__version__ >= _VNNI_SINCE
    told = {
        "amx_tile": bool(found.get("amx_tile")),
        "avx512_vnni": vnni,
        "avx512": avx512,
        "avx2": bool(found.get("avx2")),
    }
    return tuple(isa for isa, present in told.items() if present)


def _arm() -> tuple[str, ...]:
    found = capabilities()
    if (found.get("sve2") or found.get("sve")) and found.get("bf16"):
        return ("sve128",) if found.get("sve_max_length") == 128 else ("sve256",)
    return ("neon",)


@functools.cache
def capabilities() -> Mapping[str, Any]:
    """What torch knows of the CPU; where an older torch does not tell, the same names from the kernel's flags."""
    import torch

    getter = getattr(torch.cpu, "get_capabilities", None)
    if getter is not None:
        return dict(getter())
    flags = cpu_flags()
    renamed = {"avx512f": "avx512_f", "sve": "sve", "sve2": "sve2", "svebf16": "bf16", "bf16": "bf16"}
    return {
        **dict.fromkeys(flags, True),
        **{ours: True for theirs, ours in renamed.items() if theirs in flags},
    }


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The CPU's flags as the kernel names them; what torch tells where there is no ``/proc/cpuinfo``."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip().lower() in ("flags", "features"):
                    return frozenset(value.split())
    except OSError:  # not Linux
        pass
    import torch

    getter = getattr(torch.cpu, "get_capabilities", dict)
    return frozenset(name for name, present in getter().items() if present is True)


def flags_digest() -> str:
    """A short hash of the whole flag set: what ``-march=native`` code may rely on."""
    return hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:32]


def libc() -> str:
    """``glibc-2.36``; empty where Python cannot tell."""
    return "-".join(part for part in platform.libc_ver() if part)


def threads() -> int:
    """Threads that generated C++ code is specialised on: ``cpp.threads`` if set, else torch's own number."""
    import torch

    fixed = configs.setting("torch._inductor.config.cpp.threads")
    return fixed if isinstance(fixed, int) and fixed >= 1 else torch.get_num_threads()


def vec_isa_ok() -> str:
    """Inductor's answer instead of ISA probes, part of its key: ``true``, ``false`` or ``none`` (probe)."""
    return str(configs.setting("torch._inductor.config.cpp.vec_isa_ok")).lower()


def facts() -> dict[str, Any]:
    """The CPU as JSON, for the toolchain."""
    return {
        "arch": arch(),
        "vector_isa": vector_isa(),
        "threads": threads(),
        "vec_isa_ok": vec_isa_ok(),
        "flags": flags_digest(),
        "libc": libc(),
    }
