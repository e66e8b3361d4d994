"""The structure of one denoiser: everything about its modules and tensors that compiled code depends on.

One walk over the module tree gives names, classes, plain attributes, shapes, dtypes and quant types. Weights are
never read, so a module on the meta device has the structure of a loaded one. Meant to be run at every backend call:
a model of 2,000 parameters takes a few milliseconds.

Left out on purpose: ``requires_grad``, and ``training`` where it changes nothing, because loading and removing a LoRA
leaves both changed; hooks of cachekit's own; what ``torch.compile`` wraps around modules.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import torch

from cachekit.bundle import canonical
from cachekit.identity.adapters import Adapters
from cachekit.identity.attention import Attention
from cachekit.identity.classes import Classes, ClassFacts
from cachekit.identity.compact import compact
from cachekit.identity.pipeline import config_of, unwrapped
from cachekit.identity.stable import LIBRARIES, function_name, stable, top_level, type_name, unwrap_ours

_PLAIN: Final = frozenset({int, float, bool})
_LEFT_OUT: Final = frozenset(vars(torch.nn.Module())) | {
    "gradient_checkpointing",
    "device",
    "processor",
    "forward",
}
_MAX_SEQUENCE: Final = 32
_ROOT: Final = "(root)"
_UNSET: Final = object()
_MANGLED: Final = re.compile(r"___torch_mangle_\d+\.")  # TorchScript numbers its classes by process


@dataclass
class Structure:
    """What one walk found. ``packages`` are the distributions whose code it runs, attention back ends left out."""

    lines: dict[str, list[str]] = field(default_factory=dict)
    modules: int = 0
    fused: int = 0
    training: int = 0
    dtypes: list[str] = field(default_factory=list)
    quants: list[tuple[str, str]] = field(default_factory=list)
    hooks: list[tuple[str, str]] = field(default_factory=list)
    attention: Attention = field(default_factory=Attention)
    adapters: list[dict[str, Any]] | None = None
    packages: set[str] = field(default_factory=set)

    def describe(self, *, default_backend: str) -> dict[str, Any]:
        """The structure as JSON. ``default_backend`` is the attention back end where a processor names none.

        Each group (a child of the root) has its own digest, so that a difference says where it is.
        """
        groups = {name: _digest(lines) for name, lines in self.lines.items()}
        return {
            "structure": {
                "digest": _digest(f"{name}={digest}" for name, digest in groups.items()),
                "groups": groups,
                "modules": self.modules,
                "tensors": len(self.dtypes),
            },
            "dtypes": dict(Counter(self.dtypes)),
            "quantization": _quantization(self.quants),
            "attention": self.attention.describe(default_backend=default_backend),
            "adapters": self.adapters,
            "fused_projections": self.fused,
            "training": self.training,
            "hooks": compact(self.hooks),
        }


def examine(root: torch.nn.Module) -> Structure:
    """Walk ``root``. Reads names and metadata only; safe on meta, quantised, offloaded and compiled modules."""
    structure, classes = Structure(), Classes()
    # Without this each look at a GGUF parameter's shape would run its __torch_function__: 20 times slower.
    with torch._C.DisableTorchFunctionSubclass():
        nodes = list(walk(root))
        known = Adapters(root, [module for _, _, module in nodes])
        adapted = bool(known)
        if adapted:
            structure.adapters = known.describe()
            nodes = list(walk(root, known))
        has_config = config_of(root) is not None
        for group, path, module in nodes:
            facts = classes.of(type(module))
            lines = structure.lines.setdefault(group, [])
            if not isinstance(module.__dict__.get("_modules"), dict):
                lines.append(f"{path}|{facts.name}|{_opaque(module)}")
                continue
            # A configured root is told by its config; what else hangs on it is often a counter of some step cache.
            plain = "" if module is root and has_config else _attributes(module, facts)
            lines.append(f"{path}|{facts.name}|{plain}{_extra(module, facts, known)}")
            _look(structure, path, module, facts)
            for kind, tensors in (("", module._parameters), ("|buffer", module._buffers)):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        own = known.child(module, name) if adapted else name
                        lines.append(_tensor(structure, f"{path}.{own}", tensor) + kind)
    structure.packages |= classes.packages
    return structure


def walk(root: torch.nn.Module, known: Adapters | None = None) -> Iterator[tuple[str, str, torch.nn.Module]]:
    """Each module once as (child of the root it belongs to, dotted path, module).

    A module that stands in two places is told at the first; ``torch.compile``'s wrappers are passed through.
    """
    seen: set[int] = set()
    stack: list[tuple[str, str, Any]] = [(_ROOT, "", root)]
    while stack:
        group, path, module = stack.pop()
        module = unwrapped(module)
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield group, path, module
        children = module.__dict__.get("_modules")
        for name in reversed(children) if isinstance(children, dict) else ():
            child = children[name]
            if child is not None:
                own = name if known is None else known.child(module, name)
                stack.append((group if path else own, f"{path}.{own}" if path else own, child))


def _opaque(module: Any) -> str:
    """A TorchScript module, whose parts are not Python's to look at, or one that was never initialised."""
    code = getattr(module, "code", None)
    return f"opaque {_digest([_MANGLED.sub('', code)])}" if isinstance(code, str) else "opaque"


