"""A stable JSON form of any Python value: the same in every process, on every machine, for the same meaning.

Fingerprints are made of what torch, diffusers and users put into configurations, processors and modules: dtypes,
enums, functions, whole objects. None of them may reach an id as a ``repr`` with an address in it, and no odd one may
raise. What has no better form is told by its type and its plain fields. Nothing here imports torch.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import math
import os
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from importlib import metadata
from typing import Any, Final

from cachekit.bundle import canonical
from cachekit.identity.source import class_source, function_source

LIBRARIES: Final[Mapping[str, str]] = {
    "accelerate": "accelerate",
    "bitsandbytes": "bitsandbytes",
    "diffusers": "diffusers",
    "flash_attn": "flash-attn",
    "flash_attn_interface": "flash-attn-3",
    "gguf": "gguf",
    "kernels": "kernels",
    "optimum": "optimum-quanto",
    "peft": "peft",
    "sageattention": "sageattention",
    "torchao": "torchao",
    "transformers": "transformers",
    "xformers": "xformers",
}
"""Top-level packages whose code is told by their distribution's version, and that distribution's name."""

_ALWAYS_KNOWN: Final = frozenset({"torch", "triton", "numpy"}) | sys.stdlib_module_names
_MAX_DEPTH: Final = 4
_SCALARS: Final = frozenset({bool, int, str, type(None)})


def stable(value: Any, *, depth: int = 0) -> Any:
    """``value`` as plain JSON. Never raises, never tells an address, and tells unequal plain values apart.

    Absolute paths become their last part and a short hash, so that they can differ without being told.
    """
    try:
        return _stable(value, depth)
    except Exception as exc:  # noqa: BLE001 - an exotic object may raise anything from any attribute
        return {"unreadable": type(exc).__name__, "type": type_name(type(value))}


def _stable(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return hide_path(value) if kind is str else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else f"float:{float(value)}"
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, str):
        return hide_path(str(value))
    if isinstance(value, os.PathLike):
        return hide_path(os.fsdecode(value))
    if depth >= _MAX_DEPTH:
        return {"type": type_name(kind)}
    if isinstance(value, Mapping):
        return {_key(key): stable(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [stable(item, depth=depth + 1) for item in value]
    if isinstance(value, AbstractSet):
        return {"set": sorted((stable(item, depth=depth + 1) for item in value), key=canonical.dumps)}
    return _special(value, depth)


def _special(value: Any, depth: int) -> Any:
    """Code, torch's small value types, and everything else by its type and fields."""
    if isinstance(value, type):
        return type_name(value)
    if isinstance(value, functools.partial):
        bound = [stable(part, depth=depth + 1) for part in (value.func, value.args, value.keywords)]
        return {"partial": bound}
    if isinstance(value, types.ModuleType):
        return f"module:{value.__name__}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return function_name(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes:" + _short(bytes(value))
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ in _TORCH_VALUES:
        return str(value)
    if kind.__module__.partition(".")[0] == "torch" and isinstance(getattr(value, "name", None), str):
        return f"{kind.__name__}.{value.name}"  # the enums of torch._C are not Python enums
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return stable(value.item(), depth=depth + 1)
    if hasattr(kind, "__torch_function__") and hasattr(value, "shape"):
        return {"type": type_name(kind), "shape": [int(n) for n in value.shape], "dtype": str(value.dtype)}
    return {"type": type_name(kind), **_fields(value, depth)}


_TORCH_VALUES: Final = frozenset({"dtype", "device", "layout", "memory_format", "qscheme"})


def _fields(value: Any, depth: int) -> dict[str, Any]:
    """The public plain fields of an object; other objects in it only by their type."""
    try:
        found = vars(value)
    except TypeError:
        names = [name for part in type(value).__mro__ for name in getattr(part, "__slots__", ())]
        found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    public = {name: item for name, item in found.items() if isinstance(name, str) and name[:1] != "_"}
    return (
        {"fields": {name: stable(item, depth=depth + 1) for name, item in public.items()}} if public else {}
    )


def _key(key: Any) -> str:
    return key if type(key) is str else f"{type(key).__name__}:{canonical.dumps(stable(key)).decode()}"


def hide_path(text: str) -> str:
    """``text``, or for an absolute path its last part and a hash: ``g++@1f0c…``."""
    if text[:1] not in ("/", "~", "\\") and text[1:3] not in (":\\", ":/"):
        return text
    tail = text.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return f"{tail}@{_short(text.encode())}"


# --- names of code -------------------------------------------------------------------------------------------------


def top_level(code: Any) -> str:
    """The top-level package that a class or function was defined in."""
    return str(getattr(code, "__module__", None) or "").partition(".")[0]


def is_library(code: Any) -> bool:
    """Whether the version of a known package tells what this class or function does."""
    return _is_known(top_level(code))


@functools.cache
def _is_known(top: str) -> bool:
    """A package that is not installed as a distribution is somebody's own, whatever its name."""
    return top in _ALWAYS_KNOWN or (top in LIBRARIES and version_of(LIBRARIES[top]) is not None)


@functools.cache
def version_of(distribution: str) -> str | None:
    """The installed version of a distribution; None if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def type_name(kind: type) -> str:
    """A class by name: library classes with their module, others with a hash of their source instead.

    The module of user code is left out, because the same file is ``__main__`` here and ``engine.model`` there.
    """
    try:
        return _type_names[kind]
    except (KeyError, TypeError):
        name = _type_name(kind)
    try:
        _type_names[kind] = name
    except TypeError:
        return name
    return name


_type_names: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _type_name(kind: type) -> str:
    if is_library(kind):
        return (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
    own = [part for part in kind.__mro__ if not is_library(part)]
    return f"{kind.__qualname__}#{_short(''.join(map(class_source, own)).encode())}"


def function_name(function: Any) -> str:
    """A function or other callable by name; user code with a hash of its source and plain closure values.

    Decorators count as well: what they wrap is told behind them.
    """
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__qualname__"):
        inner = getattr(function, "func", None)  # functools.partial
        return f"partial {function_name(inner)}" if callable(inner) else type_name(type(function))
    name, home = str(function.__qualname__), defined_in(function)
    if _is_known(home.partition(".")[0]) or not hasattr(function, "__code__"):
        name = f"{home}.{name}".lstrip(".")
    else:
        kept = [stable(value, depth=_MAX_DEPTH - 1) for value in _closure(function)]
        name += "#" + _short(function_source(function.__code__).encode() + canonical.dumps(kept))
    wrapped = getattr(function, "__wrapped__", None)
    return f"{name} <- {function_name(wrapped)}" if callable(wrapped) else name


def _closure(function: Any) -> list[Any]:
    """Plain values a function carries: its defaults and closure cells, other objects left out."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # still empty: the function refers to itself
            continue
    return [value for value in (*(function.__defaults__ or ()), *cells) if type(value) in (*_SCALARS, float)]


def unwrap_ours(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """``function`` without wrappers that cachekit put around it; None for a hook of cachekit's own.

    ``functools.wraps`` copies ``__module__``, so a wrapper is known by the module its globals belong to.
    """
    current: Any = function
    while current is not None and defined_in(current).partition(".")[0] == "cachekit":
        current = getattr(current, "__wrapped__", None)
    return current if callable(current) else None


def defined_in(function: Any) -> str:
    """The module a callable was really written in."""
    function = getattr(function, "func", function)
    function = getattr(function, "__func__", function)
    found = getattr(function, "__globals__", None)
    if isinstance(found, dict):
        return str(found.get("__name__", ""))
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
