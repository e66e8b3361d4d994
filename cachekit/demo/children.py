"""Running one start in a process of its own, with an environment in which nothing is warm.

The child's standard error goes to a file, of which the end is shown if it fails. A child that is still at work when
the parent ends, by an error or Ctrl-C, is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cachekit

TIMEOUT_S = 1800.0
"""A cold start takes a minute on two cores; whatever takes this long hangs."""

STDERR_LINES = 30
"""How much of a failed child's standard error is shown."""


@dataclass(frozen=True)
class Failure:
    """How a child failed: in a few words, and the end of its standard error."""

    why: str
    stderr: str


def run(text: str, *, folder: Path, doing: Callable[[str], None]) -> dict[str, Any] | Failure:
    """Run ``cachekit.demo.start`` with ``text`` and return its result; ``doing`` is told what it is at.

    ``folder``, which must not exist, is the child's working folder and holds its empty compile caches.
    """
    folder.mkdir(parents=True)
    log = folder / "stderr.log"
    result: dict[str, Any] | None = None
    expired = threading.Event()
    with log.open("wb") as stderr, _started(text, folder, stderr, expired) as child:
        assert child.stdout is not None
        for line in child.stdout:
            told = json.loads(line)
            result = told.get("result", result)
            if "doing" in told:
                doing(told["doing"])
        status = child.wait()
    if status == 0 and result is not None:
        return result
    why = f"killed after {TIMEOUT_S:.0f} s" if expired.is_set() else f"exit status {status}"
    return Failure(why, _tail(log))


@contextlib.contextmanager
def _started(
    text: str, folder: Path, stderr: Any, expired: threading.Event
) -> Iterator[subprocess.Popen[str]]:
    """The running child; ``expired`` is set when it is killed for taking too long."""
    command = [sys.executable, "-m", "cachekit.demo.start", text]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
    ) as child:

        def expire() -> None:
            expired.set()
            child.kill()

        timer = threading.Timer(TIMEOUT_S, expire)
        timer.daemon = True
        timer.start()
        try:
            yield child
        finally:
            timer.cancel()
            child.kill()  # does nothing to one that has ended


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment without settings of cachekit's, and with compile caches that are empty.

    Temporary files get an empty folder too, because torch keeps precompiled C++ headers there, whatever its cache
    folder is. The number of threads is left alone: it is part of who a CPU pipeline is.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEKIT_")}
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        own = folder / name.lower()
        own.mkdir()
        environment[name] = str(own)
    if (
        shutil.which("openssl") is None
    ):  # torch hashes C++ headers with it, and cannot compile a kernel otherwise
        environment.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    root = Path(cachekit.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):  # a checkout that may not be installed
        paths = (str(root), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    return "\n".join(lines[-STDERR_LINES:])
