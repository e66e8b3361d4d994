"""One measurement of what cachekit costs, in a process of its own; writes JSON.

    python -m benchmarks.cost.measure --what save --device cpu --work FOLDER --result FILE

``save`` leaves a store and a Mega-cache file of the same artifacts in the work folder; ``install`` and ``load`` and
their memory read them.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import write_json

CALLS = 10_000
BLOCKS = 50
BUNDLE_BYTES = 60_000_000
ROUNDS = 3

_started = time.perf_counter()


# --- calls -----------------------------------------------------------------------------------------------------------


def calls(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds a call of an empty forward: eager, compiled by torch, and attached, in turns."""
    import torch

    from benchmarks.cost import modules

    denoiser = modules.EmptyDenoiser.inputs(given.device)
    x = torch.zeros(2, device=given.device)
    facts: dict[str, Any] = {"calls": CALLS}
    for name, make, arguments in (
        ("module", modules.Empty, {"x": x}),
        ("denoiser", modules.EmptyDenoiser, denoiser),
    ):
        attached, session = _attached(make(), given)
        facts[name] = _interleaved(
            {"eager": make(), "compiled": _compiled(make()), "attached": attached}, arguments
        )
        session.generation_started()  # as a pipeline's calls are: many of them one generation
        facts[name]["attached_in_generation_s"] = _interleaved({"attached": attached}, arguments)[
            "attached_s"
        ]
        session.close()
    return facts


def blocks(given: argparse.Namespace) -> dict[str, Any]:
    """The same for a model of many small compiled blocks."""
    import torch

    from benchmarks.cost.modules import Stack

    plain = Stack(BLOCKS).to(given.device)
    for block in plain.blocks:
        block.compile(fullgraph=True, dynamic=True)
    attached, session = _attached(Stack(BLOCKS).to(given.device), given)
    x = torch.zeros(4, 8, device=given.device)
    facts = _interleaved({"compiled": plain, "attached": attached}, {"x": x}, calls=1000)
    session.close()
    return {"blocks": BLOCKS, "per_block_s": facts["added_to_compiled_s"] / BLOCKS, **facts}


def _attached(module: Any, given: argparse.Namespace) -> tuple[Any, Any]:
    import cachekit

    session = cachekit.attach(module.to(given.device), dir=tempfile.mkdtemp(), save="never")
    return module, session


def _compiled(module: Any) -> Any:
    module.compile(dynamic=False)
    return module


def _interleaved(
    modules: Mapping[str, Any], arguments: Mapping[str, Any], *, calls: int = CALLS
) -> dict[str, Any]:
    """Median seconds of each, called in turns; what the last one adds to each of the others."""
    import torch

    seconds: dict[str, list[float]] = {name: [] for name in modules}
    with torch.no_grad():
        for module in modules.values():
            for _ in range(20):
                module(**arguments)
        for _ in range(calls):
            for name, module in modules.items():
                started = time.perf_counter()
                module(**arguments)
                seconds[name].append(time.perf_counter() - started)
    facts: dict[str, Any] = {f"{name}_s": statistics.median(found) for name, found in seconds.items()}
    for name in modules:
        if name != "attached":
            facts[f"added_to_{name}_s"] = facts["attached_s"] - facts[f"{name}_s"]
    return facts


def record(given: argparse.Namespace) -> dict[str, Any]:
    """Compile what the bundles of the others are made of."""
    from benchmarks.cost import bundle

    recorded = bundle.record(given.device)
    (given.work / "recorded.pickle").write_bytes(pickle.dumps(recorded))
    return {"artifacts": {artifact.kind: len(artifact.data) for artifact in recorded}}


# --- saving ----------------------------------------------------------------------------------------------------------


