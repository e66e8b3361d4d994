"""The part of torch's compile configuration that deviates: complete, stable, and without what changes no code."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
import torch.compiler.config
import torch.fx.experimental._config
from torch._inductor.custom_graph_pass import CustomGraphPass

from cachekit.identity import Plan, configs, fingerprint

ROOT = Path(__file__).parents[3]
INDUCTOR, DYNAMO = torch._inductor.config, torch._dynamo.config


def in_new_process(environment: dict[str, str], statement: str = "") -> dict[str, Any]:
    """Deviations of a new process with these environment variables, after an optional statement."""
    script = f"""
import json, torch, torch._dynamo, torch._inductor.config
{statement}
from cachekit.identity import configs
print(json.dumps(configs.deviations()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_nothing_deviates_by_itself() -> None:
    """A fresh torch is told by its version alone."""
    assert configs.deviations() == {}


@pytest.mark.parametrize("short", configs.MODULES)
def test_introspection_works_on_this_torch(short: str) -> None:
    """Fails loudly when an upgrade moves a configuration module or changes how it is made."""
    module = importlib.import_module(configs.MODULES[short])
    entries = list(configs._entries(module))
    clean = configs._run_clean(module)

    assert entries
    assert short != "inductor" or len(entries) > 300
    assert all(name in clean for name, _, _ in entries)
    assert [name for name, value, default in entries if not configs._same(value, default)] == []


def test_the_lists_of_irrelevant_settings_still_name_settings() -> None:
    """A setting that torch renamed would silently start to count."""
    known = {
        f"{short}.{name}"
        for short, path in configs.MODULES.items()
        for name in importlib.import_module(path)._config
    }
    gone_by_design = {"dynamo.issue_3_13_0_warning", "dynamo.skip_code_recursive_on_recompile_limit_hit"}

    assert configs._NO_CODE - gone_by_design <= known
    assert configs._HANDLED_ELSEWHERE | configs._KEPT | set(configs.SET_BY_DYNAMIC) <= known
    assert all(any(name.startswith(prefix) for name in known) for prefix in configs._LOGGING)
    assert "compile_threads" in INDUCTOR._cache_config_ignore_prefix
    assert "recompile_limit" in DYNAMO._compile_ignored_keys


@pytest.mark.parametrize(
    ("module", "patch", "told"),
    [
        (INDUCTOR, {"max_autotune": True}, {"inductor.max_autotune": True}),
        (INDUCTOR, {"triton.cudagraphs": True}, {"inductor.triton.cudagraphs": True}),
        (INDUCTOR, {"emulate_precision_casts": True}, {"inductor.emulate_precision_casts": True}),
        (INDUCTOR, {"trace.provenance_tracking_level": 1}, {"inductor.trace.provenance_tracking_level": 1}),
        (
            INDUCTOR,
            {"max_autotune_gemm_backends": "TRITON"},
            {"inductor.max_autotune_gemm_backends": "TRITON"},
        ),
        (torch._functorch.config, {"cse": False}, {"functorch.cse": False}),
        (
            torch._functorch.config,
            {"bundled_autograd_cache": True},
            {"functorch.bundled_autograd_cache": True},
        ),
        (DYNAMO, {"capture_scalar_outputs": True}, {"dynamo.capture_scalar_outputs": True}),
        (DYNAMO, {"specialize_float": True}, {"dynamo.specialize_float": True}),
        (torch.fx.experimental._config, {"use_duck_shape": False}, {"shapes.use_duck_shape": False}),
        (torch.compiler.config, {"dynamic_sources": "L['x']"}, {"compiler.dynamic_sources": "L['x']"}),
    ],
)
def test_settings_that_change_code_are_named(
    module: Any, patch: dict[str, Any], told: dict[str, Any]
) -> None:
    """One setting, one deviation, gone when it is put back."""
    with module.patch(patch):
        assert configs.deviations() == told
    assert configs.deviations() == {}


@pytest.mark.parametrize(
    ("module", "patch"),
    [
        (INDUCTOR, {"compile_threads": 3}),
        (INDUCTOR, {"worker_start_method": "spawn"}),
        (INDUCTOR, {"fx_graph_cache": False}),
        (INDUCTOR, {"autotune_remote_cache": True}),
        (INDUCTOR, {"trace.enabled": True}),
        (INDUCTOR, {"trace.debug_dir": "/tmp/x"}),
        (INDUCTOR, {"cpp.vec_isa_ok": True}),
        (DYNAMO, {"recompile_limit": 64}),
        (DYNAMO, {"accumulated_recompile_limit": 999}),
        (DYNAMO, {"verbose": True}),
        (DYNAMO, {"suppress_errors": True}),
        (DYNAMO, {"debug_dir_root": "/somewhere"}),
        (DYNAMO, {"log_compilation_metrics": False}),
        (torch.compiler.config, {"job_id": "nightly"}),
        (torch.fx.experimental._config, {"extended_debug_cpp": True}),
    ],
)
def test_settings_that_change_no_code_are_left_out(module: Any, patch: dict[str, Any]) -> None:
    """Workers, caches, tracing, logging and limits differ between machines and compile to the same code."""
    with module.patch(patch):
        assert configs.deviations() == {}


def test_inductor_settings_are_exactly_those_that_torch_keys_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch hashes must be nameable, or a miss could not be explained; what it does not hash must not count."""
    keyed = set(INDUCTOR.save_config_portable(ignore_private_configs=False))
    settings = {name: value for name, value in INDUCTOR.get_config_copy().items() if type(value) is bool}
    told = set()
    for name, value in settings.items():
        with INDUCTOR.patch({name: not value}):
            told |= {key.removeprefix("inductor.") for key in configs.deviations()}

    handled = {"trace.provenance_tracking_level", "cpp.vec_isa_ok"}
    assert told - handled == {name for name in settings if name in keyed} - handled


def test_variables_read_when_torch_is_imported_are_told() -> None:
    """Most of Inductor's defaults come from the environment: the same value is told, however it was set."""
    by_environment = in_new_process(
        {
            "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
            "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS": "1",
            "CXX": "/opt/toolset/bin/g++",
            "TORCHINDUCTOR_PERSISTENT_REDUCTIONS": "1",  # what it is anyway
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": "/srv/cache",
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCH_LOGS": "-dynamo",
            "HOME": "/nowhere",
        }
    )
    by_assignment = in_new_process(
        {},
        "torch._inductor.config.max_autotune = True; torch._dynamo.config.capture_scalar_outputs = True;"
        "torch._inductor.config.cpp.cxx = (None, '/opt/toolset/bin/g++')",
    )

    assert by_environment == by_assignment
    assert by_environment.pop("inductor.cpp.cxx")[1].startswith("g++@")
    assert by_environment == {"inductor.max_autotune": True, "dynamo.capture_scalar_outputs": True}


def test_a_variable_overruled_in_the_program_is_not_told() -> None:
    """What counts is the value, not where it came from."""
    overruled = in_new_process(
        {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, "torch._inductor.config.max_autotune = False"
    )

    assert overruled == {}


def test_custom_passes_are_told_by_their_uuid() -> None:
    """As Inductor does: a pass says itself what it is; one without uuid is told by its source."""

    class Pass(CustomGraphPass):
        def __init__(self, version: int) -> None:
            self.version = version

        def __call__(self, graph: Any) -> None:
            pass

        def uuid(self) -> Any:
            return f"pass-{self.version}".encode()

    class Broken(Pass):
        def uuid(self) -> Any:
            raise RuntimeError

    told = []
    for custom in (Pass(1), Pass(1), Pass(2), Broken(1), lambda graph: None):
        with INDUCTOR.patch(post_grad_custom_post_pass=custom):
            told.append(json.dumps(configs.deviations()))

    assert told[0] == told[1]
    assert len(set(told)) == 4
    assert all("inductor.post_grad_custom_post_pass" in each for each in told)


def test_a_value_that_compares_badly_is_told() -> None:
    """Users may put anything into a setting: it is told by its type and never raises."""

    class Awkward:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    with INDUCTOR.patch(custom_partitioner_fn=Awkward()):
        told = configs.deviations()["inductor.custom_partitioner_fn"]

    assert told["type"].startswith("Test") or "Awkward" in told["type"]


def test_a_module_that_cannot_be_read_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade that breaks the introspection still gives a stable fingerprint."""

    def broken(module: Any) -> Any:
        raise TypeError

    monkeypatch.setattr(configs, "_entries", broken)

    assert configs.deviations() == dict.fromkeys(configs.MODULES, "unreadable:TypeError")


@pytest.mark.parametrize("dynamic", [True, False])
def test_what_the_plan_sets_itself_is_not_told_twice(dynamic: bool) -> None:
    """``dynamic=True`` sets these settings while torch compiles: the id must not change with the moment of asking."""
    plan, module = Plan("cpu", dynamic=dynamic), torch.nn.Linear(2, 2)
    outside = fingerprint(module, plan)
    with DYNAMO.patch(assume_static_by_default=not dynamic, automatic_dynamic_shapes=False):
        assert fingerprint(module, plan) == outside
        undecided = fingerprint(module, Plan("cpu", dynamic=None))

    assert undecided != fingerprint(module, Plan("cpu", dynamic=None))


def test_cache_key_tag() -> None:
    """torch's own salt is a component of its own."""
    module, plan = torch.nn.Linear(2, 2), Plan("cpu")
    before = fingerprint(module, plan)
    with torch.compiler.config.patch(cache_key_tag="epoch-2"):
        found = before.diff(fingerprint(module, plan))

    assert [str(each) for each in found] == ['toolchain.cache_key_tag: "" / "epoch-2"']
