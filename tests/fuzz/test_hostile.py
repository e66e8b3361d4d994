"""Inputs that somebody made on purpose, each by its name: refused with the right error, at once, in little memory.

All of them carry the right checksum, digest or signature: they come from somebody who holds the key, or who is read
before any key is asked for.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import zstandard

from cachekit.bundle import (
    Limits,
    Shape,
    from_payload,
    guards,
    guards_of,
    megacache,
    references_of,
    scan,
    signing,
)
from cachekit.bundle.artifact import KEY_PATTERNS, check_key
from cachekit.errors import (
    CachekitError,
    ConfigurationError,
    CorruptError,
    LimitError,
    NewerSchemaError,
    TrustError,
)
from cachekit.identity.fingerprint import Fingerprint
from cachekit.store.base import Head
from cachekit.store.inspection import check_statement
from cachekit.store.memory import MemoryStore
from cachekit.store.packing import pack, unpack
from tests.fuzz import samples

MEMORY = 24_000_000
"""Beside the input: what Python's own parser of JSON or of expressions may take for a few hundred kilobytes."""
SECONDS = 3.0
Case = tuple[Callable[[bytes], object], bytes, type[CachekitError]]


def u64(number: int) -> bytes:
    """A length field of torch's format."""
    return number.to_bytes(8, "big")


def text(value: str | bytes) -> bytes:
    """Text as torch writes it."""
    import base64

    raw = base64.b64encode(value.encode() if isinstance(value, str) else value)
    return u64(len(raw)) + raw


def wire(*pieces: bytes, version: int = 1) -> bytes:
    """A bundle of these pieces with the right checksum."""
    return samples.sealed(u64(version) + b"".join(pieces))


def changed(*changes: tuple[str, Any]) -> bytes:
    """The document with other values under dotted names, a list's items by number."""
    document = json.loads(samples.payload())
    for path, value in changes:
        *way, last = path.split(".")
        holder = document
        for step in way:
            holder = holder[int(step)] if isinstance(holder, list) else holder[step]
        holder[int(last) if isinstance(holder, list) else last] = value
    return json.dumps(document).encode()


def read_signed(payload: bytes) -> object:
    """Read a document that the trusted key signed."""
    return from_payload(signing.verify(signing.sign(payload, samples.KEY), samples.TRUSTED).payload)


def enveloped(**fields: Any) -> bytes:
    """A good envelope with other fields."""
    return json.dumps({**json.loads(signing.sign(b"{}", samples.KEY)), **fields}).encode()


def verify(envelope: bytes) -> object:
    """Verify with the trusted key."""
    return signing.verify(envelope, samples.TRUSTED)


def inductor(data: bytes) -> object:
    """Scan an artifact."""
    return scan.check("inductor", data, limits=FEW)


def few(data: bytes) -> object:
    """Decode no more than a few artifacts."""
    return megacache.decode(data, FEW)


def frame(*blocks: tuple[int, bytes], claimed: int) -> bytes:
    """A zstd frame in one segment that claims a size, of blocks that repeat a byte (size, byte)."""
    body = [b"\x28\xb5\x2f\xfd", b"\xe0", claimed.to_bytes(8, "little")]
    for number, (size, byte) in enumerate(blocks):
        header = size << 3 | 1 << 1 | (number == len(blocks) - 1)
        body += [header.to_bytes(3, "little"), byte]
    return b"".join(body)


GOOD = samples.artifacts()[0]
ONE = text(GOOD.key) + u64(len(GOOD.data)) + GOOD.data
# The real limits are twenty times higher; a bomb of that size takes a second.
FEW = Limits(max_opcodes=50_000, max_artifacts=10_000)
MANY = 60_000
# Forty thousand opcodes that a tensor's storage may hold.
STORAGE = (
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02" + b"N0" * 40_000 + b"N." + b"\x80\x02N." * 3
)
LOAD = b"\x8c\rtorch.storage\x8c\x10_load_from_bytes\x93"
AGAIN = b"\x94h\x00h\x01\x85R0"  # stored, called once more with the same bytes

