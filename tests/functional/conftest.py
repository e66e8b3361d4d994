"""Real processes: scripts run in a fresh interpreter with an empty compile cache, as an engine's start would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600

_PRELUDE = """
import json, os, sys
import torch
import cachekit
from tests.functional.nets import Kernel, OtherProduct, Product

torch.set_num_threads(1)
_commands = []


def _watch(event, arguments):
    if event == "subprocess.Popen":
        command = arguments[1]
        _commands.append(command if isinstance(command, str) else " ".join(map(os.fsdecode, command)))


sys.addaudithook(_watch)


def compiler_runs():
    '''How often a C++ compiler was run on a source; asking for its version is not that.'''
    sources = (".cpp", ".hpp", ".cc", ".h")
    return sum("g++" in c.split()[0] and any(w.endswith(sources) for w in c.split()) for c in _commands if c.split())


def call(module, *shape):
    with torch.no_grad():
        return module(torch.ones(*shape))


def tell(**facts):
    print("RESULT " + json.dumps(facts))
"""

Run = Callable[..., dict[str, Any]]


def _empty_caches(parent: Path) -> dict[str, str]:
    """Variables that give a process compile caches of its own; torch's default would be shared by all of a test."""
    return {
        name: tempfile.mkdtemp(prefix=name.lower(), dir=parent)
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    }


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Run a script in a process of its own and return what it told.

    ``process(script, name=value, ...)``: the values are variables of the script; ``store`` is one that names a
    cachekit folder that lasts for the test. The script ends with ``tell(fact=...)``.
    """

    def run(script: str, *, environment: dict[str, str] | None = None, **values: Any) -> dict[str, Any]:
        values = {"store": str(tmp_path / "cachekit"), **values}
        code = _PRELUDE + "".join(f"{k} = {v!r}\n" for k, v in values.items()) + textwrap.dedent(script)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=REPOSITORY,
            env={
                **os.environ,
                **_empty_caches(tmp_path),
                "PYTHONPATH": str(REPOSITORY),
                **(environment or {}),
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        told = [
            line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")
        ]
        assert len(told) == 1, done.stdout[-2000:] + done.stderr[-4000:]
        return {**json.loads(told[0]), "stderr": done.stderr}

    return run
