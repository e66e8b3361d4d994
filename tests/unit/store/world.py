"""A small world to publish in: keys, a clock, and contributions of artifacts that look like torch's."""

from __future__ import annotations

import hashlib
import pickle
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachekit.bundle import Artifact, Bundle, Coverage, Requires, Shape, ShapeRow, Unit, canonical
from cachekit.bundle.signing import PublicKey, SigningKey, generate
from cachekit.identity.fingerprint import Fingerprint
from cachekit.store.base import Store
from cachekit.store.publish import Contribution, Published, fetch, publish

ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
FINGERPRINT = Fingerprint.of({"toolchain": {"torch": "2.13.0"}, "pipeline": {"family": "toy"}, "plan": {}})


def key_of(kind: str, name: str) -> str:
    """A key of the kind's pattern, the same for the same name."""
    digest = hashlib.sha256(f"{kind} {name}".encode())
    text = "".join(ALPHABET[byte % 32] for byte in digest.digest() + digest.digest())
    return {
        "inductor": f"f{text[:51]}",
        "aot_autograd": f"a{text[:51]}",
        "autotune": f"{text[:2]}/{digest.hexdigest()}.best_config",
        "program": digest.hexdigest(),
        "kernel": f"{text[:2]}/c{text[:51]}.main.so",
    }[kind]


def noise(name: str, size: int) -> bytes:
    """Bytes that do not compress, the same for the same name."""
    return random.Random(name).randbytes(size)


def inductor(name: str, *, by: str = "", size: int = 10_000, requires: Requires = ()) -> Artifact:
    """An inductor artifact of ``size`` bytes, at least 8; another ``by`` is another compile of the same identity."""
    inside = noise(f"{name} {by}", max(size, 8) - 8)
    pickled = b"\x80\x04B" + struct.pack("<I", len(inside)) + inside + b"."
    return Artifact("inductor", key_of("inductor", name), pickled, requires=requires)


def aot(name: str, *, by: str = "") -> Artifact:
    """An aot_autograd artifact that looks up the inductor artifact of the same name."""
    data = {"fx_graph_cache_info": key_of("inductor", name), "fx_graph_guard_expr": "", "by": by}
    return Artifact("aot_autograd", key_of("aot_autograd", name), pickle.dumps(data))


def autotune(name: str, *, by: str = "") -> Artifact:
    """An autotune artifact."""
    return Artifact("autotune", key_of("autotune", name), b'{"by": "%s"}' % by.encode())


def covering(shape: str, *needs: Artifact, seconds: float = 1.0) -> Coverage:
    """One shape that one static unit covers."""
    ids = tuple(sorted(artifact.identity.id for artifact in needs))
    unit = Unit(
        dynamic=False, signature=canonical.dumps({"shape": shape}).decode(), needs=ids, seconds=seconds
    )
    return Coverage((unit,), (ShapeRow(Shape.parse(shape), (unit.id,)),))


@dataclass
class World:
    """A store with one signing key, whose clock moves a second with each use."""

    store: Store
    key: SigningKey = field(default_factory=generate)
    clock: float = 1_700_000_000.0

    @property
    def trusted(self) -> dict[str, PublicKey]:
        """Only the key itself."""
        return {self.key.keyid: self.key.public}

    def now(self) -> float:
        """Seconds, later than before."""
        self.clock += 1
        return self.clock

    def save(
        self,
        *artifacts: Artifact,
        coverage: Coverage | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> Published:
        """Publish artifacts and coverage under `FINGERPRINT`."""
        contribution = Contribution(
            FINGERPRINT,
            artifacts,
            coverage or Coverage(),
            producer or {"torch": "2.13.0"},
            created=int(self.clock),
        )
        return publish(self.store, contribution, self.key, self.trusted, now=self.now)

    def fetch(self) -> Bundle | None:
        """What a reader gets."""
        return fetch(self.store, FINGERPRINT.id, self.trusted)
