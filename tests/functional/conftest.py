"""Real processes: scripts run in a fresh interpreter with an empty compile cache, as an engine's start would."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
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
    print("RESULT " + json.dumps(facts), flush=True)


def at_rendezvous():
    '''Say that this process is ready, and wait until the test lets it go on.'''
    print("READY", flush=True)
    sys.stdin.readline()
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
    return functools.partial(run_script, folder=tmp_path)


def run_script(
    script: str, folder: Path, *, environment: dict[str, str] | None = None, **values: Any
) -> dict[str, Any]:
    """What a script told that ran in an interpreter of its own, with ``folder`` for its files."""
    started = Started(script, folder, environment or {}, values)
    code = started.end()
    assert code == 0, started.stderr[-4000:]
    assert len(started.told) == 1, started.stdout[-2000:] + started.stderr[-4000:]
    return {**started.told[0], "stderr": started.stderr}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start a script as ``process`` does, and have it in hand while it runs: for signals, and for several at once."""
    started: list[Started] = []

    def begin(script: str, *, environment: dict[str, str] | None = None, **values: Any) -> Started:
        started.append(Started(script, tmp_path, environment or {}, values))
        return started[-1]

    yield begin
    for one in started:
        one.kill()


class Started:
    """A script in an interpreter of its own, while it runs and afterwards."""

    def __init__(
        self, script: str, folder: Path, environment: dict[str, str], values: dict[str, Any]
    ) -> None:
        values = {"store": str(folder / "cachekit"), **values}
        code = _PRELUDE + "".join(f"{k} = {v!r}\n" for k, v in values.items()) + textwrap.dedent(script)
        self.stdout = self.stderr = ""
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=REPOSITORY,
            env={**os.environ, **_empty_caches(folder), "PYTHONPATH": str(REPOSITORY), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Until the script is at its rendezvous."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        while line not in ("READY\n", ""):
            self.stdout += line
            line = self.popen.stdout.readline()
        if not line:
            self.end()
            raise AssertionError(self.stdout[-2000:] + self.stderr[-4000:])

    def go_on(self) -> None:
        """Let the script pass its rendezvous."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def end(self) -> int:
        """Wait for the end; the exit status, negative for a signal."""
        stdout, self.stderr = self.popen.communicate(timeout=TIMEOUT_S)
        self.stdout += stdout
        return self.popen.returncode

    def kill(self) -> None:
        """Whatever it is doing."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.communicate(timeout=TIMEOUT_S)

    @property
    def told(self) -> list[dict[str, Any]]:
        """Everything it told, in order."""
        lines = self.stdout.splitlines()
        return [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]
