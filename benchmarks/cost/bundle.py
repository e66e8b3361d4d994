"""A bundle of a given size that torch takes for its own: artifacts of a real compile, multiplied.

Two tiny modules are compiled, and what torch recorded is copied under other keys, each AOTAutograd artifact with the
key of its Inductor partner changed alike. A few large ones carry a Triton bundle, as those of a GPU do, filled with
text like PTX and some random bytes like cubins. So sizes, number of pickled objects and compressibility are those of
real bundles, and torch decodes, unpickles and writes every one; none of them is ever looked up.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
import random
from collections.abc import Iterator
from typing import Any

from cachekit.bundle import Artifact, megacache

DESCRIPTION = (
    "artifacts of a real compile copied under other keys (many of about 80 kB), and a few of 5 MB that carry a "
    "synthetic Triton bundle; torch decodes all of them"
)
LARGE_BYTES = 5_000_000
"""Raw size of a large artifact: a U-Net's is 3 to 28 MB."""

_LARGE_SHARE = 0.5
_RANDOM_SHARE = 0.06
"""Of a large artifact: bytes that do not compress. With it zstd makes a tenth of it, as of a real one."""

Raw = tuple[str, str, bytes]
"""(kind, key, bytes) as torch's artifact manager records them."""


def record(device: str) -> list[Artifact]:
    """Compile two tiny modules on ``device`` and return what torch recorded, by pairs; takes seconds."""
    import torch

    from benchmarks.cost.modules import Pointwise

    for width in (8, 16):
        module = Pointwise(width).to(device)
        module.compile(dynamic=False)
        with torch.no_grad():
            module(torch.ones(4, width, device=device))
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        raise RuntimeError("torch recorded nothing")
    return megacache.decode(saved[0])


def multiplied(recorded: list[Artifact], size: int, *, salt: str = "") -> list[Raw]:
    """Copies of ``recorded`` until they have ``size`` bytes; another ``salt`` gives other keys and bytes."""
    pairs = _pairs(recorded)
    found: list[Raw] = []
    made = 0
    for index, (inductor, autograd) in enumerate(_endless(pairs)):
        large = made < size * _LARGE_SHARE
        key = _key("f", f"{salt}{index}")
        data = _padded(inductor.data, salt=f"{salt}{index}") if large else inductor.data
        found.append(("inductor", key, _renamed(data, inductor.key, key)))
        found.append(
            ("aot_autograd", _key("a", f"{salt}{index}"), _renamed(autograd.data, inductor.key, key))
        )
        made += sum(len(data) for _, _, data in found[-2:])
        if made >= size:
            return found
    raise AssertionError("an endless iterator ended")


def _pairs(recorded: list[Artifact]) -> list[tuple[Artifact, Artifact]]:
    autograd = [artifact for artifact in recorded if artifact.kind == "aot_autograd"]
    return [
        (inductor, next(one for one in autograd if inductor.key.encode() in one.data))
        for inductor in recorded
        if inductor.kind == "inductor"
    ]


def _endless(pairs: list[tuple[Artifact, Artifact]]) -> Iterator[tuple[Artifact, Artifact]]:
    while True:
        yield from pairs


def _key(first: str, text: str) -> str:
    """As torch makes them: a letter and 51 digits of base 32."""
    digest = hashlib.sha256(text.encode()).digest()
    return first + base64.b32encode(digest).decode("ascii").lower()[:51]


def _renamed(data: bytes, old: str, new: str) -> bytes:
    return data.replace(old.encode(), new.encode())  # equally long, so the pickle stays whole


def _padded(data: bytes, *, salt: str) -> bytes:
    """The artifact with a Triton bundle of ``LARGE_BYTES`` in it, in files of 20 to 200 kB."""
    from torch._inductor.triton_bundler import TritonBundle, TritonKernelArtifact, TritonKernelArtifacts

    numbers = random.Random(salt)
    graph: Any = pickle.loads(data)
    kernels = []
    left = LARGE_BYTES
    while left > 0:
        size = min(left, numbers.randrange(20_000, 200_000))
        left -= size
        name = f"triton_kernel_{len(kernels)}"
        files = [TritonKernelArtifact(f"{name}.ptx", _payload(numbers, size))]
        kernels.append(TritonKernelArtifacts(hashlib.sha256(name.encode()).hexdigest(), 0, files))
    graph._triton_bundle = TritonBundle(kernels, [])  # noqa: SLF001
    return pickle.dumps(graph)


def _payload(numbers: random.Random, size: int) -> bytes:
    noise = numbers.randbytes(int(size * _RANDOM_SHARE))
    lines = [f"\tfma.rn.f32 \t%f{numbers.randrange(64)}, %f{numbers.randrange(64)};\n" for _ in range(200)]
    text = "".join(numbers.choices(lines, k=(size - len(noise)) // len(lines[0]) + 1)).encode()
    return noise + text[: size - len(noise)]
