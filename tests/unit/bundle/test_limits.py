from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable

import pytest

from cachekit.bundle import (
    DEFAULT,
    Artifact,
    Bundle,
    Coverage,
    Entry,
    Limits,
    Shape,
    ShapeRow,
    Tombstone,
    Unit,
    canonical,
    from_payload,
    guards,
    guards_of,
    limits,
    megacache,
    references_of,
    scan,
    signing,
    to_payload,
)
from cachekit.errors import ConfigurationError, LimitError
from tests.unit.bundle.strategies import FINGERPRINT, FINGERPRINT_ID, torch_data, torch_key

GUARDS = "2 <= L['t0'] and L['t0'] <= 4096"
INDUCTOR = Artifact("inductor", torch_key("inductor", 0), torch_data("inductor", GUARDS, b""), guards=GUARDS)
AUTOTUNE = Artifact("autotune", torch_key("autotune", 0), b'{"XBLOCK": 1}')
ACCEPTED = 1_700_000_000_000
UNITS = (
    Unit(False, '{"args":["a static call with a long signature"]}', needs=(INDUCTOR.identity.id,)),
    Unit(True, '{"args":[]}', guards="s0 > 1", ranges=(("s0", 2, None), ("s1", 2, 64))),
)
SHAPE = Shape.of(1024, 768, 2, frames=17)
KEY = signing.generate()


def _entry(artifact: Artifact, accepted: int) -> Entry:
    return Entry.of(
        artifact, artifact.data, accepted=accepted, contribution="c" * 64, producer="d" * 64, inline=True
    )


BUNDLE = Bundle(
    namespace="local",
    fingerprint=FINGERPRINT,
    fingerprint_id=FINGERPRINT_ID,
    entries=(_entry(INDUCTOR, ACCEPTED - 1), _entry(AUTOTUNE, ACCEPTED)),
    coverage=Coverage(UNITS, (ShapeRow(SHAPE, (UNITS[0].id,)),)),
    tombstones=(Tombstone("e" * 64, "wrong"),),
)
PAYLOAD = to_payload(BUNDLE)
WIRE = megacache.encode([INDUCTOR, AUTOTUNE])
RAW = (len(INDUCTOR.data), len(AUTOTUNE.data))

Use = Callable[[Limits], object]


def _document(limits: Limits) -> object:
    return from_payload(PAYLOAD, limits)


def _wire(limits: Limits) -> object:
    return megacache.decode(WIRE, limits)


def _envelope(count: int) -> bytes:
    envelope = json.loads(signing.sign(b"{}", KEY))
    envelope["signatures"] *= count
    return json.dumps(envelope).encode()


def _verify(count: int) -> Use:
    return lambda limits: signing.verify(_envelope(count), {KEY.keyid: KEY.public}, limits=limits)


def _scan(data: bytes) -> Use:
    return lambda limits: scan.check("inductor", data, limits=limits)


def _partners(count: int) -> Use:
    pairs = [(torch_key("inductor", number), "x") for number in range(count)]
    data = torch_data("aot_autograd", "", b"", pairs)
    return lambda limits: references_of(data, limits)


# By limit: what is read, and how much of it that takes. One less refuses it.
CASES: list[tuple[str, Use, int]] = [
    ("max_bytes", _wire, len(WIRE)),
    ("max_bytes", _document, sum(RAW)),
    ("max_artifact_bytes", _wire, max(RAW)),
    ("max_artifact_bytes", _document, max(RAW)),
    ("max_artifacts", _wire, 4),  # blocks count as well
    ("max_artifacts", _document, 2),
    ("max_key_bytes", _wire, len(AUTOTUNE.key)),
    ("max_key_bytes", _document, len(AUTOTUNE.key)),
    ("max_guards_bytes", _wire, len(GUARDS)),
    ("max_guards_bytes", _document, len(GUARDS)),
    ("max_guards_bytes", lambda limits: guards_of("inductor", INDUCTOR.data, limits), len(GUARDS)),
    ("max_document_bytes", _document, len(PAYLOAD)),
    ("max_inline_total_bytes", _document, sum(RAW)),
    ("max_units", _document, 2),
    ("max_shapes", _document, 1),
    ("max_needs", _document, 1),
    ("max_tombstones", _document, 1),
    ("max_text_bytes", _document, len(UNITS[0].signature)),
    ("max_name_chars", _document, 64),
    ("max_note_chars", _document, len(SHAPE.label)),
    ("max_pairs", _document, 2),
    ("max_pairs", _partners(3), 3),
    ("max_integer", _document, ACCEPTED),
    ("max_depth", lambda limits: canonical.loads(b'[{"a":[1]}]', limits), 3),
    ("max_depth", _document, 6),  # a document, its coverage, the units, one, its ranges, one
    ("max_signatures", _verify(3), 3),
    ("max_signature_bytes", _verify(1), 64),
    ("max_opcodes", _scan(b"N" + b"0N" * 10 + b"."), 22),
    ("max_opcodes", lambda limits: guards_of("inductor", _by_memo(), limits), 9),
    ("max_tuples", _scan(b")" + b"\x94h\x00\x86" + b"."), 3),
    ("max_tuple_depth", _scan(b")" + b"\x85" * 4 + b"."), 5),
]


def _by_memo() -> bytes:
    """Guards that only a walk over all opcodes finds: their text is a memo reference."""
    return b"\x8c\x01x\x94" + b"\x8c\x0bguards_expr\x94" + b"h\x00" + b"\x87" + b"0N."


@pytest.mark.parametrize(
    ("name", "use", "enough"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)]
)
def test_limit_is_exact(name: str, use: Use, enough: int) -> None:
    """What just fits is read, and one less of the limit refuses it by that name."""
    use(dataclasses.replace(DEFAULT, **{name: enough}))
    with pytest.raises(LimitError):
        use(dataclasses.replace(DEFAULT, **{name: enough - 1}))


def test_tokens_of_a_guard_are_limited() -> None:
    """An expression with more tokens is not proven, whatever it says; it is never parsed."""
    fitting = (DEFAULT.max_guard_tokens - 2) // 2
    assert guards.holds(f"And({','.join(['True'] * fitting)})", {})
    assert not guards.holds(f"And({','.join(['True'] * (fitting + 1))})", {})


def test_what_is_written_nests_no_deeper_than_what_is_read() -> None:
    """Whatever can be written can be read again."""
    deep: list[object] = [1]
    for _ in range(DEFAULT.max_depth - 1):
        deep = [deep]
    assert canonical.loads(canonical.dumps(deep)) == deep
    with pytest.raises(ConfigurationError):
        canonical.dumps([deep])
    with pytest.raises(LimitError):
        canonical.loads(b"[" + canonical.dumps(deep) + b"]")


def test_every_limit_is_tested() -> None:
    """A limit that nothing enforces is a promise that nobody keeps."""
    tested = {case[0] for case in CASES} | {"max_guard_tokens"}
    assert {field.name for field in dataclasses.fields(Limits)} == tested


def test_every_limit_has_a_reason() -> None:
    """Beside it, or in the line above."""
    lines = inspect.getsource(limits.Limits).splitlines()
    for number, line in enumerate(lines):
        if re.match(r"    max_\w+: int", line):
            assert "#" in line or lines[number - 1].lstrip().startswith("#"), line
