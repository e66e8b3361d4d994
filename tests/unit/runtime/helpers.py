"""Builders of values and the committed artifacts that torch wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard

from cachekit.bundle import Artifact, Bundle, Coverage, Entry, Shape, ShapeRow, Unit, megacache
from cachekit.identity import Fingerprint
from cachekit.runtime.recorder import Window
from cachekit.store.fetch import pack

FIXTURES = Path(__file__).parents[2] / "fixtures" / "megacache"
FINGERPRINT = Fingerprint.of(
    {
        "toolchain": {"torch": "2.13.0", "cpu": {"vector_isa": "avx512"}},
        "pipeline": {"family": "toy"},
        "plan": {},
    }
)
HOST = {"arch": "x86_64", "vector_isa": "avx512"}
KERNEL = f"aa/c{'a' * 51}.main.so"
OTHER_KERNEL = f"bb/c{'b' * 51}.main.so"
PROBE = "0" * 64 + ".isa"
ELF = b"\x7fELF and so on"


def fixture_artifacts(name: str, *, minor: str = "2.13") -> tuple[Artifact, ...]:
    """Decode one of the bundles in tests/fixtures/megacache."""
    packed = (FIXTURES / f"torch-{minor}-{name}.bin.zst").read_bytes()
    data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=1 << 28)
    return tuple(megacache.decode(data))


def kernel(path: str = KERNEL, data: bytes = ELF, **needed: str) -> Artifact:
    """Make a kernel artifact that requires what is given."""
    return Artifact("kernel", path, data, requires=tuple(sorted(needed.items())))


def window(artifacts: Iterable[Artifact] = (), **kernels: bool) -> Window:
    """Record artifacts in torch's words; ``compiled`` or ``found`` set to True add the kernel so."""
    found = Window([(a.kind, a.key, a.data) for a in artifacts])
    if kernels:
        found.kernels[KERNEL] = kernels.get("compiled", False)
    return found


def unit(name: str, *, needs: Iterable[str] = (), seconds: float = 1.0, dynamic: bool = False) -> Unit:
    """Make a unit told apart by its name."""
    return Unit(dynamic, f'{{"module":"{name}"}}', needs=tuple(sorted(needs)), seconds=seconds)


def bundle(
    *artifacts: Artifact,
    units: Iterable[Unit] = (),
    shapes: Iterable[tuple[Shape, Unit]] = (),
    generation: int = 1,
) -> Bundle:
    """Make a bundle of these artifacts, inline, as if somebody had published it."""
    return Bundle(
        "local",
        FINGERPRINT.components,
        FINGERPRINT.id,
        entries=tuple(_entry(artifact) for artifact in artifacts),
        coverage=Coverage(tuple(units), tuple(ShapeRow(shape, (u.id,)) for shape, u in shapes)),
        generation=generation,
    )


def _entry(artifact: Artifact) -> Entry:
    facts: dict[str, Any] = {"accepted": 1000, "contribution": "a" * 64, "producer": "b" * 64}
    return Entry.of(artifact, pack(artifact.data), inline=True, **facts)