WIRE: dict[str, Case] = {
    "a length beyond the end": (
        megacache.decode,
        wire(text("inductor"), u64(1), text(GOOD.key), u64(10**6)),
        CorruptError,
    ),
    "a length of 2**64 - 1": (megacache.decode, wire(text("inductor"), u64(1), u64(2**64 - 1)), CorruptError),
    "a length that wraps": (
        megacache.decode,
        wire(text("inductor"), u64(1), text(GOOD.key), u64(2**64 - 8)),
        CorruptError,
    ),
    "an absurd count": (megacache.decode, wire(text("inductor"), u64(2**63), ONE), CorruptError),
    "an absurd count of nothing": (megacache.decode, wire(text("pgo"), u64(2**40)), CorruptError),
    "many empty artifacts": (
        few,
        wire(text("pgo"), u64(11_000), bytes(16 * 11_000)),
        LimitError,
    ),
    "many empty blocks": (few, wire((text("inductor") + u64(0)) * 10_001), LimitError),
    "version 2": (megacache.decode, wire(text("inductor"), u64(1), ONE, version=2), CorruptError),
    "version 0": (megacache.decode, wire(version=0), CorruptError),
    "an unknown type": (megacache.decode, wire(text("surprise"), u64(0)), CorruptError),
    "our own type": (megacache.decode, wire(text("kernel"), u64(0)), CorruptError),
    "a type with a null": (megacache.decode, wire(text("inductor\0"), u64(0)), CorruptError),
    "a type in other letters": (megacache.decode, wire(text("\uff49nductor"), u64(0)), CorruptError),
    "a key of a megabyte": (
        megacache.decode,
        wire(text("inductor"), u64(1), text("f" * 10**6), u64(0)),
        LimitError,
    ),
    "a key that is no UTF-8": (
        megacache.decode,
        wire(text("inductor"), u64(1), text(b"\xff\xfe"), u64(0)),
        CorruptError,
    ),
    "a key in surrogates": (
        megacache.decode,
        wire(text("inductor"), u64(1), text("\ud800".encode("utf-8", "surrogatepass")), u64(0)),
        CorruptError,
    ),
}

DOCUMENTS: dict[str, Case] = {
    "a newer reader": (read_signed, changed(("min_reader", 99), ("schema", 99)), NewerSchemaError),
    "a schema of 10**400": (read_signed, changed(("schema", 10**400)), LimitError),
    "a reader of 0": (read_signed, changed(("min_reader", 0)), CorruptError),
    "a key twice": (
        read_signed,
        samples.payload().replace(b'"generation":1', b'"generation":1,"generation":2'),
        CorruptError,
    ),
    "NaN": (read_signed, samples.payload().replace(b'"seconds":12.5', b'"seconds":NaN'), CorruptError),
    "infinity": (
        read_signed,
        samples.payload().replace(b'"seconds":12.5', b'"seconds":-Infinity'),
        CorruptError,
    ),
    "a number that is infinite": (read_signed, samples.payload().replace(b"12.5", b"1e999"), CorruptError),
    "seconds of 1e308": (read_signed, changed(("cold.first_call_s", 1e308)), CorruptError),
    "negative seconds": (read_signed, changed(("cold.first_call_s", -1)), CorruptError),
    "a number of 5000 digits": (read_signed, samples.payload().replace(b"12.5", b"1" * 5000), CorruptError),
    "a generation beyond 64 bits": (read_signed, changed(("generation", 2**64)), LimitError),
    "a time beyond 64 bits": (read_signed, changed(("artifacts.0.accepted", 2**63)), LimitError),
    "a size beyond 64 bits": (read_signed, changed(("artifacts.0.raw.bytes", 2**80)), LimitError),
    "a negative size": (read_signed, changed(("artifacts.0.raw.bytes", -1)), CorruptError),
    "a size that is true": (read_signed, changed(("artifacts.0.raw.bytes", True)), CorruptError),
    "a range beyond 64 bits": (
        read_signed,
        changed(("coverage.units.0.ranges", [["s0", 2, 2**70]])),
        LimitError,
    ),
    "more than memory in all": (
        read_signed,
        changed(*((f"artifacts.{n}.raw.bytes", 2 * 2**30) for n in range(4))),
        LimitError,
    ),
    "a kind of tomorrow": (read_signed, changed(("artifacts.0.kind", "tomorrow")), CorruptError),
    "a name of a megabyte": (read_signed, changed(("namespace", "n" * 10**6)), LimitError),
    "half a character": (read_signed, changed(("namespace", "\ud800")), CorruptError),
    "half a character in a reason": (read_signed, changed(("tombstones.0.reason", "\udfff")), CorruptError),
    "half a character in a shape": (
        read_signed,
        changed(("coverage.shapes.0.shape", "8x8x1,a\ud800b=1")),
        CorruptError,
    ),
    "a digest in other digits": (
        read_signed,
        changed(("artifacts.0.raw.sha256", "\u0661" * 64)),
        CorruptError,
    ),
    "a digest with a line end": (
        read_signed,
        changed(("artifacts.0.raw.sha256", "a" * 64 + "\n")),
        CorruptError,
    ),
    "300,000 tombstones": (read_signed, changed(("tombstones", [0] * 300_000)), LimitError),
    "1,000 partners": (read_signed, changed(("artifacts.2.partners", ["f" * 52] * 1000)), LimitError),
    "1,000 requirements": (read_signed, changed(("artifacts.0.requires", [["a", "b"]] * 1000)), LimitError),
    "100,000 levels": (read_signed, b"[" * 100_000 + b"]" * 100_000, LimitError),
    "100,000 levels without end": (read_signed, b'{"a":' * 100_000, LimitError),
    "66 levels of facts": (
        read_signed,
        samples.payload().replace(b'"producers":{', b'"producers":{"a":' + b"[" * 66 + b"]" * 66 + b","),
        LimitError,
    ),
    "inline bytes of something else": (read_signed, changed(("artifacts.1.inline", "AAAA")), CorruptError),
    "inline bytes that are no base64": (read_signed, changed(("artifacts.1.inline", "\u00e9")), CorruptError),
}