def _extra(module: Any, facts: ClassFacts, known: Adapters) -> str:
    """What an adapter layer does with its adapters, and the generated code of an FX graph module."""
    if facts.tuner:
        return f"|{known.layer(module)}"
    code = module.__dict__.get("_code")
    return f"|{_digest([code])}" if isinstance(code, str) else ""


def _attributes(module: Any, facts: ClassFacts) -> str:
    """Plain public attributes: strides, eps, flags. Weak ones (None, objects, paths) do not decide code here."""
    told = []
    attributes = module.__dict__
    for name in sorted(attributes.keys() - _LEFT_OUT):
        value = attributes[name]
        if name[:1] == "_" or value is None:
            continue
        try:
            text = repr(value) if type(value) in _PLAIN else _plain(value)
            if text and facts.defaults.get(name, _UNSET) != value:
                told.append(f"{name}={text}")
        except Exception as exc:  # noqa: BLE001 - an exotic object may raise anything from any attribute
            told.append(f"{name}=unreadable:{type(exc).__name__}")
    return ",".join(told)


def _plain(value: Any) -> str:
    """A plain value as text, or ``""`` for one that is not."""
    kind = type(value)
    if kind is str:
        return "" if "/" in value or "\\" in value else repr(value)
    if kind is torch.dtype:
        return str(value)
    if isinstance(value, (tuple, list)):
        if _PLAIN.issuperset(map(type, value)):
            return repr(tuple(value)) if len(value) <= _MAX_SEQUENCE else ""
        parts = [repr(part) if type(part) in _PLAIN else _plain(part) for part in value[:_MAX_SEQUENCE]]
        return f"({','.join(parts)})" if all(parts) and len(value) <= _MAX_SEQUENCE else ""
    if kind is FunctionType or kind is BuiltinFunctionType:
        return function_name(value)
    if isinstance(value, (enum.Enum, int, float)):
        return canonical.dumps(stable(value)).decode()
    return ""


def _look(structure: Structure, path: str, module: Any, facts: ClassFacts) -> None:
    """What is counted or folded besides the lines: attention, hooks, fused projections, training."""
    structure.modules += 1
    attributes = module.__dict__
    processor = attributes.get("processor") or module._modules.get("processor")
    if processor is not None:
        structure.attention.add(path, processor)
    if attributes.get("fused_projections") is True:
        structure.fused += 1
    if facts.trains and module.training and facts.trains(module):
        structure.training += 1
    if module._forward_hooks or module._forward_pre_hooks or not _HOOKED.isdisjoint(attributes):
        try:
            told = "; ".join(_hooks(module))
        except Exception as exc:  # noqa: BLE001 - code of users
            told = f"unreadable:{type(exc).__name__}"
        structure.hooks.extend([(path or _ROOT, told)] if told else [])


