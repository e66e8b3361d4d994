"""Small whole specimens of everything that is decoded, the same bytes in every process: what fuzzing starts from."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cachekit.bundle import (
    Artifact,
    Bundle,
    Coverage,
    Entry,
    Shape,
    ShapeRow,
    Tombstone,
    Unit,
    canonical,
    megacache,
    signing,
    to_payload,
)
from cachekit.store.base import Head, digest_of
from cachekit.store.packing import pack

COMPONENTS = {
    "schema": 1,
    "toolchain": {"torch": "2.13.0", "tf32": True, "eps": 1e-05},
    "plan": {"mode": None},
}
FINGERPRINT_ID = canonical.digest(COMPONENTS)
NAMESPACE = "local"
_TOOLCHAIN = ("torch", "python", "platform", "packages", "gpus", "cpu", "flags", "config", "diffusers")
GUARDS = "9 <= L['t0'] and 2 <= L['t1']"
_RECORDED = Path(__file__).parents[1] / "fixtures" / "megacache" / "torch-2.13-single.bin.zst"

_PEM = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
)
KEY = signing.SigningKey(_PEM)
TRUSTED = {KEY.keyid: KEY.public}


def key_of(kind: str, number: int = 0) -> str:
    """A well-formed key of the kind, another for every number."""
    digest = hashlib.sha256(f"{kind} {number}".encode()).digest()
    text = base64.b32encode(digest).decode().lower()[:51]
    return {
        "inductor": f"f{text}",
        "aot_autograd": f"a{text}",
        "autotune": f"{text[:2]}/{digest.hex()}.best_config",
        "program": digest.hex(),
        "kernel": f"{text[:2]}/c{text}.main.so",
    }[kind]


def pickled(kind: str, *, guards: str = "", protocol: int = 4) -> bytes:
    """A pickle that says about itself what torch's do."""
    partner = {"fx_graph_cache_info": (key_of("inductor"), []), "fx_graph_guard_expr": guards or None}
    value = {
        "graphs": [partner] * (kind == "aot_autograd"),
        "source_code": "def call(args): ...",
        "n": (1, 2.5),
    }
    return pickle.dumps({**value, "guards_expr": guards or None}, protocol=protocol)


def artifacts() -> list[Artifact]:
    """One artifact of each kind that torch's format carries, and a second one under guards."""
    return [
        Artifact("inductor", key_of("inductor"), pickled("inductor")),
        Artifact("inductor", key_of("inductor"), pickled("inductor", guards=GUARDS), guards=GUARDS),
        Artifact("aot_autograd", key_of("aot_autograd"), pickled("aot_autograd")),
        Artifact("autotune", key_of("autotune"), b'{"XBLOCK": 256, "num_warps": 4, "time_taken_ms": 1.5}'),
    ]


def units() -> tuple[Unit, ...]:
    """A static unit and a dynamic one with sizes, strides, ranges and guards."""
    static = Unit(False, signature(2, 64), needs=(artifacts()[0].identity.id,), seconds=12.5)
    tensor = {"t": ["s0", "16*s1", 4], "stride": ["64*s1", 4, 1], "dtype": "torch.float16"}
    pattern = canonical.dumps({"args": [tensor, {"v": True}], "kwargs": {"scale": {"v": 0.5}}}).decode()
    return static, Unit(
        True,
        pattern,
        guards="Eq(Mod(s0, 2), 0) and 2 <= s1 <= 4096 and not (s0*s1 > 2147483647)",
        ranges=(("s0", 2, None), ("s1", 2, 4096)),
        needs=(artifacts()[1].identity.id,),
    )


def signature(batch: int, size: int) -> str:
    """A call that the dynamic unit accepts for even batches."""
    tensor = {"t": [batch, 16 * size, 4], "stride": [64 * size, 4, 1], "dtype": "torch.float16"}
    return canonical.dumps({"args": [tensor, {"v": True}], "kwargs": {"scale": {"v": 0.5}}}).decode()


def entries() -> tuple[Entry, ...]:
    """The artifacts as entries, the first one in a blob and the others inside the document."""
    return tuple(
        Entry.of(
            artifact,
            pack(artifact.data),
            accepted=1_700_000_000_000 + number,
            contribution="c" * 64,
            producer=KEY.keyid,
            inline=number > 0,
        )
        for number, artifact in enumerate(artifacts())
    )


def bundle(generation: int = 1) -> Bundle:
    """A bundle with something of everything."""
    covered = units()
    return Bundle(
        namespace=NAMESPACE,
        fingerprint=COMPONENTS,
        fingerprint_id=FINGERPRINT_ID,
        entries=entries(),
        coverage=Coverage(covered, (ShapeRow(Shape.of(1024, 768, 2, frames=17, cfg=1.5), (covered[0].id,)),)),
        tombstones=(Tombstone("e" * 64, "wrong picture"),),
        producers={"torch": "2.13.0"},
        generation=generation,
        cold={"first_call_s": 80.5},
    )


@functools.cache
def payload() -> bytes:
    """The document of `bundle`."""
    return to_payload(bundle())


@functools.cache
def wire() -> bytes:
    """A bundle in torch's format; the second half is a block of every type once more."""
    once = megacache.encode(artifacts())
    return sealed(once[4:] + once[12:])


@functools.cache
def recorded() -> Mapping[str, bytes]:
    """One real inductor and one real aot_autograd artifact of torch 2.13, by kind."""
    data = zstandard.ZstdDecompressor().decompress(_RECORDED.read_bytes(), max_output_size=1 << 24)
    return {artifact.kind: artifact.data for artifact in megacache.decode(data)}


def sealed(body: bytes) -> bytes:
    """Put the right checksum before everything else of a bundle in torch's format."""
    import zlib

    return zlib.crc32(body).to_bytes(4, "big") + body


def accepts_case(unit: Unit, call: str) -> bytes:
    """One question of coverage, as the target ``coverage`` reads it."""
    ranges = [list(one) for one in unit.ranges]
    fields = {"dynamic": unit.dynamic, "signature": unit.signature, "guards": unit.guards, "ranges": ranges}
    return json.dumps({"unit": {**fields, "needs": list(unit.needs)}, "call": call}).encode()


@functools.cache
def seeds() -> Mapping[str, tuple[bytes, ...]]:
    """Where each target of ``targets.py`` starts."""
    head = Head(3, digest_of(payload())).to_bytes()
    label = units()[1]
    return {
        "canonical": (canonical.dumps(COMPONENTS), head, payload()),
        "coverage": (accepts_case(label, signature(2, 64)), accepts_case(units()[0], signature(2, 64))),
        "document": (payload(),),
        "envelope": (signing.sign(b'{"min_reader":1}', KEY),),
        "fingerprint": (
            canonical.dumps(COMPONENTS),
            canonical.dumps({"schema": 1} | dict.fromkeys(_TOOLCHAIN, ())),
        ),
        "frame": (pack(b"abc" * 99), pack(b""), pack(bytes(range(256)))),
        "guards": (label.guards.encode(), b"Max(s0, 3)*-s1//2 % 7 != 0", b"CleanDiv(s0, 2) == 3 or False"),
        "head": (head,),
        "pickle": (
            *(pickled(kind, protocol=n) for kind in ("inductor", "aot_autograd") for n in (2, 4)),
            *recorded().values(),
        ),
        "shape": (b'1024x768x2,cfg=1.5,frames=17,name="a\\u00e9"', b"1x1x1", b"8x8x1,a=true,b=null,c="),
        "store": (payload(),),
        "wire": (wire()[4:], megacache.encode([])[4:]),
    }
