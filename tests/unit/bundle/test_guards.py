from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachekit.bundle import guards

SIZES = {"s0": 64, "s1": 77, "s77": 3}


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "s0 == 64",
        "Eq(s0, 64)",
        "Ne(s0, s1)",
        "2 <= s0 and s0 <= 4096",
        "2 <= s0 <= 4096",
        "(s0 > 1) and not (s1 < 2)",
        "Eq(Mod(s0, 16), 0)",
        "s0 % 16 == 0",
        "s0*s1 - 1 < 2147483647",
        "s0 == 64\n",
        "FloorDiv(s0, 3) == 21",
        "s0//3 == 21",
        "-s0 // 3 == -22",
        "Max(s0, s1) == 77 and Min(s0, s1, s77) == 3",
        "Or(Eq(s0, 1), Eq(s1, 77))",
        "And(s0 > 1, Not(s1 > 100))",
        "CleanDiv(s0, 4) == 16",
        "CeilDiv(s1, 4) == 20",
        "Gt(s0, 1) and Ge(s0, 64) and Lt(s0, 65) and Le(s0, 64)",
        "+s0 == 64",
        "True",
    ],
)
def test_true_expressions_hold(expression: str) -> None:
    """What torch and sympy print about sizes is understood."""
    assert guards.holds(expression, SIZES)


@pytest.mark.parametrize(
    "expression",
    [
        "s0 == 65",
        "Eq(Mod(s1, 2), 0)",
        "s0 > 1 and s1 > 77",
        "False",
        # unknown, so not proven
        "s9 == 1",
        "s0 == 64 or s9 == 1",
        "s0",
        "s0 + 1",
        "s0 / 2 == 32",
        "2**s0 > 1",
        "s0 % 0 == 0",
        "s0 << 2 == 256",
        "(s0 == 64) + 1 == 2",
        "(s0 == 64) == True",
        "s0 is 64",
        "s0 in (64,)",
        "L['t0'] == 64",
        "s0.bit_length() == 7",
        "__import__('os').system('true') == 0",
        "open('x')",
        "Eq(s0, 64, s1)",
        "Eq(s0, b=64)",
        "CleanDiv(s1, 4) == 19",
        "(lambda: s0)() == 64",
        "[s0][0] == 64",
        "'s0' == 64",
        "s0 == 64.0",
        "s0 ==",
        "s0 == 64)",
        "s0 == 64 # comment \x00",
    ],
)
def test_false_and_unknown_expressions_do_not_hold(expression: str) -> None:
    """What is false, or not understood, does not cover anything."""
    assert not guards.holds(expression, SIZES)


@pytest.mark.parametrize(
    "expression",
    [
        "*".join(["s0"] * 50_000) + " > 1",
        "(" * 50_000,
        "-" * 100_000 + "s0 > 0",
        "9" * 5000 + " > s0",
        "s0 > " * 9000,
    ],
)
def test_expressions_made_to_burn_time_end_quickly(expression: str) -> None:
    """Evaluation is bounded by the length of the expression and the size of its numbers."""
    started = time.process_time()
    assert not guards.holds(expression, SIZES)
    assert time.process_time() - started < 5


@given(st.text(alphabet="s01 ()+-*/%<>=!andorotEqMx,.[]'\"", max_size=40))
def test_any_text_gives_an_answer(expression: str) -> None:
    """No text makes the evaluator raise."""
    assert guards.holds(expression, SIZES) in (True, False)
    assert guards.equals(expression, 64, SIZES) in (True, False)


def test_equals_takes_one_number() -> None:
    """A derived size is compared as a whole, so it cannot smuggle in a condition."""
    assert guards.equals("16*s77", 48, SIZES)
    assert not guards.equals("0 == 0) or (0 == 0", 48, SIZES)
    assert not guards.equals("s0 == 64", 1, SIZES)


_NUMBERS = st.recursive(
    st.sampled_from(("s0", "s1", "s77", "0", "1", "2", "16", "4096")),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(("+", "-", "*", "//", "%")), inner)
        | st.builds("{}({}, {})".format, st.sampled_from(("Max", "Min", "Mod", "FloorDiv")), inner, inner)
        | st.builds("-{}".format, inner)
    ),
    max_leaves=6,
)
_TRUTHS = st.recursive(
    st.builds("{} {} {}".format, _NUMBERS, st.sampled_from(("<", "<=", "==", "!=", ">", ">=")), _NUMBERS),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(("and", "or")), inner)
        | st.builds("not ({})".format, inner)
    ),
    max_leaves=4,
)
_PYTHON = {
    "Max": max,
    "Min": min,
    "Mod": lambda left, right: left % right,
    "FloorDiv": lambda left, right: left // right,
}


@given(_TRUTHS, st.integers(1, 5000), st.integers(1, 5000))
def test_what_is_understood_means_what_python_means(expression: str, first: int, second: int) -> None:
    """Guards decide as the code that torch would run for them does; what divides by zero is not proven."""
    sizes = {"s0": first, "s1": second, "s77": 3}
    try:
        expected = eval(expression, {"__builtins__": {}}, {**sizes, **_PYTHON})
    except ZeroDivisionError:
        expected = False
    if guards.holds(expression, sizes):
        assert expected
    elif not any(mark in expression for mark in ("%", "/", "Mod", "Div")):
        # Nothing divides, and no number gets out of bounds: it is understood, so it must be false.
        assert not expected
