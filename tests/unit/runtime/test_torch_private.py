"""Each private name of torch that the runtime stands on still is what it is taken for.

An upgrade of torch that breaks one fails here, with the name of the function in ``torch_private`` to mend.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.exc import InductorError

from cachekit.errors import UnsupportedError
from cachekit.runtime import torch_private


class Product(torch.nn.Module):
    """A matrix product: compiles without any C++ kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8, 8), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take rows in pairs, so that a dynamic graph has a guard."""
        return x @ self.weight if x.shape[0] % 2 == 0 else x


@dataclass
class Seen:
    """What one dynamic compile showed to a backend, and what torch's caches were told."""

    placeholders: list[tuple[str, Any]] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    recorded: list[tuple[str, str, Any]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    bundle: bytes = b""
    result: torch.Tensor | None = None


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Compile ``Product`` dynamically, once for this module."""
    found = Seen()
    manager = torch_private.artifact_manager()
    original = manager.__dict__["record_artifact"]

    def record(cls: Any, artifact_type: str, key: str, content: Any) -> None:
        found.recorded.append((artifact_type, key, content))
        original.__func__(cls, artifact_type, key, content)

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        found.placeholders = torch_private.placeholders(graph)
        compiled = torch_private.compile_inductor(graph, inputs, mode=None, options={}, dynamic=True)
        found.guards, found.ranges = torch_private.shape_guards()
        return compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("seen")))
        patch.setattr(manager, "record_artifact", classmethod(record))
        torch._dynamo.reset()
        module = Product()
        module.compile(backend=backend, dynamic=True)
        before = dict(torch_private.compile_counters()["inductor"])
        with torch.compiler._cache.CacheArtifactManager.with_fresh_cache(), torch.no_grad():
            found.result = module(torch.ones(4, 8))
            saved = torch.compiler.save_cache_artifacts()
        after = torch_private.compile_counters()["inductor"]
        found.counted = {name: n - before.get(name, 0) for name, n in after.items()}
        assert saved is not None
        found.bundle = saved[0]
    yield found
    torch._dynamo.reset()


# --- compiling -----------------------------------------------------------------------------------------------------


def test_compile_inductor_gives_code_that_computes(seen: Seen) -> None:
    """What ``compile_fx`` returns for a graph is callable by Dynamo and computes what eager does."""
    assert seen.result is not None
    torch.testing.assert_close(seen.result, torch.full((4, 8), 4.0))


def test_compile_inductor_takes_modes_and_options(compiling: Path) -> None:
    """A mode becomes the config patches that torch lists for it, and options go on top of them."""
    patches: list[dict[str, Any]] = []
    compile_fx = importlib.import_module("torch._inductor.compile_fx")

    def note(graph: Any, inputs: Any, *, config_patches: dict[str, Any]) -> str:
        patches.append(config_patches)
        return "compiled"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_fx, "compile_fx", note)
        made: Any = torch_private.compile_inductor(
            None, (), mode="max-autotune-no-cudagraphs", options={"epilogue_fusion": False}, dynamic=None
        )
        torch_private.compile_inductor(None, (), mode="default", options={}, dynamic=None)

    assert made == "compiled"
    assert patches == [
        {"max_autotune": True, "coordinate_descent_tuning": True, "epilogue_fusion": False},
        {},
    ]


def test_record_artifact_is_told_of_every_compile(seen: Seen) -> None:
    """Both caches of one compile tell the manager their type, key and bytes."""
    kinds = {kind: (key, content) for kind, key, content in seen.recorded}

    assert kinds.keys() == {"inductor", "aot_autograd"}
    assert {(type(key), type(data)) for key, data in kinds.values()} == {(str, bytes)}


def test_record_artifact_is_told_of_hits_too(compiling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile that both caches answer is told like one that they did not."""
    manager = torch_private.artifact_manager()
    original = manager.__dict__["record_artifact"]
    told: list[tuple[str, str]] = []

    def record(cls: Any, artifact_type: str, key: str, content: Any) -> None:
        told.append((artifact_type, key))
        original.__func__(cls, artifact_type, key, content)

    monkeypatch.setattr(manager, "record_artifact", classmethod(record))
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(lambda x: x @ x, dynamic=False)(torch.ones(4, 4))

    assert len(told) == 4
    assert sorted(told[:2]) == sorted(told[2:])


def test_the_factory_encodes_what_is_not_bytes() -> None:
    """An autotune result, which torch records as a dict, is encoded as JSON bytes."""
    made = torch_private.artifact_factory().encode_create("autotune", "aa/best_config", {"XBLOCK": 8})

    assert made.content == b'{"XBLOCK": 8}'


def test_counters_move_with_a_compile(seen: Seen) -> None:
    """Dynamo's counters have the groups and names that hits and misses are read from."""
    assert seen.counted["fxgraph_cache_miss"] == 1
    assert torch_private.compile_counters()["aot_autograd"]["autograd_cache_saved"] >= 1
    assert torch_private.compile_counters()["stats"]["unique_graphs"] >= 1


def test_dynamo_config_has_the_recompile_limits() -> None:
    """Both limits that a session raises are there, and are numbers."""
    config = torch_private.dynamo_config()

    assert config.recompile_limit > 0
    assert config.accumulated_recompile_limit > 0


def test_the_compile_lock_is_reentrant() -> None:
    """The lock under which bundles are loaded is a context manager that its holder may take again."""
    with torch_private.compile_lock(), torch_private.compile_lock():
        assert not isinstance(torch_private.compile_lock(), contextlib.nullcontext)


def test_load_artifacts_counts_what_it_wrote(seen: Seen, compiling: Path) -> None:
    """A bundle that torch saved is written into the cache folder, one folder for each key."""
    assert torch_private.load_artifacts(seen.bundle) == 2

    keys = {key for _, key, _ in seen.recorded}
    assert keys <= {path.name for path in compiling.rglob("*")}


@pytest.mark.parametrize("data", [b"no bundle", b""])
def test_load_artifacts_tells_a_refusal_from_success(data: bytes, compiling: Path) -> None:
    """Bytes that are no bundle are refused with None, not counted as nothing loaded."""
    assert torch_private.load_artifacts(data) is None


def test_refusing_stops_before_code_is_generated(compiling: Path) -> None:
    """It is asked once, before any code was written; what it raises ends the compile, inside torch's wrapping."""
    asked: list[bool] = []

    class RefusedError(Exception):
        pass

    def refuse() -> None:
        asked.append(any(compiling.rglob("*.py")))
        raise RefusedError

    with torch_private.on_real_compile(refuse), torch.no_grad(), pytest.raises(InductorError) as caught:
        torch.compile(lambda x: x @ x, dynamic=False)(torch.ones(4, 4))

    assert asked == [False]
    assert isinstance(caught.value.inner_exception, RefusedError)


def test_a_cache_hit_is_not_refused(compiling: Path) -> None:
    """``on_real_compile`` is not asked where Inductor's cache has the graph."""

    def refuse() -> None:
        pytest.fail("asked although the graph is in the cache")

    def compiled() -> Any:
        torch._dynamo.reset()
        with torch.no_grad():
            return torch.compile(lambda x: x @ x @ x, dynamic=False)(torch.ones(4, 4))

    compiled()
    with torch_private.on_real_compile(refuse):
        assert compiled().sum() == 256


def test_refusing_is_undone() -> None:
    """After the context the compiler is as it was."""
    module = importlib.import_module("torch._inductor.compile_fx")
    before = module.fx_codegen_and_compile

    with torch_private.on_real_compile(lambda: None):
        assert module.fx_codegen_and_compile is not before

    assert module.fx_codegen_and_compile is before


# --- modules -------------------------------------------------------------------------------------------------------


def test_the_compiled_call_is_what_a_module_runs() -> None:
    """What is set as compiled call runs instead of forward; None gives forward back."""
    module = Product()
    assert torch_private.compiled_call(module) is None

    torch_private.set_compiled_call(module, lambda x: "mine")
    assert module(torch.ones(2, 8)) == "mine"
    assert torch_private.compiled_call(module) is not None

    torch_private.set_compiled_call(module, None)
    assert module(torch.ones(2, 8)).shape == (2, 8)


def test_module_compile_sets_the_compiled_call() -> None:
    """``Module.compile`` changes the compiled call and nothing else that closing would have to put back."""
    module = Product()
    before = dict(vars(module))

    module.compile(backend="eager")

    assert torch_private.compiled_call(module) is not None
    assert {name for name, value in vars(module).items() if before.get(name) is not value} == {
        "_compiled_call_impl"
    }


def test_the_plain_call_runs_hooks_and_forward() -> None:
    """The uncompiled call is forward with its hooks, past any compiled call."""
    module = Product()
    hooked: list[str] = []
    module.register_forward_hook(lambda *args: hooked.append("ran"))
    torch_private.set_compiled_call(module, lambda x: "compiled")

    result = torch_private.plain_call(module)(torch.ones(2, 8))

    assert result.shape == (2, 8)
    assert hooked == ["ran"]


def test_the_original_module_is_inside_an_optimized_one() -> None:
    """``torch.compile(module)`` holds the module; any other module is its own original."""
    module = Product()

    assert torch_private.original_module(torch.compile(module)) is module
    assert torch_private.original_module(module) is module


def test_an_optimized_module_runs_its_forward() -> None:
    """``attach`` observes an OptimizedModule by replacing ``forward``: that is what a call of it runs."""
    module: Any = torch.compile(Product(), backend="eager")
    original = module.forward

    module.forward = lambda x: "observed"
    assert module(torch.ones(2, 8)) == "observed"

    module.forward = original
    assert module(torch.ones(2, 8)).shape == (2, 8)


# --- C++ kernels ---------------------------------------------------------------------------------------------------


def test_the_code_cache_writes_and_precompiles_headers(compiling: Path) -> None:
    """``write(content, extension)`` answers with a key and a path in the cache folder; headers have one function."""
    cache = torch_private.code_cache()

    key, path = cache.write("int main() {}", "main.cpp")

    assert Path(path).name == f"{key}.main.cpp"
    assert compiling in Path(path).parents
    assert callable(cache._precompile_header)


def test_a_probe_is_asked_with_an_isa_and_code() -> None:
    """``check_build(self, code)`` is defined on the base class, and no ISA overrides it: one patch sees all probes."""
    base = torch_private.isa_class()

    assert list(inspect.signature(base.__dict__["check_build"]).parameters) == ["self", "code"]
    assert list(inspect.signature(base.build_arch_flags).parameters) == ["self"]
    subclasses = base.__subclasses__()
    assert subclasses
    assert not [cls for cls in subclasses if "check_build" in vars(cls)]


def test_the_compiler_says_its_version() -> None:
    """The compiler's own words tell its name and version."""
    assert any(name in torch_private.compiler_version().lower() for name in ("gcc", "g++", "clang"))


def test_the_kernel_command_line_names_flags_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the optimisation flags of a kernel, and is the same whenever it is asked for."""
    isa = importlib.import_module("torch._inductor.cpu_vec_isa")
    monkeypatch.setattr(isa, "pick_vec_isa", lambda: isa.invalid_vec_isa)  # the real one compiles probes

    line = torch_private.kernel_command_line()

    assert "-O3" in line
    assert "-shared" in line
    assert torch_private.kernel_command_line() == line


def test_the_kernel_command_line_depends_on_the_isa(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for another vector ISA has another command line."""
    isa = importlib.import_module("torch._inductor.cpu_vec_isa")
    lines = []
    for chosen in (isa.invalid_vec_isa, isa.VecAVX2()):
        monkeypatch.setattr(isa, "pick_vec_isa", lambda chosen=chosen: chosen)
        lines.append(torch_private.kernel_command_line())

    assert lines[0] != lines[1]


# --- what a compiled graph accepts ---------------------------------------------------------------------------------


def test_placeholders_are_named_by_their_source(seen: Seen) -> None:
    """Inputs have the names of their sources, weights included, and values that say their sizes."""
    found = dict(seen.placeholders)

    assert isinstance(found["L['x']"], torch.Tensor)
    assert not isinstance(found["L['x']"].shape[0], int)
    assert found["L['x']"].shape[1] == 8
    assert found["L['self']._parameters['weight']"].shape == (8, 8)


def test_placeholders_without_a_source_go_by_their_name() -> None:
    """A graph that Dynamo did not make says less, and nothing is raised."""
    graph = torch.fx.symbolic_trace(lambda x: x + 1)

    assert torch_private.placeholders(graph) == [("x", None)]


def test_shape_guards_are_expressions_over_ranged_symbols(seen: Seen) -> None:
    """Within the backend the compile's guards and the ranges of its symbols can be read."""
    found = dict(seen.placeholders)
    rows = str(found["L['x']"].shape[0])

    assert f"Eq(Mod({rows}, 2), 0)" in seen.guards
    assert seen.ranges[rows] == (2, None)


def test_outside_of_a_compile_there_are_no_shape_guards() -> None:
    """With no compile in progress there is nothing to read, and that is no error."""
    assert torch_private.shape_guards() == ([], {})


# --- where a name is missing ---------------------------------------------------------------------------------------

DEGRADED: tuple[tuple[str, str, Callable[[], Any]], ...] = (
    ("torch.compiler._cache", "CacheArtifactManager", torch_private.artifact_manager),
    ("torch.compiler._cache", "CacheArtifactFactory", torch_private.artifact_factory),
    ("torch._dynamo.utils", "counters", torch_private.compile_counters),
    ("torch._inductor.compile_fx", "fx_codegen_and_compile", lambda: _enter(torch_private.on_real_compile)),
    (
        "torch._inductor.compile_fx",
        "compile_fx",
        lambda: torch_private.compile_inductor(None, (), mode=None, options={}, dynamic=None),
    ),
    (
        "torch",
        "_TorchCompileInductorWrapper",
        lambda: torch_private.compile_inductor(None, (), mode="max-autotune", options={}, dynamic=None),
    ),
    ("torch._inductor.codecache", "write", torch_private.code_cache),
    ("torch._inductor.cpu_vec_isa", "VecISA", torch_private.isa_class),
    ("torch._inductor.cpu_vec_isa", "pick_vec_isa", torch_private.kernel_command_line),
    ("torch._guards", "TracingContext", torch_private.shape_guards),
)


def _enter(context: Callable[..., contextlib.AbstractContextManager[None]]) -> None:
    with context(lambda: None):
        pass


@pytest.mark.parametrize(("module", "name", "use"), DEGRADED, ids=[name for _, name, _ in DEGRADED])
def test_a_missing_name_is_an_unsupported_torch(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, use: Callable[[], Any]
) -> None:
    """Where torch no longer has a name, the error is UnsupportedError and says which."""
    monkeypatch.delattr(importlib.import_module(module), name)

    with pytest.raises(UnsupportedError, match=f"this torch has no {module}.{name}"):
        use()


def test_a_missing_probe_method_is_an_unsupported_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class without the method that is watched counts as missing."""
    monkeypatch.delattr(torch_private.isa_class(), "check_build")

    with pytest.raises(UnsupportedError, match=r"VecISA\.check_build"):
        torch_private.isa_class()


def test_a_missing_module_is_an_unsupported_torch() -> None:
    """A module that cannot be imported is named like an attribute that is not there."""
    with pytest.raises(UnsupportedError, match=r"no torch\._inductor\.nothing\.at_all") as caught:
        torch_private._need("torch._inductor.nothing", "at_all")

    assert isinstance(caught.value.__cause__, ImportError)


def test_without_a_compile_lock_nothing_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without the lock gives a null context: loading goes on unlocked."""
    monkeypatch.delattr(importlib.import_module("torch._dynamo.convert_frame"), "compile_lock")

    with torch_private.compile_lock() as entered:
        assert entered is None