ENVELOPES: dict[str, Case] = {
    "no signature": (verify, enveloped(signatures=[]), TrustError),
    "a hundred signatures": (verify, enveloped(signatures=[{"keyid": "", "sig": ""}] * 100), LimitError),
    "a signature of a megabyte": (
        verify,
        enveloped(signatures=[{"keyid": "", "sig": "A" * 10**6}]),
        LimitError,
    ),
    "another type": (verify, enveloped(payloadType="application/x-surprise"), TrustError),
    "a type in surrogates": (verify, enveloped(payloadType="\ud800"), TrustError),
    "a payload in other letters": (verify, enveloped(payload="\uff21\uff21"), CorruptError),
    "a payload with line ends": (verify, enveloped(payload="AA\nAA"), CorruptError),
    "a list": (verify, b"[]", CorruptError),
    "a key twice": (verify, b'{"payload":"","payload":"","payloadType":"","signatures":[]}', CorruptError),
    "deep": (verify, b'{"payload":' + b"[" * 50_000, LimitError),
}

SMALL: dict[str, Case] = {
    "a head of 10**4000": (
        Head.from_bytes,
        b'{"digest":"%s","generation":1%s}' % (b"a" * 64, b"0" * 4000),
        CorruptError,
    ),
    "a head of 2**63": (
        Head.from_bytes,
        b'{"digest":"%s","generation":%d}' % (b"a" * 64, 2**63),
        CorruptError,
    ),
    "a head of 0": (Head.from_bytes, b'{"digest":"%s","generation":0}' % (b"a" * 64), CorruptError),
    "a head of true": (Head.from_bytes, b'{"digest":"%s","generation":true}' % (b"a" * 64), CorruptError),
    "a head twice": (
        Head.from_bytes,
        b'{"digest":"","digest":"%s","generation":1}' % (b"a" * 64),
        CorruptError,
    ),
    "a head in UTF-16": (
        Head.from_bytes,
        Head(1, "a" * 64).to_bytes().decode().encode("utf-16"),
        CorruptError,
    ),
    "a head elsewhere": (
        Head.from_bytes,
        b'{"digest":"../../../%s","generation":1}' % (b"a" * 55),
        CorruptError,
    ),
    "a fingerprint of tomorrow": (Fingerprint.from_json, b'{"schema":2}', NewerSchemaError),
    "a fingerprint of 10**4000": (Fingerprint.from_json, b'{"schema":1%s}' % (b"0" * 4000), NewerSchemaError),
    "a deep fingerprint": (
        Fingerprint.from_json,
        b'{"schema":1,"a":' + b"[" * 70 + b"]" * 70 + b"}",
        LimitError,
    ),
    "a fingerprint that says a thing twice": (
        Fingerprint.from_json,
        b'{"schema":1,"a":1,"a":2}',
        CorruptError,
    ),
}

