"""The calls of a session's denoisers, observed: what each compiled or used, which units that is, which shape it ran.

The wrapper is on the path of every call of the engine: it costs microseconds, looks at nothing but the call's key once
that is known, and whatever fails in here is told to the session and never to the engine.
"""

from __future__ import annotations

import functools
import operator
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from cachekit.bundle import Shape
from cachekit.errors import StrictMissError
from cachekit.identity import Plan
from cachekit.logs import said
from cachekit.runtime import counters, recorder
from cachekit.runtime.backend import Call, Graph
from cachekit.runtime.counters import Outcome
from cachekit.runtime.facts import Facts
from cachekit.runtime.generations import Generations, Ran
from cachekit.runtime.profile import Profile
from cachekit.runtime.signature import call_key, call_signature, short_signature
from cachekit.runtime.units import dynamic_units, static_unit

Labeller = Callable[[str, Sequence[Any], Mapping[str, Any]], "Shape | None"]


def unnamed(*_: Any) -> Shape | None:
    """The labeller that can tell nothing."""
    return None


class Host(Protocol):
    """What the calls need of their session; none of these raises."""

    plan: Plan
    facts: Facts
    recording: recorder.Recording
    profile: Profile | None
    """Who the pipeline was when it last compiled."""
    label: Labeller

    def live(self) -> bool:
        """Whether the session observes anything at all."""

    def failed(self, error: Exception) -> None:
        """Something of ours failed: go on without a cache."""

    def generation_finished(self) -> None:
        """A call that is a generation of its own ended well."""