class Engine:
    """An attached module on its device, and a way to have compiled something large."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        import torch

        import cachekit
        from benchmarks.cost.modules import Pointwise

        self.module = Pointwise(8).to(given.device)
        self.x = torch.ones(4, 8, device=given.device)
        self.session = cachekit.attach(self.module, dir=folder)

    def step(self) -> None:
        """One forward."""
        import torch

        with torch.no_grad():
            self.module(self.x)

    def compile_large(self, artifacts: Sequence[tuple[str, str, bytes]]) -> None:
        """Have torch record these artifacts as if a compile of this session had made them."""
        from cachekit.runtime import recorder, torch_private

        manager = torch_private.artifact_manager()
        with recorder.scope(self.session.recording):
            for kind, key, data in artifacts:
                manager.record_artifact(kind, key, data)


def save(given: argparse.Namespace) -> dict[str, Any]:
    """Hand over a large bundle and go on generating while it is saved."""
    from benchmarks.cost import bundle
    from benchmarks.cost.clocks import StandstillClock

    recorded = _recorded(given)
    engine = Engine(given, given.work / "cachekit")
    engine.step()
    engine.session.save(wait=True)
    clock = StandstillClock(engine.step)
    rounds = []
    for number in range(ROUNDS):
        artifacts = bundle.multiplied(recorded, BUNDLE_BYTES, salt=f"round {number} ")
        if number == 0:
            _write_raw(given.work / "raw.bin", artifacts)
            folder = given.work / "cachekit"
        rounds.append(_round(engine, artifacts, clock))
        if number == 0:
            engine.session.save(wait=True)
            shutil.copytree(folder, given.work / "stored", ignore=shutil.ignore_patterns("process"))
    report = engine.session.report()
    engine.session.close()
    return {"rounds": rounds, "saved_generations": report.saved_generations, "reasons": report.reasons}


def _round(engine: Engine, artifacts: Sequence[tuple[str, str, bytes]], clock: Any) -> dict[str, Any]:
    quiet_until = time.perf_counter() + 1.5
    facts: dict[str, Any] = {
        "bytes": sum(len(data) for _, _, data in artifacts),
        "artifacts": len(artifacts),
        "without_a_save": clock.run(lambda: time.perf_counter() > quiet_until),
    }
    engine.compile_large(artifacts)
    engine.session.generation_started()
    facts["filing_s"] = _timed(engine.step)
    facts["hand_over_s"] = _timed(engine.session.generation_finished)
    saved = threading.Event()
    started = time.perf_counter()
    waiter = threading.Thread(target=lambda: (engine.session.save(wait=True), saved.set()))
    waiter.start()
    facts["during_a_save"] = clock.run(saved.is_set)
    facts["save_s"] = time.perf_counter() - started
    waiter.join()
    return facts


def _recorded(given: argparse.Namespace) -> Any:
    return pickle.loads((given.work / "recorded.pickle").read_bytes())


def _write_raw(path: Path, artifacts: Sequence[tuple[str, str, bytes]]) -> None:
    from cachekit.bundle import Artifact, guards_of, megacache

    path.write_bytes(
        megacache.encode(Artifact(kind, key, data, guards_of(kind, data)) for kind, key, data in artifacts)
    )


def save_memory(given: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of one save, everything that it imports being imported before."""
    from benchmarks.cost import bundle
    from benchmarks.cost.clocks import peak_memory

    engine = Engine(given, Path(tempfile.mkdtemp()))
    engine.step()
    engine.session.save(wait=True)
    artifacts = bundle.multiplied(_recorded(given), BUNDLE_BYTES)
    engine.compile_large(artifacts)
    facts: dict[str, Any] = {"bundle_bytes": sum(len(data) for _, _, data in artifacts)}
    gc.collect()
    with peak_memory(facts):
        engine.session.generation_started()
        engine.step()
        engine.session.generation_finished()
        engine.session.save(wait=True)
    facts["saved_generations"] = engine.session.report().saved_generations
    del artifacts
    facts["torch"] = {}
    import torch

    with peak_memory(facts["torch"]):  # what torch's own way to save would have taken
        saved = torch.compiler.save_cache_artifacts()
    facts["torch"]["bundle_bytes"] = len(saved[0]) if saved is not None else 0
    return facts