PICKLES: dict[str, Case] = {
    "marks": (inductor, b"(" * MANY + b".", LimitError),
    "lists in lists": (inductor, b"]" * MANY, LimitError),
    "values stored again and again": (inductor, b"N" + b"\x94" * MANY + b".", LimitError),
    "tuples in tuples": (inductor, b")" + b"\x85" * 1000 + b".", LimitError),
    "a billion laughs": (inductor, b")" + b"\x94h\x00\x86".replace(b"h\x00", b"2") * 40 + b".", CorruptError),
    "a billion laughs by memo": (
        inductor,
        b")" + b"".join(b"\x94h" + bytes([n]) + b"\x86" for n in range(40)) + b".",
        LimitError,
    ),
    "a memo place of 2**32 - 1": (inductor, b"Nr\xff\xff\xff\xff.", CorruptError),
    "a storage that is read ten thousand times": (
        inductor,
        LOAD
        + b"\x94B"
        + len(STORAGE).to_bytes(4, "little")
        + STORAGE
        + b"\x94\x85R0"
        + b"h\x00h\x01\x85R0" * 10_000
        + b"N.",
        LimitError,
    ),
    "bytes of 2**63": (inductor, b"\x8e" + (2**63).to_bytes(8, "little") + b"x.", CorruptError),
    "a bytearray of 2**40": (inductor, b"\x96" + (2**40).to_bytes(8, "little") + b"x.", CorruptError),
    "a number of 2 GB": (inductor, b"\x8b" + (2**31 - 1).to_bytes(4, "little") + b"x.", CorruptError),
    "a call of the system": (inductor, b"cos\nsystem\n\x8c\x04true\x85R.", TrustError),
    "a global in other letters": (inductor, "c\uff4fs\nsystem\n.".encode(), TrustError),
    "a global without end": (inductor, b"c" + b"o" * 10**6, CorruptError),
    "an extension": (inductor, b"\x82\x01.", CorruptError),
    "a search through marks": (
        lambda data: references_of(data, FEW),
        b"\x8c4" + samples.key_of("inductor").encode() + b"(" * MANY,
        LimitError,
    ),
    "a search through values": (
        lambda data: guards_of("inductor", data, FEW),
        b"N" * MANY + b".",
        LimitError,
    ),
    "a search for text in decimal digits": (
        lambda data: guards_of("inductor", data),
        b"I" + b"9" * 10**6 + b"\n.",
        CorruptError,
    ),
    "a deep autotune entry": (lambda data: scan.check("autotune", data), b'{"a":' * 100_000, CorruptError),
    "guards that are no text": (
        lambda data: guards_of("inductor", data),
        b"\x8c\x0bguards_expr\x94\x8c\x02\xff\xfe.",
        CorruptError,
    ),
}

BLOBS: dict[str, Case] = {
    "a claim of 2 GB": (lambda data: unpack(data, 2**31), frame((1000, b"x"), claimed=2**31), CorruptError),
    "a claim of 2**63": (lambda data: unpack(data, 2**63), frame((1000, b"x"), claimed=2**63), CorruptError),
    "more than it claims": (lambda data: unpack(data, 100), frame((1000, b"x"), claimed=100), CorruptError),
    "less than it claims": (lambda data: unpack(data, 2000), frame((1000, b"x"), claimed=2000), CorruptError),
    "more in a second block": (
        lambda data: unpack(data, 1000),
        frame((1000, b"x"), (131_072, b"x"), claimed=1000),
        CorruptError,
    ),
    "two frames": (lambda data: unpack(data, 9), pack(b"nine byte") + pack(b"nine byte"), CorruptError),
    "a frame to skip": (lambda data: unpack(data, 9), b"\x50\x2a\x4d\x18\xff\xff\xff\xff", CorruptError),
    "no claim": (
        lambda data: unpack(data, 9),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"nine byte"),
        CorruptError,
    ),
    "another format": (lambda data: unpack(data, 9), b"\x1f\x8b\x08\x00nine bytes", CorruptError),
    "a dictionary": (
        lambda data: unpack(data, 100),
        b"\x28\xb5\x2f\xfd\x23\xff\xff\xff\xff\x64\x23\x03\x00x",
        CorruptError,
    ),
}

