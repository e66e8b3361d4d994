"""Units from calls: what one compile covers, and what it cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachekit.bundle import Unit
from cachekit.runtime.backend import Graph
from cachekit.runtime.profile import Needs, Profile


@dataclass(frozen=True)
class Made:
    """A unit, and the kernels it needs beside its ``needs``."""

    unit: Unit
    kernels: frozenset[str]


def static_unit(graphs: list[Graph], extra: Needs, seconds: float, signature: str) -> Made:
    """The unit of one call signature: everything that its graphs and first run used; ``seconds`` is the whole call."""
    needs = Needs()
    for graph in graphs:
        needs.add(graph.needs)
    needs.add(extra)
    unit = Unit(dynamic=False, signature=signature, needs=needs.identities, seconds=seconds)
    return Made(unit, frozenset(needs.kernels))


def dynamic_units(profile: Profile, graphs: list[Graph], extra: Needs, seconds: float) -> list[Made]:
    """A unit for each graph. What the first run used beyond them (autotuning) counts for all; the call's seconds
    are shared out by what each backend call took. A graph that was found again is the unit it was recorded as.
    """
    total = sum(graph.seconds for graph in graphs) or 1.0
    return [_dynamic_unit(profile, graph, extra, seconds * graph.seconds / total) for graph in graphs]


def _dynamic_unit(profile: Profile, graph: Graph, extra: Needs, seconds: float) -> Made:
    found = profile.unit_for(graph.needs)
    needs = Needs()
    needs.add(graph.needs)
    needs.add(extra)
    if found is not None:
        return Made(found, frozenset(needs.kernels))
    signature = graph.signature
    unit = Unit(
        dynamic=True,
        signature=signature.text if signature else "",
        guards=signature.guards if signature else "",
        ranges=tuple(sorted((name, low, high) for name, (low, high) in graph.ranges.items())),
        needs=needs.identities,
        seconds=seconds,
    )
    return Made(unit, frozenset(needs.kernels))
