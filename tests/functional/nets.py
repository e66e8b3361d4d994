"""Small modules for scripts that tests run in processes of their own.

``Product`` compiles in a second, because a matrix product needs no C++ kernel; ``Kernel`` has one. Two instances of a
class share code objects, which is what Dynamo's memory goes by.
"""

from __future__ import annotations

import torch


class Product(torch.nn.Module):
    """A matrix product of its input with a weight: one graph, no C++ kernel."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((size, size), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One product."""
        return x @ self.weight


class OtherProduct(Product):
    """Another model: two products."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two products."""
        return x @ self.weight @ self.weight.T


class Kernel(torch.nn.Module):
    """Pointwise work that becomes one C++ kernel on a CPU."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pointwise."""
        return (x * self.weight).sigmoid() + x.exp()
