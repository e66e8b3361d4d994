"""Real bundles for the tests of this folder: the committed fixtures, and one compiled here by the installed torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("bundle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bundle")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "megacache"
CUDA = Path(__file__).parent / "data" / "torch-2.11-cuda.bin.zst"

# One process, three compiles: a constant tensor, two saves (torch then writes two blocks per type), a training graph.
_PROGRAM = """
import sys
import torch, torch._dynamo

values = [float(n) for n in range(64)]

def first(x):
    return (x + torch.tensor(values)).sin()

def second(x):
    return x.view(-1).cos() * x.shape[0]

def save(name):
    with open(f"{sys.argv[1]}/{name}", "wb") as file:
        file.write(torch.compiler.save_cache_artifacts()[0])

with torch.no_grad():
    torch.compile(first)(torch.ones(64))
    save("single.bin")
    torch.compile(second, dynamic=True)(torch.ones(5, 8))
torch.compile(lambda x, y: (x @ y).exp())(torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)).sum().backward()
save("double.bin")
"""


def unpack(path: Path) -> bytes:
    """Decompress a committed bundle."""
    return zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 28)


def minors() -> list[str]:
    """Return the torch minors that fixtures exist for."""
    found = [path.stem.removeprefix("torch-") for path in FIXTURES.glob("torch-*.json")]
    return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")])


@pytest.fixture(params=minors() or ["none"])
def recorded(request: pytest.FixtureRequest) -> Mapping[str, tuple[bytes, Any]]:
    """Give the bundles of one torch minor by name: the raw bytes, and what torch says about them."""
    sidecar = FIXTURES / f"torch-{request.param}.json"
    assert sidecar.exists(), "no fixtures: see the README in tests/fixtures/megacache"
    facts = json.loads(sidecar.read_text())["bundles"]
    return {name: (unpack(FIXTURES / fact["file"]), fact) for name, fact in facts.items()}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """Compile for real, once, in another process, and give its bundles by name: ``single`` and ``double``."""
    folder = tmp_path_factory.mktemp("compiled")
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    environment = {
        "PATH": os.environ["PATH"],
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, str(program), str(folder)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return lambda name: (folder / f"{name}.bin").read_bytes()


@pytest.fixture(scope="session")
def cuda() -> bytes:
    """Give a bundle that torch 2.11 with Triton 3.6 wrote on an H200, cut down to one block per type."""
    return unpack(CUDA)
