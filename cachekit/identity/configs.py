"""What torch's compile configuration deviates from, with nothing set: the part of it that changes code.

torch has about 900 settings in five configuration modules. A fingerprint names the ones whose value differs from the
default that torch would have in an empty environment; the torch version, also in the fingerprint, tells the rest.

Which settings count:

* Inductor and AOTAutograd hash their whole configuration into their keys, minus lists of their own. The same lists
  are honoured here and nothing else is left out: a setting that torch keys on makes misses, however harmless it looks,
  and then ``explain`` must be able to name it.
* Dynamo's configuration is in no key. What torch marks as irrelevant to compiling is left out, and what only logs.
* ``cpp.vec_isa_ok`` is a requirement of the host (``host.py``), not a component.
"""

from __future__ import annotations

import builtins
import importlib
import os
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cachekit.identity.stable import stable

MODULES: Final[Mapping[str, str]] = {
    "inductor": "torch._inductor.config",
    "inductor_comms": "torch._inductor.config_comms",
    "functorch": "torch._functorch.config",
    "dynamo": "torch._dynamo.config",
    "shapes": "torch.fx.experimental._config",
    "compiler": "torch.compiler.config",
}

SET_BY_DYNAMIC: Final = ("dynamo.assume_static_by_default", "dynamo.automatic_dynamic_shapes")
"""``torch.compile(dynamic=True or False)`` sets these while it compiles: the plan tells them already."""

_KEPT: Final = frozenset({"inductor.trace.provenance_tracking_level"})
"""In Inductor's key although its prefix is on the list of ignored ones."""

_HANDLED_ELSEWHERE: Final = frozenset({"inductor.cpp.vec_isa_ok", "compiler.cache_key_tag"})

_NO_CODE: Final = frozenset(
    f"dynamo.{name}"
    for name in (
        "automatic_dynamic_local_pgo",
        "automatic_dynamic_remote_pgo",
        "base_dir",
        "debug_disable_compile_counter",
        "issue_3_13_0_warning",
        "log_compilation_metrics",
        "log_graph_in_out_metadata",
        "pt2_compile_id_prefix",
        "record_compile_time_instruction_count",
        "record_runtime_overhead",
        "run_gc_after_compile",
        "skip_code_recursive_on_recompile_limit_hit",
        "suppress_errors",
    )
) | frozenset(f"compiler.{name}" for name in ("job_id", "pgo_extra_read_key", "pgo_extra_write_key"))

_LOGGING: Final = ("shapes.extended_debug", "shapes.print_", "shapes.translation_validation")
_CUSTOM_PASSES: Final = (
    "pre_grad_custom_pass",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "_pre_fusion_custom_pass",
    "_post_fusion_custom_pass",
    "_fuse_ddp_communication_passes",
)
"""On Inductor's list of ignored prefixes because it keys them by their ``uuid()``; so do we."""


def deviations() -> dict[str, Any]:
    """Settings that differ from their defaults, as ``{"inductor.max_autotune": True}``; values as stable JSON.

    Settings are per thread in torch: call this on the thread that compiles. Nothing raises; a configuration module
    that this torch lacks is left out, and one that cannot be read is told as unreadable.
    """
    found: dict[str, Any] = {}
    for short, name in MODULES.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        try:
            found.update(_deviations(short, module))
        except Exception as exc:  # noqa: BLE001 - torch promises nothing about these modules
            found[short] = f"unreadable:{type(exc).__name__}"
    return found


def setting(name: str) -> Any:
    """One setting by dotted name, e.g. ``torch._inductor.config.cpp.simdlen``; None if this torch lacks it."""
    module, _, path = name.partition(".config.")
    try:
        value: Any = importlib.import_module(f"{module}.config")
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    return value


