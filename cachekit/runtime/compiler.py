"""The C++ compiler of this host, or none: a machine that serves what another one compiled need not have one.

torch looks a kernel up by a hash of its source and command line, in which the compiler takes part by its configured
name alone; yet it fails where no compiler of that name answers. Once kernels of a bundle are to be used on a host
without a compiler (ADR 0005), torch is told the name, finds them, and gets its own error for everything that really
would have to be compiled. Nothing is changed on a host that has a compiler.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from cachekit.bundle import Requires
from cachekit.runtime import torch_private

_lookup = {"by name": False}


@functools.cache
def is_missing() -> bool:
    """Whether torch finds no C++ compiler here; runs ``g++ --version`` once in a process."""
    try:
        torch_private.compiler_version()
    except (OSError, RuntimeError):  # not executable; what torch raises if it is not there
        return True
    return False


def go_by_name() -> None:
    """From now on have the missing compiler known to torch by its name; only where :func:`is_missing`."""
    _lookup["by name"] = True


def known_by_name() -> bool:
    """Whether torch takes a missing compiler for present: what would be compiled must be refused."""
    return _lookup["by name"]


def answering(original: Callable[[], str]) -> Callable[[], str]:
    """torch's ``get_cpp_compiler`` that also answers where there is none, once it is to."""

    @functools.wraps(original)
    def get_cpp_compiler() -> str:
        return torch_private.configured_compiler() if known_by_name() else original()

    return get_cpp_compiler


def makers(requirements: Iterable[Requires]) -> list[str]:
    """The compilers, as requirements name them, that kernels were made with: the one that made most comes first."""
    made = Counter(value for needed in requirements for name, value in needed if name == "compiler")
    return sorted(made, key=lambda maker: (-made[maker], maker))


def load_error(library: Path) -> str | None:
    """Why the dynamic loader refuses a library here, e.g. a C++ runtime that is missing or too old; None if not.

    It stays loaded: torch is about to load it anyhow.
    """
    try:
        ctypes.CDLL(os.fspath(library), mode=os.RTLD_LAZY)
    except OSError as exc:
        return str(exc)
    return None
