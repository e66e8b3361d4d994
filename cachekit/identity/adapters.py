"""Adapters of peft (LoRA and its relatives) in a model, described without their names.

What a user calls an adapter does not change compiled code; its rank, scale, targets and place in the order do. So
adapters are numbered: the active ones first, in the order they are applied, then the others as they were loaded.
Reads modules, changes nothing, never imports peft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cachekit.bundle import canonical
from cachekit.identity.stable import stable, top_level

_TUNER: Final = "BaseTunerLayer"
_COUNTED: Final = ("r", "scaling")


class Adapters:
    """The adapters of one model. ``root`` may carry ``peft_config``, which tells the order they were loaded in."""

    def __init__(self, root: Any, modules: Iterable[Any]) -> None:
        modules = list(modules)
        tuners = {kind for kind in set(map(type, modules)) if is_tuner(kind)}
        self._layers = [module for module in modules if type(module) in tuners] if tuners else []
        self._containers: set[int] = set()
        active = [name for layer in self._layers[:1] for name in _names(layer.active_adapters)]
        loaded = [str(name) for name in (getattr(root, "peft_config", None) or {})] if self._layers else []
        found = [name for layer in self._layers for name in self._keys(layer)]
        self._numbers = {name: f"@{n}" for n, name in enumerate(dict.fromkeys([*active, *loaded, *found]))}

    def __bool__(self) -> bool:
        return bool(self._layers)

    def child(self, parent: Any, name: str) -> str:
        """The name of a child or tensor of ``parent``, numbered where it is the name of an adapter."""
        return self._numbers.get(name, name) if id(parent) in self._containers else name

    def layer(self, tuner: Any) -> str:
        """What one tuner layer does with its adapters, as canonical text."""
        facts: dict[str, Any] = {
            "active": self._numbered(tuner.active_adapters),
            "merged": self._numbered(getattr(tuner, "merged_adapters", ())),
            "disabled": bool(getattr(tuner, "disable_adapters", False)),
        }
        for field, values in vars(tuner).items():
            if field[:1] != "_" and isinstance(values, Mapping) and values.keys() <= self._numbers.keys():
                facts[field] = {self._numbers[name]: stable(value) for name, value in values.items()}
        return canonical.dumps(facts).decode()

    def describe(self) -> list[dict[str, Any]] | None:
        """One summary for each adapter that has layers; None if there are none.

        ``r`` and ``scaling`` count the layers by value: ``{"r": {"4": 32}}`` is rank 4 in 32 layers.
        """
        summaries = [self._summary(name) for name in self._numbers]
        return [summary for summary in summaries if summary["layers"]] or None

    def _summary(self, name: str) -> dict[str, Any]:
        mine = [layer for layer in self._layers if name in self._keys(layer)]
        summary: dict[str, Any] = {
            "layers": len(mine),
            "active": sum(name in _names(layer.active_adapters) for layer in mine),
            "merged": sum(name in _names(getattr(layer, "merged_adapters", ())) for layer in mine),
            "disabled": sum(bool(getattr(layer, "disable_adapters", False)) for layer in mine),
        }
        for field in _COUNTED:
            values = [stable(getattr(layer, field, {}).get(name)) for layer in mine]
            summary[field] = dict(Counter(canonical.dumps(value).decode() for value in values))
        return summary

    def _numbered(self, names: Any) -> list[str]:
        return [self._numbers.get(name, name) for name in _names(names)]

    def _keys(self, tuner: Any) -> list[str]:
        """The adapters that this layer has weights for; the dicts that hold them are remembered."""
        found: dict[str, None] = {}
        names = (*getattr(tuner, "adapter_layer_names", ()), *getattr(tuner, "other_param_names", ()))
        for name in sorted({*names, "lora_dropout"}):
            container = getattr(tuner, name, None)
            if container is not None and hasattr(container, "keys"):
                self._containers.add(id(container))
                found.update(dict.fromkeys(map(str, container.keys())))
        return list(found)


def is_tuner(kind: type) -> bool:
    """Whether modules of this class wrap a layer with adapters."""
    return any(part.__name__ == _TUNER and top_level(part) == "peft" for part in kind.__mro__)


def _names(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else [str(name) for name in names or ()]
