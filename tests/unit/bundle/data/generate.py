"""Writes ``torch-<minor>-cuda.bin``: one bundle with the kinds of graphs a denoiser compiles to on a CUDA device.

    python generate.py OUT        # torch with CUDA and this repository on the path; takes half a minute

The committed file was made on an H200 with torch 2.11.0+cu130 and Triton 3.6.0, from a script like this one in a
neutral folder (its path is in the artifacts), and compressed with ``zstd -19``. Never load it into torch: it is data
for the scan and the searches in ``cachekit.bundle``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch.compiler._cache import CacheArtifactManager

from cachekit.bundle import Artifact, megacache


def noise(*sizes: int) -> torch.Tensor:
    """Return random bfloat16 values on the device."""
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)


def constant(x: torch.Tensor) -> torch.Tensor:
    """Add a small constant."""
    return x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device, dtype=x.dtype)


def reduced(x: torch.Tensor) -> torch.Tensor:
    """Reduce over the last dimension."""
    return (F.gelu(x) * 2).sum(-1)


def scheduled(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Scale by a value that is computed on the CPU: a C++ kernel in a CUDA graph."""
    return x * torch.exp(-t).to(x.dtype).to(x.device)


def matrix(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply and activate."""
    return F.gelu(x @ w)


def attention(x: torch.Tensor) -> torch.Tensor:
    """Attend to itself."""
    return F.scaled_dot_product_attention(x, x, x).relu()


def record(
    function: Callable[..., torch.Tensor], *args: Any, train: bool = False, **options: Any
) -> list[Artifact]:
    """Compile and run once; return what torch recorded."""
    torch._dynamo.reset()
    with CacheArtifactManager.with_fresh_cache(), torch.set_grad_enabled(train):
        result = torch.compile(function, **options)(*args)
        if train:
            result.sum().backward()
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        return megacache.decode(saved[0])


def main(out: Path) -> None:
    """Record all graphs into one bundle."""
    artifacts = [
        *record(constant, noise(8, 4)),
        *record(reduced, noise(33, 64), dynamic=True),
        *record(matrix, noise(64, 64), noise(64, 64), mode="reduce-overhead"),
        *record(scheduled, noise(8, 8), torch.tensor(0.5)),
        *record(attention, noise(1, 2, 64, 64)),
        *record(torch.nn.Linear(8, 8).to("cuda", torch.bfloat16), noise(4, 8), train=True),
    ]
    minor = ".".join(torch.__version__.split(".")[:2])
    path = out / f"torch-{minor}-cuda.bin"
    path.write_bytes(megacache.encode(artifacts))
    print(f"{path}: {len(artifacts)} artifacts, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
