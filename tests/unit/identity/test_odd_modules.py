"""Whatever a module is made of, it gets a fingerprint: the same twice, and another one than its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from cachekit.identity import Plan, fingerprint

nn = torch.nn


class Hostile:
    """Raises from every attribute, comparison and repr."""

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError


class Number(int):
    """A number that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        return 0


class Unreadable(nn.Module):
    """A module whose configuration raises."""

    @property
    def config(self) -> Any:
        """Never readable."""
        raise RuntimeError


class Uninitialised(nn.Module):
    """A module whose author forgot ``super().__init__()``."""

    def __init__(self) -> None:
        pass


class Padding(nn.Module):
    """A class attribute, an equal instance attribute, and one that differs."""

    size = 4

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        if size is not None:
            self.size = size


def with_dict(**attributes: Any) -> nn.Module:
    """A module that carries odd attributes, put past torch's own checks."""
    module = nn.Linear(2, 2)
    module.__dict__.update(attributes)
    return module


def with_weight(weight: torch.Tensor) -> nn.Module:
    """A layer with an odd weight."""
    module = nn.Linear(2, 2)
    module.weight = nn.Parameter(weight, requires_grad=False)
    return module


def quantised(kind: Any) -> nn.Module:
    """A layer whose weight is of a tensor class with a quant type of its own."""

    class Packed(nn.Parameter):
        pass

    module = nn.Linear(2, 2)
    packed = torch.Tensor._make_subclass(Packed, torch.ones(2, 2))
    packed.quant_type = kind
    module.weight = packed
    return module


def cyclic() -> nn.Module:
    """A child that refers back to its parent."""
    module = nn.Module()
    module.child = nn.Linear(2, 2)
    module.child.parent = module
    return module


def shared() -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, layer)


def traced() -> nn.Module:
    """A TorchScript module, which numbers its classes by process."""
    return torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))


def graph_module(operator: Callable[[Any], Any]) -> nn.Module:
    """A module made of a traced graph: its class is made for it and its code is generated."""

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return operator(x)

    return torch.fx.symbolic_trace(Net())


ODD: dict[str, Callable[[], nn.Module]] = {
    "empty": nn.Module,
    "hostile attribute": lambda: with_dict(h=Hostile(), many=[Hostile()]),
    "hostile processor": lambda: with_dict(processor=Hostile()),
    "hostile config": lambda: with_dict(config=Hostile()),
    "hostile hooks": lambda: with_dict(_hf_hook=Hostile(), _diffusers_hook=Hostile(), forward=Hostile()),
    "uncomparable number": lambda: with_dict(size=Number(3)),
    "unreadable config": Unreadable,
    "uninitialised": Uninitialised,
    "infinite": lambda: with_dict(limit=float("inf")),
    "nan": lambda: with_dict(limit=float("nan")),
    "nested tuple": lambda: with_dict(axes=((1, 2), (3, 4))),
    "other nested tuple": lambda: with_dict(axes=((1, 2), (3, 5))),
    "dtype attribute": lambda: with_dict(compute=torch.float16),
    "function attribute": lambda: with_dict(act=nn.functional.gelu),
    "other function attribute": lambda: with_dict(act=nn.functional.silu),
    "lazy": lambda: nn.LazyLinear(3),
    "parameter list": lambda: nn.ParameterList([nn.Parameter(torch.ones(2))]),
    "parameter dict": lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}),
    "sparse": lambda: with_weight(torch.eye(2).to_sparse()),
    "transposed": lambda: with_weight(torch.ones(2, 2).t().contiguous().t()),
    "complex": lambda: with_weight(torch.ones(2, 2, dtype=torch.complex64)),
    "float8": lambda: with_weight(torch.ones(2, 2).to(torch.float8_e4m3fn)),
    "tensor of tensors": lambda: with_weight(TwoTensor(torch.ones(2, 2), torch.ones(2, 2))),
    "tensor of halves": lambda: with_weight(TwoTensor(torch.ones(2, 2).half(), torch.ones(2, 2).half())),
    "quant type by name": lambda: quantised("nf4"),
    "other quant type by name": lambda: quantised("fp4"),
    "quant type by number": lambda: quantised(12),
    "unknown quant type": lambda: quantised(9999),
    "hostile quant type": lambda: quantised(Hostile()),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "cyclic": cyclic,
    "shared": shared,
    "not shared": lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
    "traced by TorchScript": traced,
    "with a part of TorchScript": lambda: nn.Sequential(traced()),
    "graph": lambda: graph_module(lambda x: x + 1),
    "other graph": lambda: graph_module(lambda x: x * 2),
    "buffer": lambda: nn.BatchNorm1d(2, affine=False).eval(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Lazy modules are a new feature")
def test_odd_modules_have_fingerprints_of_their_own() -> None:
    """Nothing raises, twice the same, and no two of them are alike."""
    plan = Plan("cpu")
    ids = {name: fingerprint(make(), plan).id for name, make in ODD.items()}

    assert {name: fingerprint(make(), plan).id for name, make in ODD.items()} == ids
    assert sorted(set(ids.values())) == sorted(ids.values())


def test_what_equals_the_default_of_the_class_is_not_told() -> None:
    """Setting an attribute to what the class says anyway changes nothing."""
    ids = [fingerprint(Padding(size), Plan("cpu")).id for size in (None, 4, 5)]

    assert ids[0] == ids[1] != ids[2]


def test_layerwise_casting(flux: Callable[..., Any]) -> None:
    """Weights stored in float8 and cast on the way: other dtypes, and hooks that say so."""
    a, b = flux(), flux()
    b.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.bfloat16)
    told = {each.path for each in fingerprint(a, Plan("cpu")).diff(fingerprint(b, Plan("cpu")))}

    assert "pipeline.denoisers.module.dtypes.float8_e4m3fn" in told
    assert any(path.startswith("pipeline.denoisers.module.hooks.") for path in told)


def test_offloading(flux: Callable[..., Any]) -> None:
    """accelerate's offloading runs around the denoiser; removing it returns to the first id."""
    from accelerate.hooks import CpuOffload, add_hook_to_module, remove_hook_from_module

    model = flux()
    before = fingerprint(model, Plan("cpu"))
    add_hook_to_module(model, CpuOffload("cpu"))
    told = before.diff(fingerprint(model, Plan("cpu")))

    assert [each.path for each in told] == ["pipeline.denoisers.module.hooks.(root)"]
    assert "CpuOffload" in told[0].theirs
    remove_hook_from_module(model)
    assert fingerprint(model, Plan("cpu")) == before
