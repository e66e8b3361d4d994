"""Mutations that keep the outer form whole, so that what lies behind parsers and checksums is reached.

Every function takes a ``random.Random`` and changes nothing that it was given.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.samples import artifacts, key_of, pickled

_LENGTHS = (0, 1, 2, 7, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_KEYS = (
    "../../x",
    "/etc/passwd",
    "..",
    "",
    ".",
    "aa/../../x.best_config",
    "C:\\x",
    "x\0y",
    "f" * 52 + "\n",
    "f" * 51 + "é",
    "\uff46" * 52,
    "f" * 300,
)

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53,
    2**53 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    1.5,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    "",
    "0",
    "x" * 300,
    "x" * 70_000,
    "\ud800",
    "\0",
    "\u202e\u0661",
    "\u017f0",
    "../../x",
    "1x1x1,a=\ud800",
    "9**9**9 > s0",
    "(" * 300 + "s0" + ")" * 300,
    "a" * 64,
    key_of("inductor", 1),
    [],
    {},
    [[]],
    {"": {}},
    [None] * 300,
)


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Change one to eight bits."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def spliced(data: bytes, rng: random.Random) -> bytes:
    """Cut, repeat, move or insert a piece."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    piece = data[start:end][: rng.choice((4, 64, 100_000))]
    at = rng.randrange(len(data) + 1)
    inserted = rng.choice((b"", piece, piece * rng.randint(2, 5), rng.randbytes(rng.randint(1, 16))))
    return rng.choice((data[:start] + data[end:], data[:at] + inserted + data[at:]))


def lengthened(data: bytes, rng: random.Random) -> bytes:
    """Write an absurd number over 1, 2, 4 or 8 bytes, in either byte order."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(data) - width))
    value = rng.choice(_LENGTHS) & (1 << 8 * width) - 1
    return data[:at] + value.to_bytes(width, rng.choice(("big", "little"))) + data[at + width :]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One to three changes of bytes, of any kind."""
    for _ in range(rng.randint(1, 3)):
        data = rng.choice((flipped, spliced, lengthened))(data, rng)
    return data


