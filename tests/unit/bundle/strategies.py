"""Hypothesis strategies and builders for artifacts, entries, coverage and bundles that look like real ones."""

from __future__ import annotations

import base64
import hashlib
import pickle
from collections.abc import Sequence

from hypothesis import strategies as st

from cachekit.bundle import (
    Artifact,
    Bundle,
    Coverage,
    Entry,
    Requires,
    Scalar,
    Shape,
    ShapeRow,
    Tombstone,
    Unit,
    canonical,
)

FINGERPRINT = {"schema": 1, "toolchain": {"torch": "2.13.0"}, "plan": {"mode": None}}
FINGERPRINT_ID = canonical.digest(FINGERPRINT)
GUARDS = ("", "2 <= L['t0']", "9 <= L['t0'] and 2 <= L['t1']")
REQUIRES: tuple[Requires, ...] = ((), (("arch", "x86_64"), ("vector_isa", "avx512")))


def torch_key(kind: str, number: int) -> str:
    """Return a well-formed key of `kind`, a different one for every number."""
    digest = hashlib.sha256(f"{kind} {number}".encode()).digest()
    text = base64.b32encode(digest).decode().lower()[:51]
    return {
        "inductor": f"f{text}",
        "aot_autograd": f"a{text}",
        "autotune": f"{text[:2]}/{digest.hex()}.best_config",
        "program": digest.hex(),
        "kernel": f"{text[:2]}/c{text}.main.so",
    }[kind]


def torch_data(kind: str, guards: str, content: bytes, partners: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return bytes that say about themselves what torch's say: guards and, in aot_autograd, inductor partners."""
    if kind not in ("inductor", "aot_autograd"):
        return b'{"content": "%s"}' % content.hex().encode()
    graphs = [
        {"fx_graph_cache_info": (key, []), "fx_graph_guard_expr": text or None} for key, text in partners
    ]
    return pickle.dumps({"graphs": graphs, "guards_expr": guards or None, "content": content}, protocol=4)


@st.composite
def torch_artifacts(draw: st.DrawFn) -> Artifact:
    """Draw an artifact that torch's wire format can carry."""
    kind = draw(st.sampled_from(("inductor", "aot_autograd", "autotune")))
    guards = draw(st.sampled_from(GUARDS)) if kind != "autotune" else ""
    data = torch_data(kind, guards, draw(st.binary(max_size=40)))
    return Artifact(kind, torch_key(kind, draw(st.integers(0, 6))), data, guards=guards)


def distinct(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Keep one artifact per identity."""
    return list({artifact.identity: artifact for artifact in artifacts}.values())


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Draw an entry out of few identities, contributions, times and digests, so that conflicts are common."""
    kind = draw(st.sampled_from(("inductor", "inductor", "aot_autograd", "autotune", "autotune", "kernel")))
    guards = draw(st.sampled_from(GUARDS[:2])) if kind in ("inductor", "aot_autograd") else ""
    partner = torch_key("inductor", draw(st.integers(0, 1)))
    content = bytes([draw(st.integers(0, 5))])
    artifact = Artifact(
        kind,
        torch_key(kind, draw(st.integers(0, 1))),
        torch_data(kind, guards, content, [(partner, guards)] if kind == "aot_autograd" else ()),
        guards=guards,
        requires=draw(st.sampled_from(REQUIRES)) if kind == "kernel" else (),
    )
    return Entry.of(
        artifact,
        b"zstd" + artifact.data,
        accepted=draw(st.integers(1000, 1002)),
        contribution=draw(st.sampled_from(("a" * 64, "b" * 64, "c" * 64))),
        producer=draw(st.sampled_from(("d" * 64, "e" * 64))),
        epoch=draw(st.integers(0, 1)),
        inline=draw(st.booleans()),
    )


scalars: st.SearchStrategy[Scalar] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8).filter(lambda text: "," not in text),
)
shapes = st.builds(
    lambda width, height, batch, variant: Shape.of(width, height, batch, **variant),
    st.integers(1, 3).map(lambda n: 512 * n),
    st.integers(1, 3).map(lambda n: 512 * n),
    st.integers(1, 2),
    st.dictionaries(st.sampled_from(("frames", "cfg", "prompt")), scalars, max_size=2),
)
_needs = st.frozensets(st.builds(lambda n: f"inductor:{n:064x}", st.integers(0, 3)), max_size=3).map(
    lambda ids: tuple(sorted(ids))
)
units = st.builds(
    Unit,
    dynamic=st.booleans(),
    signature=st.sampled_from(('{"args":[],"kwargs":{}}', '{"args":[{"v":1}],"kwargs":{}}')),
    guards=st.sampled_from(("", "s0 > 1")),
    ranges=st.sampled_from(((), (("s0", 2, None),), (("s0", 2, 64),))),
    needs=_needs,
    seconds=st.sampled_from((0.0, 0.5, 2.0, 86.5)),
)


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    """Draw units, and shapes that mostly name them."""
    drawn = draw(st.lists(units, max_size=4))
    ids = [unit.id for unit in drawn] + ["f" * 64]
    rows = draw(
        st.lists(
            st.builds(ShapeRow, shapes, st.lists(st.sampled_from(ids), max_size=2).map(tuple)), max_size=3
        )
    )
    return Coverage(tuple(drawn), tuple(rows))


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    """Draw a bundle of one fixed namespace and fingerprint, with conflicts, tombstones and replacements."""
    drawn = draw(st.lists(entries(), max_size=7))
    digests = sorted({entry.raw_digest for entry in drawn} | {"0" * 64})
    tombstones = st.builds(
        Tombstone, st.sampled_from(digests), st.sampled_from(("wrong picture", "key leaked"))
    )
    facts = st.dictionaries(st.sampled_from(("torch", "triton")), st.sampled_from(("2.13", 3, None)))
    return Bundle(
        namespace="local",
        fingerprint=FINGERPRINT,
        fingerprint_id=FINGERPRINT_ID,
        entries=tuple(drawn),
        coverage=draw(coverages()),
        tombstones=tuple(draw(st.lists(tombstones, max_size=2))),
        producers=draw(facts),
        generation=draw(st.integers(0, 3)),
        parent=draw(st.sampled_from((None, "1" * 64))),
        cold=draw(st.dictionaries(st.sampled_from(("first_call_s",)), st.sampled_from((0.0, 3.5, 80.0)))),
    )
