r"""Canonical JSON: one value has exactly one byte representation.

Fingerprint ids, unit ids, bundle documents and signatures are all computed over these bytes, so the rules are
few and fixed: keys sorted by code point, no spaces, ASCII only (other characters as ``\uXXXX``), floats as
``repr`` prints them, no NaN and no infinity. Tuples are written as lists and any mapping as an object.

It does not know what a document means; that is ``bundle.py`` and ``identity``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.errors import ConfigurationError, CorruptError, LimitError

_ENCODE = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
# Python's encoder lets no other thread run until it is done, 20 ms for a large document: below these levels of one,
# where its artifacts and units are, it is called once each.
_PIECEWISE = 3


def dumps(value: object) -> bytes:
    """Return the canonical bytes of `value`.

    Raises:
        ConfigurationError: `value` holds something JSON cannot say (NaN, bytes, a set, a key that is not text).
    """
    return _text(_plain(value, "$", 0), _PIECEWISE).encode("ascii")


def loads(data: bytes | str, limits: Limits = DEFAULT) -> Any:
    """Parse JSON strictly: UTF-8, no repeated keys, no NaN or infinity, bounded depth.

    Whether `data` is already canonical is not checked: whoever signs decides on the bytes.

    Raises:
        CorruptError: `data` is not such a document.
        LimitError: it nests deeper than any document of ours, and than `dumps` would write.
    """
    try:
        value = json.loads(
            data if isinstance(data, str) else bytes(data).decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError as exc:
        raise LimitError("JSON nests too deeply") from exc
    except ValueError as exc:
        raise CorruptError(f"not valid JSON: {exc}"[:500]) from exc
    _refuse_depth(value, limits.max_depth)
    return value


def digest(value: object) -> str:
    """Return the sha256 (64 hex digits) of the canonical bytes of `value`."""
    return hashlib.sha256(dumps(value)).hexdigest()


def _plain(value: object, path: str, depth: int) -> object:
    """Copy `value` into dicts, lists and scalars, or say where it cannot be."""
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigurationError(f"{path}: {value!r} has no JSON form")
        return float(value)
    if depth >= DEFAULT.max_depth and isinstance(value, (list, tuple, Mapping)):
        raise ConfigurationError(f"{path[:200]}: nests deeper than {DEFAULT.max_depth}")
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        result: dict[str, object] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigurationError(f"{path}: key {key!r} is not text")
            result[str(key)] = _plain(item, f"{path}.{key}", depth + 1)
        return result
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    raise ConfigurationError(f"{path}: {type(value).__name__} has no JSON form")


def _refuse_depth(value: Any, limit: int) -> None:
    """Look at one level after the other; the parser's own bound is the interpreter's stack, which differs."""
    level = [value] if isinstance(value, (list, dict)) else []
    for _ in range(limit):
        if not level:
            return
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (list, dict))
        ]
    if level:
        raise LimitError(f"JSON nests deeper than {limit}")


def _text(plain: object, levels: int) -> str:
    if levels and isinstance(plain, dict):
        return f"{{{','.join(f'{_ENCODE(key)}:{_text(plain[key], levels - 1)}' for key in sorted(plain))}}}"
    if levels and isinstance(plain, list):
        return f"[{','.join([_text(item, levels - 1) for item in plain])}]"
    return _ENCODE(plain)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {repeated!r} occurs twice")
    return result


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number
