"""Ids are the same in every process: other hash seed, user, host, folder, environment, import order, thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from cachekit.identity import Plan, fingerprint

ROOT = Path(__file__).parents[3]

SCRIPT = """
import json, sys
{first}
import torch
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from peft import LoraConfig
from cachekit.identity import Plan, Toolchain, fingerprint
configs = json.loads({configs!r})
flux, unet = FluxTransformer2DModel(**configs["flux"]), UNet2DConditionModel(**configs["unet"])
lora = FluxTransformer2DModel(**configs["flux"])
lora.add_adapter(LoraConfig(r=2, target_modules=["to_v", "to_q", "to_k"]), adapter_name="x")

class Custom(torch.nn.Module):
    table = frozenset({{"a", "b", "c", "d"}})
    def __init__(self):
        super().__init__()
        self.kinds = ("q", "k", "v")
        self.activation = lambda x: x if x in {{"p", "q", "r"}} else None
    def forward(self, x):
        return x if x in {{"p", "q", "r"}} else None

torch._inductor.config.unsafe_marked_cacheable_functions = {{"b": "1", "a": "2"}}
torch._dynamo.config.traceable_tensor_subclasses = {{int, str, float, bytes}}
found = [fingerprint(m, Plan("cpu")).id for m in (flux, unet, lora, Custom())]
print(json.dumps({{"ids": found, "toolchain": Toolchain.current().to_json(), "cuda": torch.cuda.is_initialized()}}))
"""


def run(configs: dict[str, Any], cwd: Path, first: str = "", **environment: str) -> dict[str, Any]:
    """Ids that a new process computes."""
    script = SCRIPT.format(first=first, configs=json.dumps(configs))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_ids_are_the_same_in_every_process(tmp_path: Path, unet: Any, flux: Any) -> None:
    """Hash seed, user, home, working folder, host name, locale, time zone and import order do not matter."""
    configs = {
        name: {key: value for key, value in make().config.items() if key[0] != "_"}
        for name, make in (("unet", unet), ("flux", flux))
    }
    one = run(configs, ROOT, PYTHONHASHSEED="1")
    two = run(
        configs,
        tmp_path,
        "import diffusers.models.attention_dispatch, torch._inductor.compile_fx, torch._dynamo",
        PYTHONHASHSEED="2",
        USER="ada",
        LOGNAME="ada",
        HOME=str(tmp_path),
        HOSTNAME="elsewhere",
        LANG="C",
        TZ="Asia/Tokyo",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
        TORCHINDUCTOR_COMPILE_THREADS="1",
        CACHEKIT_DIR=str(tmp_path / "kit"),
        HF_HOME=str(tmp_path / "hub"),
        SOMETHING_ELSE="1",
    )

    assert one == two
    assert len(set(one["ids"])) == 4


def test_threads_that_ask_at_once_get_one_answer() -> None:
    """A background thread and the generating thread may both ask."""
    module, plan, found = torch.nn.Linear(2, 2), Plan("cpu"), []
    threads = [threading.Thread(target=lambda: found.append(fingerprint(module, plan))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(found) == {fingerprint(module, plan)}


def test_importing_identity_loads_no_torch() -> None:
    """The server and the CLI read fingerprints where torch is not installed."""
    script = (
        "import sys, cachekit.identity; print(sorted({'torch', 'diffusers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