ALL = {
    "wire": WIRE,
    "document": DOCUMENTS,
    "envelope": ENVELOPES,
    "small": SMALL,
    "pickle": PICKLES,
    "blob": BLOBS,
}


@pytest.mark.parametrize(
    ("decode", "data", "error"),
    [
        pytest.param(*case, id=f"{group}: {name}")
        for group, cases in ALL.items()
        for name, case in cases.items()
    ],
)
def test_hostile_input_is_refused(
    decode: Callable[[bytes], object], data: bytes, error: type[CachekitError]
) -> None:
    """The named error and no other, in seconds of CPU and megabytes, with a message that fits into a log."""
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(CachekitError) as caught:
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(caught.value, error), repr(caught.value)[:500]
    assert len(str(caught.value)) < 1000
    assert time.process_time() - started < SECONDS * 5  # tracemalloc makes allocating several times slower
    assert peak < MEMORY + 8 * len(data), f"{peak:,} bytes"


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9 > s0",
        "2**(2**40) > s0",
        "1 << 10**9 > s0",
        "s0 < " + "9" * 5000,
        "*".join(["9" * 4000] * 20) + " > s0",
        " * ".join(["s0"] * 9_000) + " > s0",
        "(" * 5000 + "s0" + ")" * 5000 + " > 1",
        "not " * 9_000 + "True",
        "-" * 9_000 + "s0 > 1",
        "Abs(" * 2000 + "s0" + ")" * 2000 + " > 1",
        " + ".join(["s0"] * 9_000) + " > 1",
        "s0" + " < s0 + 1" * 5_000,
        "s0 > 1 and " * 300_000 + "True",
        "len([0 for _ in range(10**12)]) > s0",
        "'a' * 10**12 == s0",
        "f'{s0:>999999999}' == s0",
        "(lambda: (yield))() == s0",
        "__import__('os').system('true') == 0",
        "s0 == 64 if True else 1if 1else 2",
        "'\\d' == s0",
        "\uff53\uff10 == 64",
        "s\u0660 == 64",
        "s0 ==\x0064",
        "\ud800 == 64",
        "0x40 == s0",
        "6_4 == s0",
        "s0 == 64;",
        "s0 == 64 #",
        "(s0 := 64) == 64",
    ],
    ids=lambda expression: ascii(expression[:24]),
)
def test_hostile_guards_are_not_proven(expression: str, recwarn: pytest.WarningsRecorder) -> None:
    """An expression made to burn time or memory, or to run something, covers nothing, and Python warns of nothing."""
    tracemalloc.start()
    started = time.process_time()
    try:
        assert not guards.holds(expression, {"s0": 64})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < SECONDS * 5
    assert peak < MEMORY
    assert not recwarn.list


@pytest.mark.parametrize(
    "statement",
    [
        [],
        {"artifacts": {}},
        {"artifacts": [[]]},
        {"artifacts": [{"id": [], "raw": {}}]},
        {"artifacts": [{"id": {}, "raw": {"sha256": []}}]},
        {"artifacts": [{"id": samples.entries()[0].identity.id, "raw": {"sha256": ["a"]}}]},
    ],
    ids=repr,
)
def test_statement_that_names_nothing_readable_vouches_for_nothing(statement: object) -> None:
    """What a trusted producer signed is read as carefully as a bundle."""
    memory = MemoryStore(samples.NAMESPACE)
    payload = json.dumps(statement).encode()
    signed = signing.sign(payload, samples.KEY, payload_type=signing.CONTRIBUTION_TYPE)
    digest = memory.write_contribution(signed)
    with pytest.raises(CorruptError):
        check_statement(memory, digest, samples.KEY.keyid, samples.entries()[:1], samples.TRUSTED)


