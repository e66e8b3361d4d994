from __future__ import annotations

import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import DEFAULT, Limits, opcodes, pickles, scan
from cachekit.bundle.opcodes import Operation, operations
from cachekit.errors import CorruptError, LimitError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=20,
)
_NAMES = {
    "MEMOIZE": Operation.STORE,
    "BINPUT": Operation.STORE,
    "LONG_BINPUT": Operation.STORE,
    "BINGET": Operation.RECALL,
    "LONG_BINGET": Operation.RECALL,
    "SHORT_BINUNICODE": Operation.TEXT,
    "BINUNICODE": Operation.TEXT,
    "BINUNICODE8": Operation.TEXT,
}
_COLLECTING = {"MARK", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "PROTO", "FRAME"}


def _expected(data: bytes) -> list[tuple[Operation, str | int | None]]:
    found = []
    for code, argument, _ in pickletools.genops(data):
        kind = Operation.COLLECT if code.name in _COLLECTING else _NAMES.get(code.name, Operation.OTHER)
        found.append((kind, argument if code.name in _NAMES else None))
    return found[:-1]  # without STOP


def _found(data: bytes) -> list[tuple[Operation, str | int | None]]:
    def read(kind: Operation, operand: bytes) -> str | int | None:
        if kind is Operation.TEXT:
            return operand.decode()
        return int.from_bytes(operand, "little") if operand else None

    return [(kind, read(kind, operand)) for kind, operand in operations(data, DEFAULT)]


@given(VALUES, st.sampled_from((2, 3, 4, 5)))
def test_opcodes_are_those_that_pickletools_finds(value: Any, protocol: int) -> None:
    """Every pickle that Python writes is stepped through opcode by opcode, texts and memo places included."""
    data = pickle.dumps([value, value], protocol=protocol)
    assert _found(data) == _expected(data)


@given(VALUES, st.sampled_from((2, 4, 5)), st.data())
def test_cut_short_is_corrupt(value: Any, protocol: int, data: st.DataObject) -> None:
    """A pickle without its end is refused, wherever it was cut."""
    whole = pickle.dumps(value, protocol=protocol)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptError):
        list(operations(whole[:length], DEFAULT))


def test_both_readers_of_pickles_know_the_same_opcodes() -> None:
    """What can be followed can be searched, and the other way round."""
    assert set(pickles._Machine.STEPS) == opcodes.STEPS


def test_large_memos_are_followed() -> None:
    """A pickle that stores more than 256 things, under wide places in older protocols, is accepted as it is."""
    words = [f"word {number}" for number in range(700)]
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps([words, words[::-1]], protocol=protocol)
        scan.check("inductor", data)
        assert _found(data) == _expected(data)


def test_places_that_a_pickler_uses_again_are_allowed() -> None:
    """Storing over an earlier place needs no room, so it is followed."""
    scan.check("inductor", b"\x80\x02]q\x00]q\x00\x86.")


def test_sharing_that_stays_small_is_allowed() -> None:
    """Tuples in real artifacts are shared and nest; what counts is how many are reached in all."""
    shared: tuple[Any, ...] = ()
    for _ in range(10):
        shared = (shared, shared)
    data = pickle.dumps(shared, protocol=4)
    scan.check("inductor", data, limits=Limits(max_tuples=2**11))
    with pytest.raises(LimitError):
        scan.check("inductor", data, limits=Limits(max_tuples=2**10))