class Calls:
    """Those of one session, on any number of threads."""

    def __init__(self, host: Host, generations: Generations) -> None:
        self._host = host
        self._generations = generations
        self._thread = threading.local()

    def observed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call`` with what it compiles attributed and its shape registered; ``name`` names the denoiser."""
        import torch

        # Not is_compiling(): that is true on every thread while any of them compiles.
        is_traced, is_exported = torch.compiler.is_dynamo_compiling, torch.compiler.is_exporting
        tensor, grad = torch.Tensor, torch.is_grad_enabled
        host = self._host

        def run(*args: Any, **kwargs: Any) -> Any:
            context = None
            if not is_traced() and not is_exported() and host.live():
                try:
                    context = self._context((name, grad(), call_key(args, kwargs, tensor)))
                except Exception as exc:
                    host.failed(exc)
            if context is None:
                return call(*args, **kwargs)
            result = self._called(context, call, args, kwargs)
            try:
                if host.live():  # it may have been closed meanwhile, and this may be a forked child
                    self._ended(context, name, args, kwargs, tensor)
            except Exception as exc:
                host.failed(exc)
            return result

        return run

    @property
    def current(self) -> Call | None:
        """The observed forward that this thread is in."""
        calls = getattr(self._thread, "calls", None)
        return calls[-1] if calls else None

    def absorb(self, profile: Profile, call: Call | None) -> None:
        """File what was looked up or made while compiled graphs ran: autotuning, for the most part."""
        needs = profile.absorb(self._host.recording.take())
        outcome = self._host.facts.count(needs)
        if call is not None:
            call.extra.add(needs)
            call.outcome |= outcome

    def _context(self, key: Hashable) -> Call:
        """What to watch in a call: all of it the first time its key is seen."""
        if self._generations.knows(key):
            return Call(key)
        # Where the engine compiles by itself, no backend of ours counts.
        return Call(key, ran=[], before=counters.snapshot() if self._host.plan.scope == "caller" else None)

    def _called(self, context: Call, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        calls = self._thread.__dict__.setdefault("calls", [])
        calls.append(context)
        started = time.perf_counter()
        try:
            with recorder.scope(self._host.recording):
                return call(*args, **kwargs)
        except BaseException as exc:
            self._abandon(context)
            strict = _strict_cause(exc)
            if strict is None or strict is exc:
                raise
            raise strict from None
        finally:
            context.seconds = time.perf_counter() - started
            calls.pop()

    def _abandon(self, context: Call) -> None:
        """A call failed or was cancelled: it registers no shape, but what it compiled is kept."""
        try:
            profile = context.compiled[-1].profile if context.compiled else self._host.profile
            for graph in context.compiled:
                graph.orphaned = True
                self.unfinished(graph, "a call that failed")
            if profile is not None and self._host.live():
                self.absorb(profile, None)
            self._generations.abandon()
        except Exception as exc:
            self._host.failed(exc)

    def unfinished(self, graph: Graph, name: str) -> None:
        """A graph was compiled outside of a call that ended well; ``name`` says what it was for."""
        if graph.outcome.missed:
            self._host.facts.misses.add(graph.profile, graph.profile.units_for(graph.needs), name)
        graph.profile.forgo(graph.needs)

    def _ended(self, context: Call, name: str, args: Any, kwargs: Any, tensor: type) -> None:
        """A call went well: its units are known from here on, and its shape belongs to the generation."""
        if context.ran is not None or context.compiled or self._host.recording.waiting:
            missed = self._register(context, lambda: _signature(name, args, kwargs, tensor))
            if missed is not None and missed[0].found:
                shape = self._shape(name, args, kwargs)
                told = shape.label if shape is not None else short_signature(name, args, kwargs, tensor)
                self._host.facts.misses.add(*missed, told)
        if self._generations.is_new(context.key):
            alone = self._generations.add(context.key, self._shape(name, args, kwargs))
            if alone:
                self._host.generation_finished()

    def _shape(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shape | None:
        try:
            return self._host.label(name, args, kwargs)
        except Exception as exc:  # a label is for people: without one the call is covered all the same
            self._host.facts.note(f"no label for a shape: {said(exc)}")
            return None

    def _register(self, context: Call, signature: Callable[[], str]) -> Ran | None:
        """Find or make the units of a call that compiled, or of the first call with its signature.

        Returns them where something had to be made.
        """
        outcome = Outcome()
        graphs = context.compiled or context.ran or []
        profile = graphs[-1].profile if graphs else self._host.profile
        assert profile is not None  # bound, or the session would not be live
        self.absorb(profile, context)
        if context.before is not None:
            context.outcome |= self._host.facts.tally.add(context.before, counters.snapshot())
        if context.compiled or context.extra.identities:
            units = self._units(profile, context.compiled, context, context.seconds, signature)
            outcome = functools.reduce(
                operator.or_, (graph.outcome for graph in context.compiled), context.outcome
            )
            self._host.facts.add_call(context.seconds, profile.claim(units), hit=outcome.hit)
        elif all(graph.unit_id or graph.orphaned for graph in graphs):
            units = self._units_of_earlier(profile, graphs, context, signature)
            if not graphs and self._host.plan.scope != "caller":
                self._host.facts.note("torch compiled nothing for this call")
        else:
            return None  # another thread compiled it just now, and is about to make its unit
        profile.use(units)
        self._generations.learn(context.key, (profile, units))
        return (profile, units) if outcome.missed else None

    def _units_of_earlier(
        self, profile: Profile, graphs: list[Graph], call: Call, signature: Callable[[], str]
    ) -> tuple[str, ...]:
        """The units of graphs that earlier calls compiled; those of a call that failed have none yet."""
        orphans = [graph for graph in graphs if not graph.unit_id]
        if orphans and self._host.plan.dynamic is False:
            orphans = graphs  # a static unit is everything that its call ran
        made: tuple[str, ...] = ()
        if orphans:
            made = self._units(profile, orphans, call, sum(graph.seconds for graph in orphans), signature)
        return tuple(sorted({*made, *(graph.unit_id for graph in graphs)}))

    def _units(
        self,
        profile: Profile,
        graphs: list[Graph],
        call: Call,
        seconds: float,
        signature: Callable[[], str],
    ) -> tuple[str, ...]:
        """Make the units of these graphs, which took so many seconds to compile."""
        if graphs and self._host.plan.dynamic is not False:
            made = dynamic_units(profile, graphs, call.extra, seconds)
        else:
            made = [static_unit(graphs, call.extra, seconds, signature())]
        for item in made:
            if item.unit.needs or item.kernels:
                profile.add_unit(item.unit, item.kernels)
            else:  # a unit that needs nothing would claim that everything it needs is kept
                self._host.facts.note("torch passed its caches by for a graph, and compiles it at each start")
        for index, graph in enumerate(graphs):
            graph.unit_id = made[min(index, len(made) - 1)].unit.id
        return tuple(sorted({item.unit.id for item in made}))


def _signature(name: str, args: Any, kwargs: Any, tensor: type) -> str:
    import torch

    return call_signature(args, kwargs, tensor, module=name, grad=torch.is_grad_enabled())


def _strict_cause(error: BaseException) -> StrictMissError | None:
    """Our strict-mode error inside the compiler's wrapping, if that is what it was."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, StrictMissError):
        seen = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__
    return seen
