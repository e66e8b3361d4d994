"""Counters, facts and the report: what is claimed is what happened."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch

from cachekit.runtime import counters
from cachekit.runtime.counters import Snapshot, Tally
from cachekit.runtime.facts import Facts
from cachekit.runtime.installer import Installed
from cachekit.runtime.profile import Needs
from cachekit.runtime.report import Report


def counted(**found: int) -> Snapshot:
    """A snapshot: ``fxgraph_*`` names are Inductor's, all others AOTAutograd's."""
    inductor = {name: n for name, n in found.items() if name.startswith("fxgraph")}
    return {"inductor": inductor, "aot_autograd": {n: v for n, v in found.items() if n not in inductor}}


# --- counters ------------------------------------------------------------------------------------------------------


def test_a_tally_counts_the_difference() -> None:
    """What the process had counted before this session's compile is not this session's."""
    tally = Tally()

    tally.add(counted(fxgraph_cache_hit=5), counted(fxgraph_cache_hit=7, autograd_cache_hit=2))

    assert tally.hits == {"inductor": 2, "aot_autograd": 2}
    assert tally.misses == {}
    assert tally.raw == {"inductor.fxgraph_cache_hit": 2, "aot_autograd.autograd_cache_hit": 2}


def test_a_tally_adds_up() -> None:
    """Each compile adds to those before."""
    tally = Tally()

    for _ in range(3):
        tally.add(counted(), counted(fxgraph_cache_miss=1, autograd_cache_saved=1, autograd_cache_bypass=1))

    assert tally.misses == {"inductor": 3, "aot_autograd": 3}
    assert tally.bypasses == {"aot_autograd": 3}


def test_an_attempt_that_was_restarted_is_no_miss() -> None:
    """Only what had to be made counts as missed: a lookup that was abandoned made nothing."""
    tally = Tally()

    tally.add(counted(), counted(autograd_cache_miss=2, autograd_cache_saved=1))

    assert tally.misses == {"aot_autograd": 1}
    assert tally.raw["aot_autograd.autograd_cache_miss"] == 2


def test_what_graphs_share_is_counted_once() -> None:
    """A kernel that two graphs use was made or found once."""
    tally = Tally()

    tally.add_each("kernel", {"a": True, "b": False})
    tally.add_each("kernel", {"b": False, "a": False, "c": False})

    assert tally.misses == {"kernel": 1}
    assert tally.hits == {"kernel": 2}


def test_nothing_is_not_counted_as_zero() -> None:
    """Kinds of which nothing happened are left out."""
    tally = Tally()

    tally.add(counted(fxgraph_cache_hit=1), counted(fxgraph_cache_hit=1))
    tally.add_each("kernel", {})

    assert (tally.hits, tally.misses, tally.bypasses, tally.raw) == ({}, {}, {}, {})


def test_the_snapshot_is_of_torch_s_counters() -> None:
    """It holds the cache counters of both groups, as they are now, and does not move with them."""
    torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] += 1
    before = counters.snapshot()
    torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] += 2
    torch._dynamo.utils.counters["inductor"]["pattern_matcher_count"] += 1

    tally = Tally()
    tally.add(before, counters.snapshot())

    assert before.keys() == {"inductor", "aot_autograd"}
    assert tally.hits == {"inductor": 2}
    assert tally.raw == {"inductor.fxgraph_cache_hit": 2}


# --- facts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def facts() -> Facts:
    """Facts of a session that installed something."""
    found = Facts()
    found.add_installed(Installed(counts=Counter(inductor=2), problems=["one blob was lost"]))
    found.load_s = 1.0
    return found


def test_nothing_is_claimed_before_a_covered_call(facts: Facts) -> None:
    """Until something that the bundle covers ran, it is neither effective nor inert."""
    assert facts.effective is None
    assert not facts.inert

    facts.add_call(20.0, None, hit=False)

    assert facts.effective is None
    assert facts.calls_s == 20.0
    assert facts.warm_calls_s == 0.0


def test_a_warm_call_that_hit_and_was_quicker_is_effective(facts: Facts) -> None:
    """The load counts against what was saved."""
    facts.add_call(2.0, [40.0, 46.0], hit=True)

    assert facts.effective is True
    assert facts.cold_s == 86.0
    assert not facts.inert


def test_hits_that_save_nothing_are_not_effective(facts: Facts) -> None:
    """Loading and the first call took longer than the cold compile had."""
    facts.add_call(2.0, [2.5], hit=True)

    assert facts.effective is False
    assert not facts.inert


def test_a_quick_call_without_a_hit_is_inert(facts: Facts) -> None:
    """A bundle that covers the call and hits nothing is not effective, however quick this machine is."""
    facts.add_call(2.0, [86.0], hit=False)

    assert facts.effective is False
    assert facts.inert


def test_hits_on_one_s_own_compiles_prove_nothing(facts: Facts) -> None:
    """A covered call that hit nothing stays inert when the session finds again what it compiled then."""
    facts.add_call(2.0, [86.0], hit=False)
    facts.add_call(0.1, None, hit=True)

    assert facts.inert
    assert facts.effective is False
    assert facts.saved_s == 0.0


def test_without_anything_installed_nothing_is_inert() -> None:
    """Where there is no bundle there is nothing to warn of."""
    facts = Facts()

    facts.add_call(2.0, [86.0], hit=False)

    assert not facts.inert


def test_installations_add_up(facts: Facts) -> None:
    """A pipeline that changed installs another bundle; each problem is told once."""
    facts.add_installed(
        Installed(
            counts=Counter(inductor=1, kernel=0),
            skipped=Counter({"arch": 2}),
            problems=["one blob was lost", "another"],
        )
    )

    assert facts.installed == {"inductor": 3}
    assert facts.skipped == {"arch": 2}
    assert facts.reasons == ["one blob was lost", "another"]


def test_kernels_and_autotuning_are_counted(facts: Facts) -> None:
    """torch's counters leave them out."""
    facts.count(Needs(kernels={"a": True, "b": False}, tuned={"c": False}))

    assert facts.tally.misses == {"kernel": 1}
    assert facts.hits == {"kernel": 1, "autotune": 1}