# --- starting --------------------------------------------------------------------------------------------------------


def install(given: argparse.Namespace) -> dict[str, Any]:
    """Attach with a store that holds the large bundle: seconds of every step, and the first call after it."""
    engine, facts = _start(given, _copy(given))
    facts["first_call_s"] = _timed(engine.step)
    facts["report"] = _told(engine)
    engine, again = _start(given, _copy(given))  # everything that torch and the library import is there now
    return facts | {"again": {**again, **_told(engine)}}


def install_memory(given: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of the same, after everything that it imports is imported."""
    from benchmarks.cost.clocks import peak_memory

    _warm_imports(given)
    facts: dict[str, Any] = {"bundle_bytes": (given.work / "raw.bin").stat().st_size}
    folder = _copy(given)
    gc.collect()
    with peak_memory(facts):
        engine, _ = _start(given, folder)
    return facts | {"report": _told(engine)}


def load(given: argparse.Namespace) -> dict[str, Any]:
    """torch's own loader, given the same artifacts in one file: seconds, in a fresh process and once more."""
    import torch
    import torch._dynamo

    data, read_s = _value_timed((given.work / "raw.bin").read_bytes)
    info, load_s = _value_timed(lambda: torch.compiler.load_cache_artifacts(data))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    again_s = _timed(lambda: torch.compiler.load_cache_artifacts(data))
    artifacts = sum(map(len, info.artifacts.values()))
    return {"read_s": read_s, "load_s": load_s, "again_s": again_s, "artifacts": artifacts}


def load_memory(given: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of torch's own loader, the file's bytes included."""
    import torch

    from benchmarks.cost.clocks import peak_memory

    _warm_imports(given)
    facts: dict[str, Any] = {"bundle_bytes": (given.work / "raw.bin").stat().st_size}
    gc.collect()
    with peak_memory(facts):
        torch.compiler.load_cache_artifacts((given.work / "raw.bin").read_bytes())
    return facts


def _copy(given: argparse.Namespace) -> Path:
    folder = Path(tempfile.mkdtemp()) / "cachekit"
    shutil.copytree(given.work / "stored", folder)
    return folder


def _start(given: argparse.Namespace, folder: Path) -> tuple[Engine, dict[str, Any]]:

    import_s = time.perf_counter() - _started
    cpu = time.process_time()  # tells the work where other processes take turns on the cores
    engine, attach_s = _value_timed(lambda: Engine(given, folder))
    cpu_s = time.process_time() - cpu
    return engine, {"import_torch_s": import_s, "attach_s": attach_s, "attach_cpu_s": cpu_s}


def _warm_imports(given: argparse.Namespace) -> None:
    """Start, save and start again with next to nothing, so that modules and pools are there."""
    folder = Path(tempfile.mkdtemp()) / "small"
    for _ in range(2):
        engine = Engine(given, folder)
        engine.step()
        engine.session.save(wait=True)
        engine.session.close()


def _told(engine: Engine) -> dict[str, Any]:
    report = engine.session.report().to_json()
    engine.session.close()
    names = ("installed", "hits", "misses", "load_s", "steps", "reasons")
    return {name: report.get(name) for name in names}


def _timed(function: Callable[[], Any]) -> float:
    return _value_timed(function)[1]


def _value_timed(function: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    value = function()
    return value, time.perf_counter() - started


MEASUREMENTS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "record": record,
    "calls": calls,
    "blocks": blocks,
    "save": save,
    "save_memory": save_memory,
    "install": install,
    "install_memory": install_memory,
    "load": load,
    "load_memory": load_memory,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description="One measurement.")
    parser.add_argument("--what", required=True, choices=MEASUREMENTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    given = parser.parse_args(arguments)
    write_json(given.result, MEASUREMENTS[given.what](given))


if __name__ == "__main__":
    main()
