"""The compiler backend of a session: Inductor, watched, and never in its way."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cachekit.errors import StrictMissError
from cachekit.runtime import recorder, torch_private
from cachekit.runtime.backend import Call, Graph, SessionBackend
from cachekit.runtime.process import PrivateFolder, SharedState
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
        self.disabled: list[str] = []
        self.moves: list[str] = []

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

    def disable(self, reason: str) -> None:
        """Go on without a cache."""
        self.disabled.append(reason)

    def relocated(self, reason: str) -> None:
        """Another private folder is used."""
        self.moves.append(reason)


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


# --- a folder that fails -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateFolder]:
    """The private folder that the backend compiles into, with one more place to go to."""
    for place in ("one", "two"):
        (tmp_path / place).mkdir(mode=0o700)
    shared = SharedState()
    monkeypatch.setattr("cachekit.runtime.backend.shared", shared)
    yield shared.enter(tmp_path / "one", tmp_path / "two")
    shared.leave()


def fail_below(folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """Have the first compiles end as on a full disk, and the later ones well."""
    left = iter(range(times))

    def compile_inductor(graph: Any, inputs: Any, **settings: Any) -> Any:
        if next(left, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder.inductor / "kernel.py"))
        return lambda *args: ["compiled"]

    monkeypatch.setattr(torch_private, "compile_inductor", compile_inductor)


def test_a_folder_that_fails_is_replaced(
    host: Host, folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is compiled in another folder, and the host is told what happened to the first."""
    before = folder.path
    fail_below(folder, monkeypatch, times=1)

    assert backend(host)(GRAPH, [])(1) == ["compiled"]

    assert folder.path != before
    assert host.moves == [f"{before}/inductor/kernel.py: ENOSPC: No space left on device"]
    assert host.disabled == []
    assert len(host.graphs) == 1


def test_a_graph_runs_uncompiled_where_no_folder_works(
    host: Host, folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine gets its result all the same, and the session is over."""
    fail_below(folder, monkeypatch, times=2)

    assert backend(host)(GRAPH, [])(1) == 2

    (reason,) = host.disabled
    assert "ENOSPC" in reason
    assert str(folder.path) in reason


def test_a_disabled_host_s_folder_is_replaced_as_well(
    host: Host, folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment names our folder until the session is closed, so its errors stay ours."""
    host.profile = None
    fail_below(folder, monkeypatch, times=1)

    assert backend(host)(GRAPH, [])(1) == ["compiled"]


def test_a_folder_that_vanished_is_replaced_before_it_is_used(
    host: Host, folder: PrivateFolder, compiled: list[dict[str, Any]]
) -> None:
    """Somebody removed it while the engine ran."""
    before = folder.path
    folder.remove()

    assert backend(host)(GRAPH, [])(1) == [2]

    assert folder.intact
    assert host.moves == [f"{before}: it was removed"]


def test_the_compiler_s_own_error_passes_through(
    host: Host, folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised once, as it is; nothing is tried again and no folder replaced."""

    def compile_inductor(graph: Any, inputs: Any, **settings: Any) -> Any:
        raise RuntimeError("missing lowering")

    monkeypatch.setattr(torch_private, "compile_inductor", compile_inductor)

    with pytest.raises(RuntimeError, match="missing lowering"):
        backend(host)(GRAPH, [])

    assert host.moves == host.disabled == []
