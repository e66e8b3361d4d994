"""Counting, from inside a process, how often its torch runs the C++ compiler.

Counters say what torch's caches did; this counts what was really started. ``subprocess`` announces every program to
audit hooks, so nothing is patched and nothing of torch is looked at. Runs that only ask for a version are not counted.

    runs = CompilerRuns()
    runs.watch()            # for the rest of the process: an audit hook cannot be removed
    ...
    runs.compiles, runs.probes
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Literal

Run = Literal["compile", "probe"]

_COMPILER = re.compile(r"(?:.*-)?(?:g\+\+|c\+\+|clang\+\+|icpx)(?:-[\d.]+)?")
_BUILDS = frozenset({"-c", "-E", "-S", "-shared"})
# A header is precompiled by naming it, without any of these.
_SOURCES = frozenset({".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp"})
# torch writes a kernel as <hash>.main.cpp, and what finds out which vector ISA the compiler supports as <hash>.cpp.
_PROBE_SOURCE = re.compile(r"[a-z0-9]+\.cpp")
_PROBE_LOADS = "cdll.LoadLibrary("


class CompilerRuns:
    """How many runs of the C++ compiler this process started, and how many probes for a vector ISA; disjoint.

    A probe is both the compile of its source and the Python process that loads the result.
    """

    def __init__(self) -> None:
        self.compiles = 0
        self.probes = 0
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Count from now on."""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "subprocess.Popen":
            return
        kind = kind_of(_words(arguments[1]))
        with self._lock:
            self.compiles += kind == "compile"
            self.probes += kind == "probe"


def kind_of(command: Sequence[str]) -> Run | None:
    """What a command line is to torch on a CPU: a C++ compile, an ISA probe, or neither."""
    if not command:
        return None
    if not _COMPILER.fullmatch(PurePath(command[0]).name):
        loads = len(command) > 2 and command[1] == "-c" and _PROBE_LOADS in command[2]
        return "probe" if loads else None
    files = [PurePath(word) for word in command[1:] if not word.startswith("-")]
    if not _BUILDS.intersection(command) and not any(path.suffix in _SOURCES for path in files):
        return None
    return "probe" if any(_PROBE_SOURCE.fullmatch(path.name) for path in files) else "compile"


def _words(arguments: Any) -> list[str]:
    """The words of what was given to ``subprocess``: one text, or text, bytes and paths in a sequence."""
    if isinstance(arguments, (str, bytes, os.PathLike)):
        return os.fsdecode(arguments).split()
    return [os.fsdecode(word) for word in arguments]
