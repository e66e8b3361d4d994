"""What a measurement was taken on: machine, versions, revision. Names no host, user or folder."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_DISTRIBUTIONS = ("torch", "triton", "diffusers", "transformers", "accelerate", "peft", "gguf", "zstandard")
_SAID_BY_NVIDIA_SMI = ("name", "driver_version", "memory.total")


def machine() -> dict[str, Any]:
    """CPU, memory, system and the GPUs that the driver tells of."""
    return {
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gpus": _gpus(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python, cachekit and what decides about compiled code; None where not installed."""
    import cachekit._version

    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "cachekit": cachekit._version.__version__,  # noqa: SLF001  the one place that states it
    }
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def torch_facts() -> dict[str, Any]:
    """What torch says of itself and of its device; imports torch."""
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
    else:
        facts["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
        facts["threads"] = torch.get_num_threads()
    return facts


def revision() -> str | None:
    """The checkout's commit, with ``-dirty`` if tracked files differ; None outside a git checkout."""
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if commit and changed else commit


def command_line(script: str, arguments: Sequence[str]) -> str:
    """How the measurement was started, as one would type it in the repository's root."""
    return " ".join(["python3", script, *arguments])


def without_paths(text: str, *folders: Path) -> str:
    """``text`` with this machine's folders replaced by words: results are published."""
    names = {str(folder): f"<{folder.name}>" for folder in folders}
    names |= {str(ROOT): "<repository>", sys.prefix: "<python>", str(Path.home()): "<home>"}
    for path in sorted(names, key=len, reverse=True):
        if len(path) > 1:
            text = text.replace(path, names[path])
    return text


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _gpus() -> list[str]:
    told = _output("nvidia-smi", f"--query-gpu={','.join(_SAID_BY_NVIDIA_SMI)}", "--format=csv,noheader")
    return told.splitlines() if told else []


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None  # not installed, no device, no repository: nothing to tell
    return done.stdout.strip() or None
