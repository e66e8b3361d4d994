"""Units from calls: what one compile covers, what it needs, and what it cost."""

from __future__ import annotations

import pytest

from cachekit.bundle import accepts
from cachekit.runtime.backend import Graph
from cachekit.runtime.profile import Needs, Profile
from cachekit.runtime.signature import GraphSignature
from cachekit.runtime.units import dynamic_units, static_unit
from tests.unit.runtime.helpers import FINGERPRINT, HOST, KERNEL, OTHER_KERNEL, bundle, unit


@pytest.fixture
def profile() -> Profile:
    """A profile without a bundle."""
    return Profile(FINGERPRINT, HOST, None)


def graph(
    profile: Profile,
    name: str,
    *,
    seconds: float = 1.0,
    kernels: tuple[str, ...] = (),
    signature: bool = True,
) -> Graph:
    """A graph told apart by its name: one artifact, one symbol from 2 to 64."""
    text = GraphSignature(f'{{"inputs":"{name}"}}', "(s0 < 9)", {"s77": "s0"}) if signature else None
    needs = Needs(graphs={f"inductor:{name}"}, kernels=dict.fromkeys(kernels, True))
    return Graph(profile, needs, text, {"s0": (2, 64)}, seconds)


def test_a_static_unit_needs_everything_that_its_call_used(profile: Profile) -> None:
    """All graphs of the call, what running them used, and the kernels of each."""
    graphs = [graph(profile, "a", kernels=(KERNEL,)), graph(profile, "b", kernels=(OTHER_KERNEL,))]

    made = static_unit(graphs, Needs(tuned={"autotune:c": True}), 7.0, '{"args":[]}')

    assert not made.unit.dynamic
    assert made.unit.needs == ("autotune:c", "inductor:a", "inductor:b")
    assert made.unit.seconds == 7.0
    assert made.kernels == {KERNEL, OTHER_KERNEL}
    assert accepts(made.unit, '{"args":[]}')
    assert not accepts(made.unit, '{"args":[1]}')


def test_making_a_unit_changes_none_of_its_graphs(profile: Profile) -> None:
    """The graphs live on and are told again by later calls."""
    one = graph(profile, "a")

    static_unit([one], Needs(tuned={"autotune:c": True}), 1.0, "{}")
    dynamic_units(profile, [one], Needs(tuned={"autotune:c": True}), 1.0)

    assert one.needs == Needs(graphs={"inductor:a"})


def test_each_dynamic_graph_is_a_unit_of_its_own(profile: Profile) -> None:
    """With its own artifacts, kernels, guards and ranges; autotuning counts for all."""
    graphs = [graph(profile, "a", kernels=(KERNEL,)), graph(profile, "b")]

    one, two = dynamic_units(profile, graphs, Needs(tuned={"autotune:c": True}), 4.0)

    assert one.unit.needs == ("autotune:c", "inductor:a")
    assert two.unit.needs == ("autotune:c", "inductor:b")
    assert (one.kernels, two.kernels) == ({KERNEL}, frozenset())
    assert one.unit.guards == "(s0 < 9)"
    assert one.unit.ranges == (("s0", 2, 64),)
    assert one.unit.id != two.unit.id


def test_the_seconds_of_a_call_are_shared_out_by_compile_time(profile: Profile) -> None:
    """Together they are the whole call's, and a graph that took longer gets more."""
    graphs = [graph(profile, "a", seconds=3.0), graph(profile, "b", seconds=1.0)]

    made = dynamic_units(profile, graphs, Needs(), 8.0)

    assert [item.unit.seconds for item in made] == [6.0, 2.0]


def test_graphs_that_took_no_time_cost_nothing(profile: Profile) -> None:
    """A clock that stood still divides nothing by zero."""
    made = dynamic_units(profile, [graph(profile, "a", seconds=0.0)], Needs(), 8.0)

    assert made[0].unit.seconds == 0.0


def test_a_graph_that_is_found_again_is_the_unit_that_was_recorded() -> None:
    """However torch names its symbols this time, the bundle's unit, with its cold seconds, is meant."""
    cold = unit("cold", needs=["inductor:a"], seconds=80.0, dynamic=True)
    known = Profile(FINGERPRINT, HOST, bundle(units=[cold]))

    (made,) = dynamic_units(known, [graph(known, "a", kernels=(KERNEL,))], Needs(), 0.5)

    assert made.unit == cold
    assert made.kernels == {KERNEL}


def test_a_graph_without_a_signature_covers_nothing(profile: Profile) -> None:
    """Where the compiler's words could not be read, its unit accepts no call."""
    (made,) = dynamic_units(profile, [graph(profile, "a", signature=False)], Needs(), 1.0)

    assert made.unit.needs == ("inductor:a",)
    assert not accepts(made.unit, '{"inputs":"a"}')
    assert not accepts(made.unit, "")
