"""The source of a class or function as text that changes exactly when the code does.

Layout and blank lines do not count. Where there is no source (a notebook cell that is gone, ``exec``, a frozen
application) the bytecode stands in for it: then the text also changes with Python's minor version.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_LAMBDA: Final = "<lambda>"


def class_source(kind: type) -> str:
    """The class statement, decorators included; for one without source, its name and its functions' bytecode."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    found = _classes_in(path, _modified(path)).get(kind.__qualname__, "") if path else ""
    return found or function_source(kind)


def _modified(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:  # gone since it was imported: reading it will find nothing
        return 0


def function_source(code: Any) -> str:
    """The text of a code object, or of anything else that ``inspect`` finds the source of."""
    try:
        text = _normal(inspect.getsource(code).splitlines())
    except (OSError, TypeError, IndentationError, SyntaxError):
        return repr(_without_source(code))
    # Several lambdas may share a line, and the source of each is that line.
    return text + repr(_without_source(code)) if getattr(code, "co_name", "") == _LAMBDA else text


@functools.lru_cache(maxsize=64)
def _classes_in(path: str, modified_ns: int) -> Mapping[str, str]:  # noqa: ARG001 - a reloaded file is read again
    """Source by qualified name of each class in a file: parsed once, where ``inspect`` parses it for each class."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return {}
    lines = text.splitlines()
    found: dict[str, str] = {}
    for name, first, last in _class_statements(tree, ""):
        found[name] = found.get(name, "") + _normal(lines[first - 1 : last])
    return found


def _class_statements(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            inner = f"{prefix}{child.name}."
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield f"{prefix}{child.name}", first, child.end_lineno or child.lineno
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = f"{prefix}{child.name}.<locals>."
        yield from _class_statements(child, inner)


def _normal(lines: list[str]) -> str:
    dedented = textwrap.dedent("\n".join(lines)).splitlines()
    return "\n".join(line.rstrip() for line in dedented if line.strip())


def _without_source(code: Any) -> Any:
    """Plain values that tell what code does, without file, line or address."""
    if isinstance(code, types.CodeType):
        return _bytecode(code)
    functions = {name: getattr(item, "__func__", item) for name, item in vars(code).items()}
    found = {name: item.__code__ for name, item in functions.items() if hasattr(item, "__code__")}
    return [getattr(code, "__qualname__", ""), {name: _bytecode(found[name]) for name in sorted(found)}]


def _bytecode(code: types.CodeType) -> list[Any]:
    return [code.co_code.hex(), [_constant(part) for part in code.co_consts], code.co_names, code.co_varnames]


def _constant(value: Any) -> Any:
    """A constant of a code object; sets in an order of their own, since theirs depends on the process."""
    if isinstance(value, types.CodeType):
        return _bytecode(value)
    if isinstance(value, frozenset):
        return ["set", *sorted(map(repr, value))]
    return [_constant(part) for part in value] if isinstance(value, tuple) else value