TRAVERSALS = (
    "../{key}",
    "../../../../etc/cron.d/x",
    "/{key}",
    "//{key}",
    "./{key}",
    "{key}/../x",
    "{key}/x",
    "{key}/",
    "{key}\0",
    "{key}\n",
    " {key}",
    "{key}.py",
    "..",
    ".",
    "",
    "~/x",
    "C:\\x",
    "..\\{key}",
    "%2e%2e/{key}",
    "{upper}",
    "{wide}",
    "{key}\u0301",
    "\u202e{key}",
    "{key}{key}{key}{key}{key}{key}",
)


@pytest.mark.parametrize("kind", sorted(KEY_PATTERNS))
@pytest.mark.parametrize("form", TRAVERSALS, ids=ascii)
def test_key_that_could_be_a_path_is_refused_in_every_kind(kind: str, form: str) -> None:
    """Nothing but the pattern of its kind is a key: in the value, in torch's format and in a document."""
    good = samples.key_of(kind)
    wide = "".join(chr(ord(letter) + 0xFEE0) if letter.isalnum() else letter for letter in good)
    key = form.format(key=good, upper=good.upper(), wide=wide)
    with pytest.raises(CorruptError):
        check_key(kind, key)
    with pytest.raises(CorruptError):
        read_signed(changed(("artifacts.0.kind", kind), ("artifacts.0.key", key)))
    if kind in ("inductor", "aot_autograd", "autotune"):
        with pytest.raises(CorruptError):
            megacache.decode(wire(text(kind), u64(1), text(key), u64(len(GOOD.data)), GOOD.data))


def test_artifact_that_is_listed_twice_is_one() -> None:
    """An entry that occurs twice, with the same bytes or others, is read as one, the same one in any order."""
    document = json.loads(samples.payload())
    first, other = document["artifacts"][0], dict(document["artifacts"][0], accepted=1)
    orders = ([first, other, first], [other, first], [first, first, other])
    found = [from_payload(changed(("artifacts", order))) for order in orders]
    assert len(found[0].entries) == 1
    assert found[0].entries[0].accepted == 1
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "label",
    [
        "1x1",
        "0x1x1",
        "1x1x99999999",
        "\u0661x1x1",
        "1x1x1,a=1,a=2",
        "1x1x1," + "a" * 65 + "=1",
        "1x1x1,a=1e999,=",
        "1x1x1,a b=1",
        "1x1x1\n,a",
        "1x1x1" + ",a" * 100_000,
    ],
    ids=lambda label: ascii(label[:24]),
)
def test_hostile_label_is_no_shape(label: str) -> None:
    """A label that is none is refused by the error that users know, in one line."""
    with pytest.raises(ConfigurationError) as caught:
        Shape.parse(label)
    assert len(str(caught.value)) < 500


def test_values_of_a_variant_that_are_odd_stay_text_and_come_back() -> None:
    """What is no JSON scalar is text, whatever it looks like."""
    for value in ("NaN", "1e999", "[" * 5000, '"\\ud800"', "\ud800", "9" * 5000, "0x1", "-0.0", "true "):
        shape = Shape.of(8, 8, 1, a=value)
        assert Shape.parse(shape.label) == shape


def _torchs_reader() -> Any:
    """torch's reader of length fields, loaded from its file: importing torch takes seconds and is not needed."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    path = Path(torch.origin).parent / "utils" / "_appending_byte_serializer.py"
    spec = spec_from_file_location("torchs_reader", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BytesReader


def test_length_that_torch_never_gets_past_ends_here() -> None:
    """torch's reader loops for ever once a length led it past the end: it must never see such bytes."""
    hostile = wire(text("inductor"), u64(2**20) + b"short")
    with pytest.raises(CorruptError):
        megacache.decode(hostile)
    reader = _torchs_reader()(hostile)
    for _ in range(10_000):
        reader.read_bytes()
        if reader._i > len(hostile):
            break
    for _ in range(10_000):
        reader.read_bytes()
        assert not reader.is_finished(), "torch has learned to notice the end"
