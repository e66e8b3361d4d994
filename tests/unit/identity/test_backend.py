"""The fingerprint asked for from inside a compile is the one asked for outside, whatever torch sets meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo

from cachekit.identity import Fingerprint, Plan, fingerprint


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(
    module: torch.nn.Module, plan: Plan, found: list[Fingerprint], **more: Any
) -> Callable[..., Any]:
    """``module`` compiled by a backend that only asks for fingerprints."""

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(fingerprint(module, plan))
        return graph.forward

    return torch.compile(module, backend=backend, dynamic=plan.dynamic, fullgraph=plan.fullgraph, **more)


@pytest.mark.parametrize("dynamic", [True, False, None])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_inside_the_backend(dynamic: bool | None, fullgraph: bool) -> None:
    """Static, dynamic and undecided; the second shape recompiles and gives the same answer."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Dropout(0.0))
    plan, found = Plan("cpu", dynamic=dynamic, fullgraph=fullgraph), []
    before = fingerprint(module, plan)
    with torch.no_grad():
        run = compiled(module, plan, found)
        run(torch.ones(2, 4))
        run(torch.ones(3, 4))

    assert len(found) >= 1
    assert set(found) == {before}
    assert fingerprint(module, plan) == before


def test_by_blocks_of_a_transformer(flux: Callable[..., Any]) -> None:
    """Regional compiles of a whole denoiser in a forward with autocast off, as a pipeline runs it."""
    model = flux().eval()
    plan, found = Plan("cpu", scope="blocks", dynamic=True, fullgraph=True), []
    before = fingerprint(model, plan)

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(fingerprint(model, plan))
        return graph.forward

    model.compile_repeated_blocks(backend=backend, dynamic=True, fullgraph=True)
    with torch.no_grad():
        model(
            hidden_states=torch.ones(1, 6, 4),
            encoder_hidden_states=torch.ones(1, 5, 8),
            pooled_projections=torch.ones(1, 8),
            timestep=torch.ones(1),
            img_ids=torch.zeros(6, 3),
            txt_ids=torch.zeros(5, 3),
        )

    assert len(found) >= 2
    assert set(found) == {before}


def test_autocast_of_the_engine_is_seen() -> None:
    """An engine that runs the pipeline under autocast compiles something else, and the backend is told so."""
    module, plan, found = torch.nn.Linear(4, 4), Plan("cpu"), []
    before = fingerprint(module, plan)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(module, plan, found)(torch.ones(2, 4))

    (inside,) = set(found)
    assert [each.path for each in before.diff(inside)] == ["toolchain.flags.dtypes.autocast.cpu"]
