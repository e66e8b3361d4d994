"""Child processes, one per start, each as bare as another machine: empty caches and a temporary folder of its own.

A child writes its result to a file as it goes, so a crash keeps what was measured before it. It tells its progress
on standard output, which is passed on; what it writes to standard error is kept for when it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, without_paths

TAIL = 4000
"""Characters of standard error kept when a child fails: the traceback and a few lines before it."""

_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "TMPDIR")


@dataclass
class Child:
    """How one process ended. ``seconds`` is its whole life, imports and building the model included."""

    name: str
    seconds: float
    exit_status: int | None
    """None if it was killed for taking longer than it may."""
    result: dict[str, Any] = field(default_factory=dict)
    stderr: str = ""
    """The end of it, kept where the child failed."""

    @property
    def ok(self) -> bool:
        """Whether it ran to its end."""
        return self.exit_status == 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def run(
    name: str,
    module: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    timeout: float,
    variables: Mapping[str, str] | None = None,
) -> Child:
    """Run ``python -m module arguments --result FILE`` with empty caches below ``folder``, which must not exist.

    Args:
        timeout: seconds after which the child is killed.
        variables: more environment variables.
    """
    folder.mkdir(parents=True)
    result, log = folder / "result.json", folder / "stderr.log"
    command = [sys.executable, "-m", module, *arguments, "--result", str(result)]
    started = time.monotonic()
    with log.open("wb") as stderr:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**bare_environment(folder), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                timeout=timeout,
                check=False,
            )
            status: int | None = done.returncode
        except subprocess.TimeoutExpired:
            status = None
    seconds = round(time.monotonic() - started, 2)
    tail = "" if status == 0 else log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    return Child(name, seconds, status, _read(result), tail)


def bare_environment(folder: Path) -> dict[str, str]:
    """This process's environment with every cache in an empty folder below ``folder`` and no setting of cachekit's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEKIT_")}
    for name in _FOLDERS:
        path = folder / name.lower()
        path.mkdir()
        environment[name] = str(path)
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    return environment


def write_json(path: Path, document: Any, *, hide: Sequence[Path] | None = None) -> None:
    """Replace ``path`` by ``document`` in one step; with ``hide``, what is published: no folder of this machine in it.

    Args:
        hide: further folders whose paths become words.
    """
    text = json.dumps(document, indent=1, default=str) + "\n"
    if hide is not None:
        text = without_paths(text, *hide, *([path.parent] if path.is_absolute() else []))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}  # it failed before it had measured anything
    return found
