"""Every private torch attribute the runtime uses, one function each.

torch promises nothing about the names in this file. Each function says what it needs and degrades to ``None`` or
an :class:`~cachekit.errors.UnsupportedError` with the missing name; ``tests/unit/runtime/test_torch_private.py``
fails loudly when an upgrade breaks one. Seen with torch 2.9 to 2.15. No other module of the runtime imports from
``torch._*``.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from cachekit.errors import ConfigurationError, UnsupportedError


def _need(module: str, *names: str) -> Any:
    """Return ``module.a.b`` or raise UnsupportedError naming what is missing."""
    try:
        found: Any = importlib.import_module(module)
        for name in names:
            found = getattr(found, name)
    except (ImportError, AttributeError) as exc:
        raise UnsupportedError(f"this torch has no {'.'.join((module, *names))}") from exc
    return found


def compile_lock() -> contextlib.AbstractContextManager[Any]:
    """Dynamo's re-entrant compile lock, or a null context where torch has none."""
    try:
        lock: contextlib.AbstractContextManager[Any] = _need("torch._dynamo.convert_frame", "compile_lock")
    except UnsupportedError:
        return contextlib.nullcontext()
    return lock


def artifact_manager() -> Any:
    """The class through which every compiler cache records what it made or found.

    Its ``record_artifact(type, key, content)`` is called for new entries and, on a hit, for the entry found.
    """
    return _need("torch.compiler._cache", "CacheArtifactManager")


def artifact_factory() -> Any:
    """Encodes an artifact's content as the bundle holds it: ``encode_create(type, key, content).content``."""
    return _need("torch.compiler._cache", "CacheArtifactFactory")


def import_loader() -> None:
    """Import what torch's loader needs, which compiling needs as well; half a second in a fresh process."""
    importlib.import_module("torch._dynamo")  # pytorch#154463: the API fails unless Dynamo is imported
    register = getattr(artifact_manager(), "_ensure_cache_artifacts_registered", None)
    if register is not None:
        register()


def load_artifacts(data: bytes) -> int | None:
    """Write a Mega-cache bundle into the current cache folder; how many artifacts, or None if torch refused it.

    Raises whatever torch raises: on 2.12 and 2.13 an OSError or unpickling error can leave it half written.
    """
    import torch

    importlib.import_module("torch._dynamo")  # pytorch#154463: the API fails unless Dynamo is imported
    info = torch.compiler.load_cache_artifacts(data)
    return None if info is None else sum(len(keys) for keys in info.artifacts.values())


def inductor_settings(
    *, mode: str | None, options: Mapping[str, Any], dynamic: bool | None
) -> dict[str, Any]:
    """What a mode or options mean to Inductor, by the names of its configuration.

    Raises:
        ConfigurationError: torch does not know an option, or its value has another type.
    """
    wrapper = _need("torch", "_TorchCompileInductorWrapper")
    try:
        return dict(wrapper(mode, dict(options), dynamic).config)
    except (RuntimeError, TypeError) as exc:
        raise ConfigurationError(f"torch refuses the plan's mode or options: {exc}") from exc


def compile_inductor(
    graph: Any, inputs: Sequence[Any], *, mode: str | None, options: Mapping[str, Any], dynamic: bool | None
) -> Callable[..., Any]:
    """What ``torch.compile(backend="inductor")`` does with one graph, without its equality across sessions."""
    compiled: Callable[..., Any] = _need("torch._inductor.compile_fx", "compile_fx")(
        graph, inputs, config_patches=inductor_settings(mode=mode, options=options, dynamic=dynamic)
    )
    return compiled


def takes_recompile_limit() -> bool:
    """Whether ``torch.compile`` has a limit of its own; where it has, the configuration's holds in one thread only."""
    import torch

    return "recompile_limit" in inspect.signature(torch.compile).parameters


def compile_counters() -> MutableMapping[str, MutableMapping[str, int]]:
    """Dynamo's counters by group; the groups read are ``inductor``, ``aot_autograd`` and ``stats``."""
    counters: MutableMapping[str, MutableMapping[str, int]] = _need("torch._dynamo.utils", "counters")
    return counters


def dynamo_config() -> Any:
    """Dynamo's configuration module."""
    return _need("torch._dynamo.config")


@contextlib.contextmanager
def on_real_compile(refuse: Callable[[], None]) -> Iterator[None]:
    """Call ``refuse`` where Inductor, after its cache missed, is about to generate code (strict mode)."""
    module = _need("torch._inductor.compile_fx")
    original = _need("torch._inductor.compile_fx", "fx_codegen_and_compile")

    def guarded(*args: Any, **kwargs: Any) -> Any:
        refuse()
        return original(*args, **kwargs)

    module.fx_codegen_and_compile = guarded
    try:
        yield
    finally:
        module.fx_codegen_and_compile = original


