"""The call signature of a denoiser: what decides, besides the pipeline, which compiled code a call can use.

Two forms: a hashable key, cheap enough to build on every call, and the JSON text that units keep. Tensors count by
shape, dtype, device and stride order's outcome (their strides); other leaves by value.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[Any, ...]

MAX_SIZES = 4


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any], tensor: type) -> Key:
    """A hashable key of one call; equal keys have equal signatures. ``tensor`` is ``torch.Tensor``."""
    return (_key(args, tensor), _key(kwargs, tensor))


def _key(value: Any, tensor: type) -> Any:
    if isinstance(value, tensor):
        return (*_layout(value), value.dtype, value.device)  # type: ignore[attr-defined]
    if isinstance(value, (bool, int, float, str, type(None))):
        return (type(value), value)
    if isinstance(value, Mapping):
        return frozenset([(name, _key(item, tensor)) for name, item in value.items()])  # in any order
    if isinstance(value, (list, tuple)):
        return tuple([_key(item, tensor) for item in value])
    return type(value)


def _layout(value: Any) -> tuple[Any, Any]:
    """Sizes and strides; sparse and nested tensors, which have no strides or sizes, go by what they are."""
    if not getattr(value, "is_nested", False):  # a jagged one's sizes are no numbers, and others each time
        try:
            return value.shape, value.stride()
        except (RuntimeError, NotImplementedError):
            pass  # sparse: no strides to go by
    return (str(value.layout),), ()


def call_signature(
    args: Sequence[Any], kwargs: Mapping[str, Any], tensor: type, *, module: str, grad: bool = False
) -> str:
    """The canonical JSON text of one call of the denoiser named ``module``; ``grad``: whether autograd records it."""
    body = {
        **_mode(grad=grad),
        "module": module,
        "args": [_leaf(value, tensor) for value in args],
        "kwargs": {name: _leaf(value, tensor) for name, value in kwargs.items()},
    }
    return _text(body)


def short_signature(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tensor: type) -> str:
    """The sizes of a call's first tensors, for people: ``module(4x16, 4x8)``."""
    given = [*args, *kwargs.values()]
    sizes = [
        "x".join(map(str, _layout(value)[0])) or "scalar" for value in given if isinstance(value, tensor)
    ]
    return f"{name}({', '.join(sizes[:MAX_SIZES])}{', …' if len(sizes) > MAX_SIZES else ''})"


def _mode(*, grad: bool) -> dict[str, bool]:
    """What is compiled for autograd is another graph, which a call without it never looks up."""
    return {"grad": True} if grad else {}


def _leaf(value: Any, tensor: type) -> Any:
    if isinstance(value, tensor):
        return _tensor(value, lambda n: n if isinstance(n, str) else int(n))
    if isinstance(value, (bool, int, float, str, type(None))):
        return {"v": value}
    if isinstance(value, Mapping):
        return {str(name): _leaf(item, tensor) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_leaf(item, tensor) for item in value]
    return {"v": f"<{type(value).__module__}.{type(value).__qualname__}>"}


def _tensor(value: Any, size: Callable[[Any], Any]) -> dict[str, Any]:
    shape, stride = _layout(value)
    return {
        "t": [size(n) for n in shape],
        "dtype": str(value.dtype),
        "device": str(value.device),
        "stride": [size(n) for n in stride],
    }


@dataclass(frozen=True)
class GraphSignature:
    """What one dynamic graph accepts, with its symbols renamed in order of use."""

    text: str
    """Canonical JSON: the inputs by source, and a digest of the weights' shapes."""
    guards: str
    """Conjunction over the symbols, "" for none."""
    symbols: Mapping[str, str]
    """torch's name of each symbol -> its name in the text."""


def graph_signature(
    inputs: Sequence[tuple[str, Any]],
    guards: Sequence[str],
    tensor: type,
    *,
    fixed: Mapping[str, int] | None = None,
    grad: bool = False,
) -> GraphSignature:
    """The signature of a graph with these (source, value) inputs; a size that may vary is a symbol or expression.

    ``grad`` tells whether autograd records it.
    ``fixed`` has the symbols that were specialised, whose values the inputs show already.
    """
    names: dict[str, str] = {}

    def size(n: Any) -> Any:
        text = str(n)  # a symbolic size that was specialised prints as a number
        return int(text) if text.isdecimal() else _renamed(text, names)

    kept: dict[str, Any] = {}
    lifted: list[Any] = []
    for source, value in inputs:
        if isinstance(value, tensor):
            leaf = _tensor(value, size)
            if "_modules" in source or "_parameters" in source:
                lifted.append(leaf)
            else:
                kept.setdefault(source, leaf)
    used = sorted({_renamed(guard, names) for guard in _deciding(guards, names, fixed or {})})
    weights = hashlib.sha256(_text(lifted).encode()).hexdigest()
    return GraphSignature(
        _text({**_mode(grad=grad), "inputs": kept, "weights": weights}),
        " and ".join(f"({guard})" for guard in used),
        names,
    )


_SYMBOL = re.compile(r"\b[a-z]+\d+\b")
"""``s77`` is a size, ``zf9`` a float that a module holds, ``u0`` a value known only at run time."""


def _deciding(guards: Sequence[str], shown: Collection[str], fixed: Mapping[str, int]) -> list[str]:
    """The guards that a call's sizes must be checked against, with specialised symbols as numbers.

    One over a size that no input shows stays, unbound: what cannot be decided is not covered. One over nothing but
    numbers and the floats that a module holds (``zf9``), which the fingerprint fixes, goes.
    """
    found = []
    for guard in guards:
        unknown = _symbols(guard) - fixed.keys() - set(shown)
        if any(not name.startswith("zf") for name in unknown) or _symbols(guard) & set(shown):
            found.append(_SYMBOL.sub(lambda m: str(fixed.get(m.group(), m.group())), guard))
    return found


def _symbols(expression: str) -> set[str]:
    return set(_SYMBOL.findall(expression))


def _renamed(expression: str, names: dict[str, str]) -> str:
    return _SYMBOL.sub(lambda m: names.setdefault(m.group(), f"s{len(names)}"), expression)


def _text(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=True)
