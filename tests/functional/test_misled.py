"""Settings and modes of torch under which a cache does nothing, or something else: told as what they are."""

from __future__ import annotations

import pytest

from tests.functional.conftest import Run

pytestmark = pytest.mark.slow


def test_a_start_is_told_what_misleads_it(process: Run) -> None:
    """With torch's cache off the session says so and keeps nothing; autograd's graph is not the one that was kept."""
    told = process(
        """
        def start(grad):
            module = Product()
            session = cachekit.attach(module, dir=store)
            with torch.set_grad_enabled(grad):
                output = module(torch.ones(4, 8)).sum().item()
            session.close()
            return output, session.report().to_json()

        torch._inductor.config.fx_graph_cache = False
        off, disabled = start(False)
        kept = os.path.exists(store)
        torch._inductor.config.fx_graph_cache = True
        _, first = start(False)
        _, other = start(True)
        _, again = start(False)
        tell(off=off, disabled=disabled, kept=kept, first=first, other=other, again=again)
        """
    )

    assert told["off"] == 128.0
    assert told["disabled"]["state"] == "closed"
    assert told["disabled"]["saved_generations"] == []
    assert not told["kept"]
    (line,) = told["stderr"].splitlines()
    assert "cachekit is disabled for this pipeline: torch._inductor.config.fx_graph_cache is False" in line
    assert "unset TORCHINDUCTOR_FX_GRAPH_CACHE" in line

    assert told["first"]["saved_generations"] == [1]
    assert told["other"]["installed"]
    assert not told["other"]["inert"]
    assert told["other"]["effective"] is None
    assert told["other"]["saved_generations"] == [2]
    assert told["again"]["effective"] is not None
    assert told["again"]["misses"] == {}
