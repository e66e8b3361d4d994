"""A plain ``torch.nn.Module`` as a target: each call is a generation; the engine names its shapes itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachekit.bundle import Shape
from cachekit.runtime.session import Session


class ModuleTarget:
    """One module and its calls."""

    def __init__(self, module: Any) -> None:
        self.target = module

    def denoisers(self) -> list[tuple[str, Any]]:
        """The module itself, under the name that signatures carry."""
        return [("module", self.target)]

    def label(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shape | None:
        """Nothing tells what people call a plain module's shapes: ``Session.register_shape`` does."""
        return None

    def watch(self, session: Session) -> None:
        """Nothing to watch: every successful call is a finished generation."""
