"""Evaluates the guard expressions of dynamic graphs, as sympy and torch print them, over integer sizes.

A deliberately small interpreter over Python's ``ast``: integers, symbols, arithmetic, comparisons, ``and``,
``or``, ``not`` and the handful of functions torch prints. It never calls ``eval``. Whatever it does not know is
"not proven", which callers must read as not covered.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from cachekit.bundle.limits import DEFAULT

# Sizes are products of a few dimensions; anything larger means an expression made to burn time.
_MAX_VALUE = 1 << 80

# All that torch and sympy print about sizes. What is not made of these is never given to Python's parser, which would
# warn about some of it, read look-alike letters as the same, and build trees of any size before they can be counted.
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?!\w)|//|[<>=!]=|[-+*%<>(),]|\s+", re.ASCII)

_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _UnknownError(Exception):
    """The expression, or a value in it, is outside the subset."""


def holds(expression: str, symbols: Mapping[str, int]) -> bool:
    """Tell whether `expression` is provably true for these sizes; "" is true, anything not understood is False."""
    if not expression:
        return True
    try:
        return _truth(_parse(expression), symbols)
    except (_UnknownError, ZeroDivisionError, RecursionError):
        return False


def equals(expression: str, expected: int, symbols: Mapping[str, int]) -> bool:
    """Tell whether `expression` is provably the integer `expected` for these sizes."""
    try:
        return _number(_parse(expression), symbols) == expected
    except (_UnknownError, ZeroDivisionError, RecursionError):
        return False


# A tree of the longest expression takes some ten megabytes, so few are kept.
@lru_cache(maxsize=64)
def _parse(expression: str) -> ast.expr:
    if not _is_plain(expression):
        raise _UnknownError
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise _UnknownError from exc
    return tree.body


def _is_plain(expression: str) -> bool:
    """Tell whether `expression` consists of few enough tokens that are all known."""
    end = 0
    for count, token in enumerate(_TOKEN.finditer(expression)):
        if token.start() != end or count >= DEFAULT.max_guard_tokens:
            return False
        end = token.end()
    return end == len(expression)


def _truth(node: ast.expr, symbols: Mapping[str, int]) -> bool:
    value = _value(node, symbols)
    if not isinstance(value, bool):
        raise _UnknownError
    return value


def _value(node: ast.expr, symbols: Mapping[str, int]) -> int:
    """Return the integer or truth value of `node`; booleans stay booleans."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        return int(node.value) if type(node.value) is int else bool(node.value)
    if isinstance(node, ast.Name):
        if node.id not in symbols:
            raise _UnknownError
        return symbols[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _bounded(_BINARY[type(node.op)](_number(node.left, symbols), _number(node.right, symbols)))
    if isinstance(node, ast.UnaryOp):
        return _unary(node, symbols)
    if isinstance(node, ast.BoolOp):
        return _boolean(node, symbols)
    if isinstance(node, ast.Compare):
        return _comparison(node, symbols)
    if isinstance(node, ast.Call):
        return _call(node, symbols)
    raise _UnknownError


def _number(node: ast.expr, symbols: Mapping[str, int]) -> int:
    value = _value(node, symbols)
    if isinstance(value, bool):
        raise _UnknownError
    return value


def _bounded(value: int) -> int:
    if abs(value) > _MAX_VALUE:
        raise _UnknownError
    return value


def _unary(node: ast.UnaryOp, symbols: Mapping[str, int]) -> int:
    if isinstance(node.op, ast.USub):
        return -_number(node.operand, symbols)
    if isinstance(node.op, ast.UAdd):
        return _number(node.operand, symbols)
    if isinstance(node.op, ast.Not):
        return not _truth(node.operand, symbols)
    raise _UnknownError


def _boolean(node: ast.BoolOp, symbols: Mapping[str, int]) -> bool:
    # Every operand is evaluated: an unknown one makes the whole unknown, whatever stands before it.
    values = [_truth(operand, symbols) for operand in node.values]
    return all(values) if isinstance(node.op, ast.And) else any(values)


def _comparison(node: ast.Compare, symbols: Mapping[str, int]) -> bool:
    values = [_number(operand, symbols) for operand in (node.left, *node.comparators)]
    result = True
    for kind, left, right in zip(node.ops, values, values[1:], strict=False):
        if type(kind) not in _COMPARE:
            raise _UnknownError
        result = result and _COMPARE[type(kind)](left, right)
    return result


def _call(node: ast.Call, symbols: Mapping[str, int]) -> int:
    if not isinstance(node.func, ast.Name) or node.keywords:
        raise _UnknownError
    name = node.func.id
    if name in ("And", "Or", "Not"):
        return _logic(name, [_truth(argument, symbols) for argument in node.args])
    values = [_number(argument, symbols) for argument in node.args]
    if name in ("Max", "Min") and values:
        return max(values) if name == "Max" else min(values)
    function = _FUNCTIONS.get((name, len(values)))
    if function is None:
        raise _UnknownError
    return function(*values)


def _logic(name: str, values: list[bool]) -> bool:
    if name == "Not":
        if len(values) != 1:
            raise _UnknownError
        return not values[0]
    return all(values) if name == "And" else any(values)


def _exact_division(left: int, right: int) -> int:
    if left % right:
        raise _UnknownError
    return left // right


_FUNCTIONS: Mapping[tuple[str, int], Callable[..., int]] = {
    ("Eq", 2): operator.eq,
    ("Ne", 2): operator.ne,
    ("Lt", 2): operator.lt,
    ("Le", 2): operator.le,
    ("Gt", 2): operator.gt,
    ("Ge", 2): operator.ge,
    ("Mod", 2): operator.mod,
    ("PythonMod", 2): operator.mod,
    ("FloorDiv", 2): operator.floordiv,
    ("CleanDiv", 2): _exact_division,
    ("CeilDiv", 2): lambda left, right: -(-left // right),
    ("Abs", 1): abs,
}