_HOOKED: Final = frozenset({"forward", "_hf_hook", "_diffusers_hook"})


def _hooks(module: Any) -> Iterator[str]:
    """What runs around or instead of this module's forward: torch's, accelerate's and diffusers' hooks, patches."""
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        kept = unwrap_ours(hook)
        if kept is not None:
            yield f"hook {function_name(kept)}"
    attributes = module.__dict__
    if "_hf_hook" in attributes:
        yield f"accelerate {type_name(type(attributes['_hf_hook']))}"
    registry = attributes.get("_diffusers_hook")
    for name, hook in getattr(registry, "hooks", {}).items():
        yield f"diffusers {name} {canonical.dumps(stable(hook)).decode()}"
    own = attributes.get("forward")
    kept = unwrap_ours(own) if own is not None else None
    if kept is not None and getattr(kept, "__func__", None) is not type(module).forward:
        yield f"forward {function_name(kept)}"


# --- tensors -------------------------------------------------------------------------------------------------------

_dtype_names: dict[torch.dtype, str] = {}


def _tensor(structure: Structure, path: str, tensor: torch.Tensor) -> str:
    """One line for one tensor: shape, dtype, layout if unusual, and what its class adds."""
    try:
        dtype = _dtype_names.get(tensor.dtype) or _dtype_names.setdefault(tensor.dtype, str(tensor.dtype)[6:])
        structure.dtypes.append(dtype)
        text = f"{path}|{tuple(tensor.shape)}|{dtype}"
        if not tensor.is_contiguous():
            text += f"|{tensor.stride()}"
    except (RuntimeError, ValueError):  # a sparse tensor has no strides, a lazy parameter no shape yet
        return f"{path}|{type_name(type(tensor))}|{tensor.layout}"
    kind = type(tensor)
    if kind is torch.nn.Parameter or kind is torch.Tensor:
        return text
    try:
        return f"{text}|{_subclass(structure, path, tensor)}"
    except Exception as exc:  # noqa: BLE001 - subclasses of users
        return f"{text}|{type_name(kind)} unreadable:{type(exc).__name__}"


def _subclass(structure: Structure, path: str, tensor: Any) -> str:
    """What a tensor subclass adds: the quant type of a GGUF parameter, the parts of a traceable one, fields."""
    name, top = type_name(type(tensor)), top_level(type(tensor))
    structure.packages.update({LIBRARIES[top]} if top in LIBRARIES else ())
    quant = getattr(tensor, "quant_type", None)
    if quant is not None:
        told = quant_name(quant)
        structure.quants.append((path, told))
        structure.packages.update({"gguf"} if name.endswith("GGUFParameter") else ())
        return f"{name} {told}"
    if hasattr(tensor, "__tensor_flatten__"):
        parts, context = tensor.__tensor_flatten__()
        inner = {
            part: [list(getattr(tensor, part).shape), str(getattr(tensor, part).dtype)] for part in parts
        }
        structure.quants.append((path, name))
        return f"{name} {canonical.dumps([inner, stable(context)]).decode()}"
    return name


def quant_name(quant: Any) -> str:
    """``Q4_K`` for gguf's enum member or its number; other libraries' text as it is."""
    if isinstance(quant, enum.Enum):
        return quant.name
    if isinstance(quant, int):
        import gguf

        try:
            return str(gguf.GGMLQuantizationType(quant).name)
        except ValueError:
            return f"type-{quant}"
    return str(stable(quant))


def _quantization(quants: list[tuple[str, str]]) -> dict[str, Any] | None:
    if not quants:
        return None
    return {"types": dict(Counter(kind for _, kind in quants)), "layers": compact(quants)}


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