def compiled_call(module: Any) -> Callable[..., Any] | None:
    """What ``module(...)`` runs instead of its own forward; set by ``Module.compile``."""
    call: Callable[..., Any] | None = module._compiled_call_impl
    return call


def set_compiled_call(module: Any, call: Callable[..., Any] | None) -> None:
    """Replace what ``module(...)`` runs; None returns to the plain forward."""
    module._compiled_call_impl = call


def plain_call(module: Any) -> Callable[..., Any]:
    """The uncompiled ``module(...)``: forward with its hooks."""
    call: Callable[..., Any] = module._call_impl
    return call


def original_module(module: Any) -> Any:
    """The module inside ``torch.compile(module)``, or the module itself."""
    return getattr(module, "_orig_mod", module)


# --- C++ kernels ---------------------------------------------------------------------------------------------------


def code_cache() -> Any:
    """Inductor's code cache module; ``write`` and ``_precompile_header`` in it are wrapped by ``kernels``."""
    module = _need("torch._inductor.codecache")
    _need("torch._inductor.codecache", "write")
    return module


def local_cache_backend() -> Any:
    """The class whose ``_get(key)`` and ``_put(key, data)`` keep results of autotuning in files; None without it."""
    try:
        _need("torch._inductor.remote_cache", "LocalCacheBackend", "_put")
        return _need("torch._inductor.remote_cache", "LocalCacheBackend")
    except UnsupportedError:
        return None


def forget_headers() -> None:
    """Have Inductor look for its precompiled headers again: it remembers their paths for ever."""
    header = getattr(code_cache(), "_precompile_header", None)
    while header is not None and not hasattr(header, "cache_clear"):
        header = getattr(header, "__wrapped__", None)
    if header is not None:
        header.cache_clear()


def isa_class() -> Any:
    """The base class of Inductor's vector ISAs, whose ``check_build(code)`` compiles and loads a probe."""
    cls = _need("torch._inductor.cpu_vec_isa", "VecISA")
    _need("torch._inductor.cpu_vec_isa", "VecISA", "check_build")
    return cls


def compiler_version() -> str:
    """What the C++ compiler Inductor would use says of itself. Raises if there is none."""
    builder = _need("torch._inductor.cpp_builder")
    return str(builder.get_compiler_version_info(builder.get_cpp_compiler()))


def compiler_lookup() -> Any:
    """The module whose ``get_cpp_compiler()`` names the C++ compiler, and raises where there is none."""
    _need("torch._inductor.cpp_builder", "get_cpp_compiler")
    return _need("torch._inductor.cpp_builder")


def configured_compiler() -> str:
    """The C++ compiler that Inductor is told to use, whether it is there or not: ``$CXX``, else ``g++``.

    Part of Inductor's configuration and so of its keys: where anything hits, it is what the producer's was.
    """
    configured = _need("torch._inductor.config", "cpp", "cxx")
    names = configured if isinstance(configured, (list, tuple)) else (configured,)
    return next((str(name) for name in reversed(names) if name), "g++")


def no_compiler() -> Exception:
    """The error that Inductor raises where it needs a C++ compiler and there is none."""
    error: Exception = _need("torch._inductor.exc", "InvalidCxxCompiler")()
    return error


def kernel_command_line() -> str:
    """The C++ command line for a CPU kernel, less its file names: flags, include and library paths.

    Part of every kernel's name, so a kernel built under another one is never looked up.
    """
    builder = _need("torch._inductor.cpp_builder")
    pick = _need("torch._inductor.cpu_vec_isa", "pick_vec_isa")
    options = builder.CppTorchDeviceOptions(
        vec_isa=pick(), device_type="cpu", include_pytorch=False, shared=True, extra_flags=()
    )
    return str(builder.CppBuilder(name="o", sources="i", BuildOption=options).get_command_line())


# --- what a compiled graph accepts ---------------------------------------------------------------------------------


def placeholders(graph: Any) -> list[tuple[str, Any]]:
    """(source name, value) of each graph input, e.g. ``("L['x']", FakeTensor)``."""
    found = []
    for node in graph.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        source = getattr(argument, "source", None)
        name = getattr(source, "name", node.name)
        found.append((name() if callable(name) else str(name), node.meta.get("example_value")))
    return found


def shape_guards() -> tuple[list[str], dict[str, tuple[int, int | None]]]:
    """Guards and symbol ranges of the compile in progress: (expressions, {symbol: (low, high or None)})."""
    context = _need("torch._guards", "TracingContext").try_get()
    env = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    if env is None:
        return [], {}
    ranges = {}
    for symbol, bounds in env.var_to_range.items():
        low = int(bounds.lower) if bounds.lower.is_integer else 0
        high = int(bounds.upper) if bounds.upper.is_integer and bounds.upper < 2**62 else None
        ranges[str(symbol)] = (low, high)
    return [str(guard.expr) for guard in env.guards], ranges
