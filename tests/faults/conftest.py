"""The shim, compiled once a session, and scripts that run with it loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim. Needs the compiler that torch needs as well."""
    if sys.platform != "linux":
        pytest.skip("the shim stands between a process and the C library of Linux")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    compiler = os.environ.get("CXX", "g++")
    source = Path(__file__).with_name("shim.c")
    command = [
        compiler,
        "-x",
        "c",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(source),
        "-ldl",
        "-lpthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder where flushing costs nothing, if there is one: thousands of files are written."""
    if not os.access("/dev/shm", os.W_OK | os.X_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="cachekit-faults-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def faulty(shim: Path, tmp_path: Path, memory: Path) -> Run:
    """Run a module of this folder in a process with the shim loaded; what it printed last, as JSON.

    ``faulty("module", "argument", ...)``; the first argument that the module gets is an empty folder of this test's.
    """

    def run(module: str, *arguments: str) -> Any:
        work = Path(tempfile.mkdtemp(prefix="work-", dir=memory))
        variables = {name: value for name, value in os.environ.items() if not name.startswith("CACHEKIT_")}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", f"tests.faults.{module}", str(work), *arguments],
            cwd=REPOSITORY,
            env={
                **variables,
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONDONTWRITEBYTECODE": "1",
                "LD_PRELOAD": str(shim),
                "HOME": str(tmp_path),
                "TMPDIR": str(_folder(tmp_path, "tmp")),
                "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(_folder(tmp_path, "inductor")),
                "TRITON_CACHE_DIR": str(_folder(tmp_path, "triton")),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir(exist_ok=True)
    return parent / name