# --- the report ----------------------------------------------------------------------------------------------------


def report(**changes: Any) -> Report:
    """The report of a warm start."""
    values: dict[str, Any] = {
        "state": "clean",
        "mode": "auto",
        "fingerprint": "f" * 64,
        "generation": 3,
        "installed": {"inductor": 2, "aot_autograd": 2},
        "hits": {"inductor": 2},
        "load_s": 1.0,
        "first_calls_s": 5.0,
        "covered_calls_s": 3.0,
        "cold_s": 86.0,
        "effective": True,
        "shapes": ("1024x1024x1",),
        "saved_generations": (3,),
        "reasons": ("one blob was lost",),
    }
    return Report(**{**values, **changes})


def test_seconds_saved_are_cold_less_load_and_covered_calls() -> None:
    """Calls that were not covered cost nothing extra: they would have compiled anyway."""
    assert report().saved_s == 82.0


@pytest.mark.parametrize("effective", [None, False])
def test_nothing_is_saved_unless_it_is_effective(effective: bool | None) -> None:
    """No covered call, or no hit: a quicker machine than the one that recorded is not the bundle's merit."""
    assert report(effective=effective).saved_s == 0.0


def test_the_report_is_json() -> None:
    """It goes through JSON and back unchanged, the seconds saved included."""
    found = report().to_json()

    assert json.loads(json.dumps(found)) == {
        **found,
        "shapes": ["1024x1024x1"],
        "saved_generations": [3],
        "reasons": ["one blob was lost"],
    }
    assert found["saved_s"] == 82.0
    assert Report(**{name: value for name, value in found.items() if name != "saved_s"}) == report()


def test_the_report_is_one_line() -> None:
    """State, fingerprint, counts by kind, times and reasons."""
    text = str(report())

    assert "\n" not in text
    assert text == (
        "clean ffffffffffff generation 3: installed 2 aot_autograd, 2 inductor; hit 2 inductor; compiled nothing; "
        "load 1.00 s, first calls 5.00 s, saved 82.00 s; one blob was lost"
    )


def test_the_report_of_a_session_without_a_bundle() -> None:
    """Nothing is called nothing, and no generation is called none."""
    text = str(Report(state="recording", mode="auto", fingerprint="f" * 64))

    assert text == (
        "recording ffffffffffff generation none: installed nothing; hit nothing; compiled nothing; "
        "load 0.00 s, first calls 0.00 s, saved 0.00 s"
    )


@pytest.mark.parametrize(
    ("reasons", "text"),
    [(("CACHEKIT_MODE=off",), "disabled: CACHEKIT_MODE=off"), ((), "disabled: nothing happened yet")],
)
def test_the_report_of_a_session_that_never_bound(reasons: tuple[str, ...], text: str) -> None:
    """The reasons are all there is to tell."""
    assert str(Report(state="disabled", mode="off", reasons=reasons)) == text
