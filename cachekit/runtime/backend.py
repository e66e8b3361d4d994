"""The compiler backend of one session: Inductor, watched.

Each session compiles through its own callable, so Dynamo never serves one session's code to another; each compiled
graph remembers what it was made from, so that a later call can tell which artifacts it used.

Errors of the compiler itself are the engine's. Those of the private folder are not: the graph is compiled in another
folder, and where there is none, it runs uncompiled.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cachekit.errors import CachekitError
from cachekit.runtime import recorder, torch_private
from cachekit.runtime.counters import Outcome, Snapshot
from cachekit.runtime.folder_errors import folder_error
from cachekit.runtime.process import shared
from cachekit.runtime.profile import Needs, Profile
from cachekit.runtime.signature import GraphSignature, graph_signature


@dataclass
class Graph:
    """One compiled graph: whose it is, what it used, what it accepts, and how long the backend took (seconds)."""

    profile: Profile
    needs: Needs
    signature: GraphSignature | None
    ranges: dict[str, tuple[int, int | None]]
    seconds: float
    unit_id: str = ""
    outcome: Outcome = field(default_factory=Outcome)
    """What torch's caches had of it."""
    orphaned: bool = False
    """Compiled by a call that failed or that nobody observed: the next one that runs it makes its unit."""


@dataclass
class Call:
    """One forward in progress on one thread; ``key`` is its signature's."""

    key: Hashable = None
    compiled: list[Graph] = field(default_factory=list)
    ran: list[Graph] | None = None
    """Graphs that ran, if anyone wants to know."""
    extra: Needs = field(default_factory=Needs)
    """What running them used beyond what compiling them did: autotuning."""
    outcome: Outcome = field(default_factory=Outcome)
    """Of that, and of what no backend of ours counts."""
    before: Snapshot | None = None
    """torch's counters before it, where no backend of ours counts."""
    seconds: float = 0.0


class Host(Protocol):
    """What the backend asks of its session; none of these raises except in strict mode."""

    recording: recorder.Recording

    def before_compile(self) -> Profile | None:
        """The profile this compile belongs to; None once the session is disabled."""

    def after_compile(self, graph: Graph) -> None:
        """A graph was compiled or found."""

    def current_call(self) -> Call | None:
        """The forward in progress on this thread."""

    def refuse_compile(self) -> Callable[[], None] | None:
        """In strict mode, what raises instead of compiling."""

    def failed(self, error: Exception) -> None:
        """Something of ours failed: go on without a cache."""

    def disable(self, reason: str) -> None:
        """Go on without a cache, and say why."""

    def relocated(self, reason: str) -> None:
        """The private folder was replaced by another one, which is empty, and why."""


class SessionBackend:
    """Give it to ``torch.compile(backend=...)``; ``mode``, ``options`` and ``dynamic`` are those of the plan."""

    __name__ = "cachekit"

    def __init__(
        self, host: Host, *, mode: str | None, options: dict[str, Any], dynamic: bool | None
    ) -> None:
        # Dynamo keeps the backend for ever, and the session holds the pipeline.
        self._weak_host = weakref.ref(host)
        self._mode = mode
        self._options = options
        self._dynamic = dynamic

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph; errors of the compiler itself pass through, ours never do."""
        host = self._weak_host()
        profile = host.before_compile() if host is not None else None
        if host is None:
            return self._inductor(graph, inputs, None)
        if profile is None:
            return self._compile(host, graph, inputs)
        dynamic = self._dynamic is not False
        names = _guarded(host, torch_private.placeholders, graph) if dynamic else None
        started = time.perf_counter()
        with recorder.scope(host.recording):
            compiled = self._compile(host, graph, inputs)
        record = Graph(profile, Needs(), None, {}, time.perf_counter() - started)
        if names:
            _guarded(host, _describe, record, names)
        host.after_compile(record)
        return _watched(self._weak_host, record, compiled)

    def _compile(self, host: Host, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The compiled graph; the graph itself where no folder can take what the compiler writes."""
        refuse = host.refuse_compile()
        folder = shared.folder
        if folder is not None and not folder.intact:
            _relocate(host, f"{folder.path}: it was removed")
        compiled, reason = self._attempt(graph, inputs, refuse)
        if compiled is None and _relocate(host, reason):
            compiled, reason = self._attempt(graph, inputs, refuse)
        if compiled is not None:
            return compiled
        host.disable(f"a graph runs uncompiled, because no folder takes what the compiler writes: {reason}")
        uncompiled: Callable[..., Any] = graph.forward
        return uncompiled

    def _attempt(
        self, graph: Any, inputs: Sequence[Any], refuse: Callable[[], None] | None
    ) -> tuple[Callable[..., Any] | None, str]:
        """The compiled graph; None, and why, where the private folder could not take what the compiler writes."""
        try:
            return self._inductor(graph, inputs, refuse), ""
        except Exception as exc:
            reason = _folder_reason(exc)
            if reason is None:
                raise
            return None, reason

    def _inductor(
        self, graph: Any, inputs: Sequence[Any], refuse: Callable[[], None] | None
    ) -> Callable[..., Any]:
        settings: dict[str, Any] = {"mode": self._mode, "options": self._options, "dynamic": self._dynamic}
        if refuse is None:
            return torch_private.compile_inductor(graph, inputs, **settings)
        with torch_private.on_real_compile(refuse):
            return torch_private.compile_inductor(graph, inputs, **settings)


def _folder_reason(error: Exception) -> str | None:
    """What happened to the private folder, if the error is its fault."""
    folder = shared.folder
    return None if folder is None else folder_error(error, folder.path, intact=folder.intact)


def _relocate(host: Host, reason: str) -> bool:
    """Go on in another private folder; False if there is none."""
    try:
        shared.relocate()
    except CachekitError:
        return False  # the caller tells what happened to the one there was
    _guarded(host, torch_private.forget_headers)
    host.relocated(reason)
    return True


def _describe(record: Graph, names: list[tuple[str, Any]]) -> None:
    import torch

    guards, ranges = torch_private.shape_guards()
    fixed = {name: low for name, (low, high) in ranges.items() if low == high}
    signature = graph_signature(names, guards, torch.Tensor, fixed=fixed, grad=torch.is_grad_enabled())
    record.signature = signature
    record.ranges = {signature.symbols[name]: r for name, r in ranges.items() if name in signature.symbols}


def _guarded(host: Host, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as exc:
        host.failed(exc)
        return None


def _watched(weak_host: weakref.ref[Host], record: Graph, compiled: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        host = weak_host()
        call = host.current_call() if host is not None else None
        if call is not None and call.ran is not None:
            call.ran.append(record)
        return compiled(*args)

    run._boxed_call = getattr(compiled, "_boxed_call", False)  # type: ignore[attr-defined]
    return run
