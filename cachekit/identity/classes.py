"""What the walk over a model needs to know of each module class, gathered once a walk.

A model has thousands of modules and a few dozen classes: names, source hashes and patches are looked at per class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cachekit.identity.adapters import is_tuner
from cachekit.identity.stable import LIBRARIES, function_name, top_level, type_name

_PLAIN: Final = (bool, int, float, str, tuple)


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """One class. ``trains`` tells whether an instance in training mode computes something else; None if none does."""

    name: str
    tuner: bool
    defaults: dict[str, Any]
    trains: Callable[[Any], bool] | None


class Classes:
    """The classes of one walk, and the distributions they come from."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self._known: dict[type, ClassFacts] = {}

    def of(self, kind: type) -> ClassFacts:
        """The facts of one class."""
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = _facts(kind)
            self.packages.update(
                LIBRARIES[top] for part in kind.__mro__ if (top := top_level(part)) in LIBRARIES
            )
        return found


def _facts(kind: type) -> ClassFacts:
    defaults = {
        name: value
        for part in reversed(kind.__mro__)
        for name, value in vars(part).items()
        if name[:1] != "_" and isinstance(value, _PLAIN)
    }
    return ClassFacts(type_name(kind) + patch_of(kind, "forward"), is_tuner(kind), defaults, _trains(kind))


def patch_of(kind: type, method: str) -> str:
    """``!name`` where a method of ``kind`` was replaced by code from elsewhere, else ``""``.

    Engines do that to library classes, whose version then no longer tells what they do.
    """
    for owner in kind.__mro__:
        if method in vars(owner):
            function = vars(owner)[method]
            inner = inspect.unwrap(function) if callable(function) else None
            home = getattr(inner, "__globals__", {}).get("__name__")
            if home is None or home.partition(".")[0] == top_level(owner):
                return ""
            return f"!{function_name(inner)}"
    return ""


def _trains(kind: type) -> Callable[[Any], bool] | None:
    names = {part.__name__ for part in kind.__mro__}
    if "_DropoutNd" in names:
        return lambda module: module.p > 0
    if "_NormBase" in names or "RReLU" in names:
        return lambda module: True
    return None
