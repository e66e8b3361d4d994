"""What the measured processes call: modules whose forward costs next to nothing, so that what is added shows."""

from __future__ import annotations

from typing import Any

import torch


class Pointwise(torch.nn.Module):
    """Pointwise work that becomes one kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) to the same."""
        return (x * self.weight).sigmoid() + x.exp()


class Empty(torch.nn.Module):
    """Does nothing with one tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What it was given."""
        return x


class EmptyDenoiser(torch.nn.Module):
    """Does nothing with what a diffusers transformer is given."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        encoder_hidden_states: torch.Tensor,
        pooled_projections: torch.Tensor,
        timestep: torch.Tensor,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
        guidance: torch.Tensor,
        added_cond_kwargs: dict[str, torch.Tensor],
        joint_attention_kwargs: dict[str, Any],
        return_dict: bool = True,
    ) -> tuple[torch.Tensor]:
        """What it was given."""
        return (hidden_states,)

    @staticmethod
    def inputs(device: str) -> dict[str, Any]:
        """One call's keyword arguments: nine tensors, two of them in a dict, and a nested dict of scalars."""
        with torch.device(device):
            return {
                "hidden_states": torch.zeros(2, 256, 64),
                "encoder_hidden_states": torch.zeros(2, 77, 64),
                "pooled_projections": torch.zeros(2, 32),
                "timestep": torch.zeros(2),
                "img_ids": torch.zeros(256, 3),
                "txt_ids": torch.zeros(77, 3),
                "guidance": torch.zeros(2),
                "added_cond_kwargs": {"text_embeds": torch.zeros(2, 64), "time_ids": torch.zeros(2, 6)},
                "joint_attention_kwargs": {"scale": 1.0, "gligen": None},
                "return_dict": False,
            }


class Block(torch.nn.Module):
    """One of many equal ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One product."""
        return self.linear(x)  # type: ignore[no-any-return]


class Stack(torch.nn.Module):
    """``count`` equal blocks, which a plan by blocks compiles one by one."""

    _repeated_blocks = ("Block",)

    def __init__(self, count: int, width: int = 8) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through all of them."""
        for block in self.blocks:
            x = block(x)
        return x
