"""The compiler backend of a session: Inductor, watched, and never in its way."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cachekit.errors import StrictMissError
from cachekit.runtime import recorder, torch_private
from cachekit.runtime.backend import Call, Graph, SessionBackend
from cachekit.runtime.profile import Profile
from tests.unit.runtime.helpers import FINGERPRINT, HOST

GRAPH = torch.fx.symbolic_trace(lambda x: x + 1)


class Host:
    """Stands where a session does."""

    def __init__(self) -> None:
        self.recording = recorder.Recording()
        self.profile: Profile | None = Profile(FINGERPRINT, HOST, None)
        self.call: Call | None = None
        self.refuse: Callable[[], None] | None = None
        self.graphs: list[Graph] = []
        self.failures: list[Exception] = []

    def before_compile(self) -> Profile | None:
        """Whose compile it is."""
        return self.profile

    def after_compile(self, graph: Graph) -> None:
        """A graph was made."""
        self.graphs.append(graph)

    def current_call(self) -> Call | None:
        """The forward in progress."""
        return self.call

    def refuse_compile(self) -> Callable[[], None] | None:
        """Strict mode's answer."""
        return self.refuse

    def failed(self, error: Exception) -> None:
        """Something of ours failed."""
        self.failures.append(error)


@pytest.fixture
def host() -> Host:
    """A host with a profile."""
    return Host()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Inductor's place, taken by a function that notes what it is asked and files one artifact."""
    asked: list[dict[str, Any]] = []

    def compile_inductor(graph: Any, inputs: Any, **settings: Any) -> Any:
        asked.append(settings)
        current = recorder.current()
        if current is not None:
            current.add_artifact("inductor", "key", b"bytes")

        def run(*args: Any) -> Any:
            return [args[0] + 1]

        return run

    monkeypatch.setattr(torch_private, "compile_inductor", compile_inductor)
    return asked


def backend(host: Host, **plan: Any) -> SessionBackend:
    """A backend of a static plan, unless told otherwise."""
    return SessionBackend(host, **{"mode": None, "options": {}, "dynamic": False, **plan})


def test_a_compile_is_attributed_timed_and_told(host: Host, compiled: list[dict[str, Any]]) -> None:
    """What Inductor records meanwhile is the host's, and the host gets the graph."""
    run = backend(host, mode="max-autotune", options={"a": 1})(GRAPH, [])

    assert run(1) == [2]
    assert compiled == [{"mode": "max-autotune", "options": {"a": 1}, "dynamic": False}]
    assert host.recording.take().artifacts == [("inductor", "key", b"bytes")]
    (graph,) = host.graphs
    assert graph.profile is host.profile
    assert graph.seconds > 0
    assert graph.signature is None


def test_running_a_graph_is_noted_in_a_call_that_wants_to_know(
    host: Host, compiled: list[dict[str, Any]]
) -> None:
    """Only the first call with a signature asks; later ones cost nothing."""
    run = backend(host)(GRAPH, [])

    run(1)
    host.call = Call("key", ran=None)
    run(1)
    host.call = Call("key", ran=[])
    run(1)

    assert host.call.ran == host.graphs


def test_a_disabled_host_compiles_plainly(host: Host, compiled: list[dict[str, Any]]) -> None:
    """Nothing is attributed and nothing told; the same code runs."""
    host.profile = None
    host.refuse = lambda: pytest.fail("refused")

    run = backend(host)(GRAPH, [])

    assert run(1) == [2]
    assert host.graphs == []
    assert not host.recording.take()


def test_a_backend_does_not_keep_its_host_alive(compiled: list[dict[str, Any]]) -> None:
    """Dynamo keeps backends for ever; what it compiles after the session is gone is plain."""
    host = Host()
    made = backend(host)
    run = made(GRAPH, [])

    del host
    gc.collect()

    assert run(1) == [2]
    assert made(GRAPH, [])(1) == [2]


def test_a_refused_compile_raises(host: Host, compiling: object) -> None:
    """In strict mode Inductor stops where it would generate code, and nothing is told."""

    def refuse() -> None:
        raise StrictMissError("no")

    host.refuse = refuse
    with pytest.raises(Exception, match="StrictMissError"), torch.no_grad():
        torch.compile(lambda x: x @ x, backend=backend(host), dynamic=False)(torch.ones(4, 4))

    assert host.graphs == []
    assert host.failures == []


def test_a_dynamic_graph_says_what_it_accepts(host: Host, compiling: object) -> None:
    """The inputs by source, the guards and the ranges, in names of our own."""
    with torch.no_grad():
        torch.compile(lambda x: x.T @ x, backend=backend(host, dynamic=True), dynamic=True)(torch.ones(4, 3))

    (graph,) = host.graphs
    assert graph.signature is not None
    assert "\"L['x']\"" in graph.signature.text
    assert graph.ranges == {"s0": (2, None), "s1": (2, None)}


def test_a_graph_that_cannot_be_described_is_compiled_all_the_same(
    host: Host, compiled: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is the host's to tell; the engine gets its code."""

    def fail(*args: Any) -> Any:
        raise KeyError("changed")

    for name in ("placeholders", "shape_guards"):
        with monkeypatch.context() as patch:
            patch.setattr(torch_private, name, fail)
            assert backend(host, dynamic=True)(GRAPH, [])(1) == [2]

    assert [type(error) for error in host.failures] == [KeyError, KeyError]
    assert [graph.signature for graph in host.graphs] == [None, None]


def test_boxed_calls_stay_boxed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo hands its arguments over in a list where the compiled code says so."""

    def run(args: list[int]) -> list[int]:
        return [args.pop()]

    run._boxed_call = True  # type: ignore[attr-defined]
    monkeypatch.setattr(torch_private, "compile_inductor", lambda graph, inputs, **settings: run)

    made: Any = backend(host)(GRAPH, [])

    assert made._boxed_call
    assert made([7]) == [7]
