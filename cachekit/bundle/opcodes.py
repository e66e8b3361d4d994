"""The opcodes that CPython's picklers write (protocols 2 to 5), and a walk over those of a pickle that is searched.

``pickles.py`` follows what they do; ``artifact.py`` looks for names and the values behind them. Operands are stepped
over: nothing is decoded or built.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from cachekit.bundle.limits import Limits
from cachekit.errors import CorruptError, LimitError

MEMOIZE = 0x94
NUMBERS = {
    0x4E: 0,  # NONE
    0x88: 0,  # NEWTRUE
    0x89: 0,  # NEWFALSE
    0x4B: 1,  # BININT1
    0x4D: 2,  # BININT2
    0x4A: 4,  # BININT
    0x47: 8,  # BINFLOAT
}
OPAQUE = frozenset(b"]}\x8f")  # EMPTY_LIST, EMPTY_DICT, EMPTY_SET
TEXT_WIDTH = {0x8C: 1, 0x58: 4, 0x8D: 8}  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
BYTES_WIDTH = {0x43: 1, 0x42: 4, 0x8E: 8}  # SHORT_BINBYTES, BINBYTES, BINBYTES8
LONG_WIDTH = {0x8A: 1, 0x8B: 4}  # LONG1, LONG4
GET_WIDTH = {0x68: 1, 0x6A: 4}  # BINGET, LONG_BINGET
PUT_WIDTH = {0x71: 1, 0x72: 4}  # BINPUT, LONG_BINPUT
SKIPPED = {0x80: 1, 0x95: 8}  # PROTO, FRAME
STOP = 0x2E
# Opcodes without operand that do something: STACK_GLOBAL to BINPERSID in ``pickles.py``.
STEPS = frozenset(b"\x93\x52\x81\x92\x62\x61\x73\x65\x75\x90\x29\x85\x86\x87\x74\x91\x30\x31\x51")
MAX_NAME = 255
"""Bytes of a module's or class's name, and of any text that is looked at."""


class Operation(Enum):
    """What an opcode does, as far as a search for names and the values behind them cares."""

    TEXT = "pushes text, its operand"
    RECALL = "pushes what was stored under its operand"
    STORE = "stores the value on top, under its operand if there is one"
    COLLECT = "makes or marks a tuple, or says something about the pickle"
    OTHER = "anything else"


_COLLECT = frozenset(b"(t\x85\x86\x87\x80\x95")  # MARK, TUPLE, TUPLE1 to 3, PROTO, FRAME
_FIXED = {**NUMBERS, **GET_WIDTH, **PUT_WIDTH, **SKIPPED}
_SIZED = {**TEXT_WIDTH, **BYTES_WIDTH, **LONG_WIDTH, 0x96: 8}  # and BYTEARRAY8


def operations(data: bytes, limits: Limits) -> Iterator[tuple[Operation, bytes]]:
    """Step through a pickle that is only searched: what each opcode does, and its operand for those that matter.

    Raises:
        CorruptError: it is not a pickle, or holds what no pickler writes.
        LimitError: it has more opcodes than `limits` allow.
    """
    at = 0
    for _ in range(limits.max_opcodes):
        code = data[at : at + 1]
        if not code:
            raise CorruptError("pickle is cut short")
        if code[0] == STOP:
            return
        start, at = _operand(data, code[0], at + 1)
        yield _operation(code[0], data, start, at)
    raise LimitError(f"pickle has more than {limits.max_opcodes} opcodes")


def _operation(code: int, data: bytes, start: int, end: int) -> tuple[Operation, bytes]:
    if code in TEXT_WIDTH:
        return Operation.TEXT, data[start:end]
    if code in GET_WIDTH:
        return Operation.RECALL, data[start:end]
    if code == MEMOIZE or code in PUT_WIDTH:
        return Operation.STORE, data[start:end]
    return (Operation.COLLECT if code in _COLLECT else Operation.OTHER), b""


def _operand(data: bytes, code: int, at: int) -> tuple[int, int]:
    """Return where the operand of the opcode before `at` begins and ends."""
    if code in _FIXED:
        return at, at + _FIXED[code]
    if code in _SIZED:
        return sized(data, at, _SIZED[code])
    if code == 0x63:
        return at, lines(data, at)[1] + 1
    if code in (0x28, MEMOIZE) or code in OPAQUE or code in STEPS:
        return at, at
    raise CorruptError(f"opcode 0x{code:02x} is not one that torch's pickler writes")


def sized(data: bytes, at: int, width: int) -> tuple[int, int]:
    """Return where a counted operand begins and ends."""
    start = at + width
    end = start + int.from_bytes(data[at:start], "little")
    if end > len(data):
        raise CorruptError("pickle is cut short")
    return start, end


def lines(data: bytes, at: int) -> tuple[int, int]:
    """Return where the two lines of a global end."""
    middle = data.find(b"\n", at, at + 2 * MAX_NAME)
    end = data.find(b"\n", middle + 1, middle + 2 * MAX_NAME)
    if middle < 0 or end < 0:
        raise CorruptError("pickle imports under a name without end")
    return middle, end
