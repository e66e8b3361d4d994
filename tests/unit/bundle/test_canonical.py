from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import DEFAULT, canonical
from cachekit.errors import CachekitError, ConfigurationError, CorruptError, LimitError

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_round_trip(value: Any) -> None:
    """Every JSON value, lone surrogates included, comes back as it was."""
    assert value == canonical.loads(canonical.dumps(value))


@given(st.dictionaries(st.text(), st.integers()))
def test_order_of_insertion_does_not_matter(mapping: dict[str, int]) -> None:
    """Equal mappings have equal bytes, whatever order and type they have."""
    backwards = MappingProxyType(dict(reversed(list(mapping.items()))))
    assert canonical.dumps(mapping) == canonical.dumps(backwards)


def test_form_is_fixed() -> None:
    """Ids and signatures are over these bytes: this form can never change."""
    value = {"b": [1, 2.0, 1e22, 0.1, True, None], "a": ("ü", "\U0001f600"), "B": {}}
    expected = rb'{"B":{},"a":["\u00fc","\ud83d\ude00"],"b":[1,2.0,1e+22,0.1,true,null]}'
    assert expected == canonical.dumps(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, b"x", {1: 2}, {None: 1}, {1, 2}, object()])
def test_value_without_json_form_is_refused(value: object) -> None:
    """Nothing is written that would not be read back the same."""
    with pytest.raises(ConfigurationError):
        canonical.dumps({"inside": [value]})


def test_error_names_the_place() -> None:
    """The caller learns which component is at fault."""
    with pytest.raises(ConfigurationError, match=r"\$\.plan\.options\[1\]"):
        canonical.dumps({"plan": {"options": [1, b"x"]}})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":1,"a":2}',
        b'{"x":{"a":1,"b":2,"a":1}}',
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"\xff",
        b'\xff\xfe"\x00a\x00"\x00',
        b"1" * 5000,
        b"{} {}",
    ],
)
def test_sloppy_json_is_corrupt(text: bytes) -> None:
    """Repeated keys, NaN, other encodings and trailing bytes are not read in one way here and another way there."""
    with pytest.raises(CorruptError):
        canonical.loads(text)


def test_deep_nesting_is_an_error_of_ours() -> None:
    """Bytes made to exhaust the stack are refused like any other."""
    with pytest.raises((LimitError, CorruptError)):
        canonical.loads(b"[" * 200_000 + b"]" * 200_000)
    deep: list[Any] = []
    for _ in range(DEFAULT.max_depth + 1):
        deep = [deep]
    with pytest.raises(ConfigurationError, match="nests deeper"):
        canonical.dumps(deep)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_our_error(data: bytes) -> None:
    """No foreign exception leaves the parser."""
    try:
        value = canonical.loads(data)
    except CachekitError:
        return
    assert value == json.loads(data)