def _deviations(short: str, module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    prefixes = tuple(f"{short}.{prefix}" for prefix in getattr(module, "_cache_config_ignore_prefix", ()))
    ignored = {f"{short}.{name}" for name in getattr(module, "_compile_ignored_keys", ())}
    ignored |= _NO_CODE | _HANDLED_ELSEWHERE
    for key, value, default in _entries(module):
        name = f"{short}.{key}"
        if key.endswith(_CUSTOM_PASSES):
            if value is not None and not _same(value, default):
                yield name, _pass(value)
        elif name in ignored or name.startswith(_LOGGING):
            continue
        elif (name in _KEPT or not name.startswith(prefixes)) and not _same(value, default):
            yield name, stable(value)


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    try:
        return bool(type(value) is type(default) and value == default) or stable(value) == stable(default)
    except Exception:  # noqa: BLE001 - values of users compare as they like
        return False


def _pass(custom: Any) -> Any:
    """A custom graph pass as Inductor keys it: by its own ``uuid()``, else by its source."""
    uuid = getattr(custom, "uuid", None)
    if not callable(uuid):
        return stable(custom)
    try:
        return {"uuid": stable(uuid())}
    except Exception:  # noqa: BLE001 - code of users; its type still tells passes apart
        return stable(type(custom))


# --- torch's configuration modules: the one place that knows how they are made ------------------------------------


def _entries(module: types.ModuleType) -> Iterator[tuple[str, Any, Any]]:
    """(name, value now on this thread, default in an empty environment) of each setting; aliases are left out.

    The declared default will not do: most of Inductor's are read from the environment when torch is imported.
    """
    values = module.get_config_copy()
    clean = _clean_defaults(module)
    for name, entry in module._config.items():
        if name in values and not name.startswith(("_save_config", "_cache_config")):
            yield name, values[name], clean.get(name, entry.default)


_defaults: dict[str, Mapping[str, Any]] = {}


def _clean_defaults(module: types.ModuleType) -> Mapping[str, Any]:
    """The defaults a configuration module would declare with no environment variable set, found once a process.

    Its source is run once more, with an ``os`` whose environment is empty and without installing the result. If
    torch ever makes that impossible, the declared defaults are used: then variables set before torch was imported
    are missing from fingerprints, and ``test_configs.py`` says so.
    """
    kept = _defaults.get(module.__name__)
    if kept is None:
        try:
            kept = _run_clean(module)
        except Exception:  # noqa: BLE001 - see above: the declared defaults remain
            kept = {}
        _defaults[module.__name__] = kept
    return kept


def _run_clean(module: types.ModuleType) -> dict[str, Any]:
    path = str(module.__file__)
    plain_os = types.ModuleType("os")
    plain_os.__dict__.update(vars(os))
    plain_os.__dict__.update(environ={}, getenv=lambda name, default=None: default)
    tools = importlib.import_module("torch.utils._config_module")
    plain_tools = types.ModuleType(tools.__name__)
    plain_tools.__dict__.update(vars(tools))
    plain_tools.__dict__.update(
        install_config_module=lambda module: None,
        get_tristate_env=lambda name, default=None: default,
    )
    replaced = {"os": plain_os, tools.__name__: plain_tools}

    def import_plain(name: str, *args: Any, **kwargs: Any) -> Any:
        return replaced.get(name) or builtins.__import__(name, *args, **kwargs)

    namespace: dict[str, Any] = {
        "__name__": module.__name__,
        "__file__": path,
        "__package__": module.__package__,
        "__builtins__": {**vars(builtins), "__import__": import_plain},
    }
    code = compile(Path(path).read_text(encoding="utf-8"), path, "exec")
    exec(code, namespace)  # noqa: S102 - torch's own installed source, for its defaults
    return dict(_declared(namespace, "", module.__name__, tools._Config))


def _declared(
    scope: Mapping[str, Any], prefix: str, home: str, config_type: type
) -> Iterator[tuple[str, Any]]:
    """Defaults in a namespace or class body, nested classes included, named as torch names them."""
    for name, value in list(scope.items()):
        if name.startswith("__"):
            continue
        if isinstance(value, config_type):
            yield prefix + name, value.default  # type: ignore[attr-defined]
        elif isinstance(value, type) and value.__module__ == home:
            yield from _declared(vars(value), f"{prefix}{name}.", home, config_type)
        elif isinstance(value, (int, float, str, list, set, tuple, dict, type(None))):
            yield prefix + name, value