def reshaped(data: bytes, rng: random.Random) -> bytes:
    """Change one to three values or names inside a JSON document; its form stays valid JSON, lone surrogates included.

    Bytes that are no JSON are damaged instead.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return damaged(data, rng)
    box = [value]
    for _ in range(rng.randint(1, 3)):
        _reshape(box, rng)
    text = json.dumps(box[0])
    if rng.random() < 0.05:
        text = text.replace('":', '": ' + '[{"a":' * rng.choice((3, 70, 2000)), 1)
    if rng.random() < 0.05:
        text = text.replace(",", ',"min_reader":1,' * rng.randint(1, 2), 1)
    return text.encode()


def _reshape(box: list[Any], rng: random.Random) -> None:
    holders = list(_holders(box))
    holder = rng.choice(holders)
    slots = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not slots:
        return
    slot, action = rng.choice(slots), rng.randrange(6)
    if action == 0:
        holder[slot] = copy.deepcopy(rng.choice(VALUES))
    elif action == 1:
        holder[slot] = _near(holder[slot], rng)
    elif action == 2 and holder is not box:
        del holder[slot]
    elif action == 3 and isinstance(holder, list) and holder is not box:
        holder += [holder[slot]] * rng.choice((1, 2, 50))
    elif action == 4:
        other = rng.choice(holders)
        holder[slot] = json.loads(json.dumps(other)) if len(holders) < 2000 else None
    elif isinstance(holder, dict):
        holder[rng.choice((*VALUES[17:24], *slots)) or "x"] = holder[slot]


def _near(value: Any, rng: random.Random) -> Any:
    """A value of the same type, a little different."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 2**32, -(2**32)))
    if isinstance(value, float):
        return value * rng.choice((-1, 0, 1e300))
    if isinstance(value, str):
        return flipped(value.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")
    return [value]


def _holders(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        holder = stack.pop()
        yield holder
        inner = holder.values() if isinstance(holder, dict) else holder
        stack += [item for item in inner if isinstance(item, (dict, list))]


def wired(rng: random.Random) -> bytes:
    """A body in torch's wire format, without its checksum, whose blocks are whole but hostile here and there."""
    pieces = [rng.choice((1, 1, 1, 1, 0, 2, 2**63)).to_bytes(8, "big")]
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(
            ("inductor", "aot_autograd", "autotune", "pgo", "precompile", "kernel", "surprise", "")
        )
        members = [_member(kind, rng) for _ in range(rng.randint(0, 3))]
        count = len(members) if rng.random() < 0.9 else rng.choice(_LENGTHS)
        pieces += [_text(kind, rng), count.to_bytes(8, "big"), *members]
    body = b"".join(pieces)
    return damaged(body, rng) if rng.random() < 0.3 else body


def _member(kind: str, rng: random.Random) -> bytes:
    known = kind in ("inductor", "aot_autograd", "autotune")
    key = key_of(kind, rng.randrange(2)) if known and rng.random() < 0.9 else rng.choice(_KEYS)
    whole = next((one.data for one in artifacts() if one.kind == kind), b"")
    data = rng.choice(
        (whole, whole, pickled("inductor", guards="x" * rng.randrange(99)), damaged(whole + b".", rng))
    )
    return _text(key, rng) + _field(data, rng)


def _text(text: str, rng: random.Random) -> bytes:
    import base64

    raw = base64.b64encode(text.encode())
    return _field(raw if rng.random() < 0.98 else raw[:-1], rng)


def _field(data: bytes, rng: random.Random) -> bytes:
    length = len(data) if rng.random() < 0.97 else rng.choice(_LENGTHS)
    return length.to_bytes(8, "big") + data


_GLOBALS = (
    ("collections", "OrderedDict"),
    ("builtins", "getattr"),
    ("builtins", "set"),
    ("torch.storage", "_load_from_bytes"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("triton.runtime.jit", "JITFunction"),
    ("sympy.core.symbol", "Symbol"),
    ("sympy.core.add", "Add"),
    ("os", "system"),
)
_STEPS = b"NKK]})(((ttt\x85\x85\x86\x86\x87RRR\x81\x81\x92bbaes\x75\x90\x91\x30\x31\x94\x94\x94Q\x8f\x88"


def programmed(rng: random.Random) -> bytes:
    """A pickle of opcodes that are whole one by one, in an order that seldom makes sense."""
    pieces = [b"\x80" + bytes([rng.choice((2, 4, 5))])]
    pieces += [_opcode(rng) for _ in range(rng.randint(1, 30))]
    return b"".join(pieces) + rng.choice((b".", b"t.", b"0.", b""))


def _opcode(rng: random.Random) -> bytes:
    step = bytes([rng.choice(_STEPS)])
    data = rng.choice(
        (b"save", b"create_binder", b"guards_expr", b"fx_graph_cache_info", key_of("inductor").encode())
    )
    module, name = rng.choice(_GLOBALS)
    return rng.choice(
        (
            step + b"\x07" * (step == b"K"),
            step + b"\x07" * (step == b"K"),
            b"\x8c" + bytes([len(data)]) + data + b"\x94" * rng.randrange(2),
            b"".join(b"\x8c" + bytes([len(one)]) + one.encode() for one in (module, name)) + b"\x93",
            f"c{module}\n{name}\n".encode(),
            b"h" + bytes([rng.randrange(6)]),
            rng.choice((b"q", b"q", b"r\0\0\0")) + bytes([rng.randrange(6)]),
            b"B" + rng.choice((3, 0, 2**31)).to_bytes(4, "little") + b"abc",
            b"C" + bytes([len(_STORAGE)]) + _STORAGE,
        )
    )


_STORAGE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02K\x01." * 4

JSON_TARGETS = frozenset({"canonical", "coverage", "document", "envelope", "fingerprint", "head", "store"})


def of(target: str, seed: bytes, rng: random.Random) -> bytes:
    """One mutation of `seed` for a target: of its structure mostly, else of its bytes."""
    if target == "wire" and rng.random() < 0.6:
        return wired(rng)
    if target == "pickle" and rng.random() < 0.5:
        return programmed(rng)
    if target in JSON_TARGETS and rng.random() < 0.75:
        return reshaped(seed, rng)
    return damaged(seed, rng)
