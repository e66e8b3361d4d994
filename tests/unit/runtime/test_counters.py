"""What torch counted in a session's compiles, each once, on whatever thread."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from cachekit.runtime import torch_private
from cachekit.runtime.counters import Meter, Tally, snapshot

Counters = defaultdict[str, Counter[str]]


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    """Counters of this test's own in place of torch's."""
    counters: Counters = defaultdict(Counter)
    monkeypatch.setattr(torch_private, "compile_counters", lambda: counters)
    return counters


def miss(counters: Counters) -> None:
    """Have torch count a miss."""
    counters["inductor"]["fxgraph_cache_miss"] += 1


def test_only_what_happens_within_a_compile_counts(counters: Counters) -> None:
    """What others compile before, between and after is theirs."""
    tally = Tally()
    meter = Meter(tally)
    miss(counters)
    for _ in range(2):
        meter.begin(0)
        miss(counters)
        meter.end()
        miss(counters)

    assert tally.misses == {"inductor": 2}


def test_a_compile_within_a_compile_counts_once(counters: Counters) -> None:
    """What happens before, in and after the inner one is each counted, and no more than once."""
    tally = Tally()
    meter = Meter(tally)
    meter.begin(0)
    miss(counters)
    meter.begin(1)
    miss(counters)
    meter.end()
    miss(counters)
    meter.end()

    assert tally.misses == {"inductor": 3}


def test_a_compile_that_failed_is_over(counters: Counters) -> None:
    """What happens between its failure and the next compile is not counted."""
    tally = Tally()
    meter = Meter(tally)
    meter.begin(0)
    miss(counters)
    # It raised: nobody ends it.
    miss(counters)
    meter.begin(0)
    miss(counters)
    meter.end()

    assert tally.misses == {"inductor": 1}


def test_a_snapshot_holds_still_while_others_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that appears while the snapshot is taken breaks nothing."""

    class Growing(Counter[str]):
        def items(self) -> Any:
            for item in super().items():
                self[f"fxgraph_cache_{len(self)}"] = 1
                yield item

    counters = {"inductor": Growing({"fxgraph_cache_hit": 1}), "aot_autograd": Counter[str]()}
    monkeypatch.setattr(torch_private, "compile_counters", lambda: counters)

    assert snapshot()["inductor"] == {"fxgraph_cache_hit": 1}
