"""Wrong code is never installed: another ISA, another toolchain, another ordinal, a pipeline that changed."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from cachekit.bundle import Artifact, Coverage
from cachekit.identity import Fingerprint
from cachekit.store.fetch import fetch, read_artifacts
from cachekit.store.keys import load_or_create, trusted
from cachekit.store.local import DirectoryStore
from cachekit.store.publish import Contribution, publish
from tests.functional.conftest import Run

pytestmark = pytest.mark.slow

RUN = """
    module = Model()
    session = cachekit.attach(module, dir=store)
    y = call(module, 4, 8)
    session.save(wait=True)
    report = session.report().to_json()
    session.close()
    tell(report=report, compiles=compiler_runs(), sum=y.double().sum().item(), finite=bool(y.isfinite().all()))
"""


def script(model: str) -> str:
    """The run of one model."""
    return f"Model = {model}\n" + RUN.replace("\n    ", "\n")


def only_bundle(root: Path) -> tuple[DirectoryStore, str]:
    """The store below ``root`` and the one fingerprint it has."""
    store = DirectoryStore(root / "store", namespace="local")
    (fid,) = store.profiles()
    return store, fid


def test_kernels_start_warm_without_a_compiler_run(process: Run) -> None:
    """C++ kernels and ISA answers travel: the second process runs no compiler, and computes the same bits."""
    cold = process(script("Kernel"))
    warm = process(script("Kernel"))

    assert cold["compiles"] > 1
    assert warm["compiles"] == 0
    assert warm["report"]["hits"]["kernel"] == 1
    assert warm["report"]["installed"]["probe"] >= 1
    assert warm["sum"] == cold["sum"]


def test_an_artifact_for_another_isa_is_not_installed(process: Run, tmp_path: Path) -> None:
    """A bundle whose C++ was made for another vector ISA, which torch's own key does not see, is left out and named."""
    process(script("Kernel"))
    _require(tmp_path / "cachekit", vector_isa="avx2-of-another-host")

    told = process(script("Kernel"))

    assert told["finite"]
    assert told["report"]["hits"].get("inductor", 0) == 0
    assert any("vector_isa avx2-of-another-host" in reason for reason in told["report"]["skipped"])


def _require(root: Path, **changed: str) -> None:
    """Replace the one bundle below ``root`` by one whose C++ artifacts require something else."""
    store, fid = only_bundle(root)
    key, keys = load_or_create(root / "keys"), trusted(root / "keys")
    bundle = fetch(store, fid, keys)
    assert bundle is not None
    loaded = read_artifacts(store, bundle, lambda entry: True)
    assert not loaded.problems
    artifacts = [_requiring(artifact, changed) for artifact in loaded.artifacts]
    for kept in ("store", "seen"):  # as if this machine had never had another
        (root / kept).rename(root / f"{kept}-before")
    publish(
        DirectoryStore(root / "store", namespace="local"),
        Contribution(
            Fingerprint.of(bundle.fingerprint), tuple(artifacts), Coverage(), created=int(time.time() * 1000)
        ),
        key,
        keys,
    )


def _requiring(artifact: Artifact, changed: dict[str, str]) -> Artifact:
    wanted = {name: changed.get(name, value) for name, value in artifact.requires}
    return dataclasses.replace(artifact, requires=tuple(sorted(wanted.items())))


def test_another_isa_is_another_fingerprint_and_is_named(process: Run) -> None:
    """A host with another vector ISA looks up nothing of this one, and the report names the component."""
    process(script("Product"))

    told = process(script("Product"), environment={"ATEN_CPU_CAPABILITY": "default"})

    assert told["report"]["installed"] == {}
    assert any("toolchain.cpu.vector_isa" in reason for reason in told["report"]["reasons"])


def test_a_changed_pipeline_is_filed_and_found_under_its_own_fingerprint(process: Run) -> None:
    """A module whose weights change shape after attach gets a bundle of its own, complete in the next process."""
    change = """
        module = Product(8)
        session = cachekit.attach(module, dir=store)
        if first:
            call(module, 4, 8)
        module.weight = torch.nn.Parameter(torch.full((8, 16), 0.5))
        call(module, 4, 8)
        ids = session.fingerprint.id
        report = session.report().to_json()
        session.close()
        tell(id=ids, report=report)
    """

    before = process(change, first=True)
    after = process(change, first=False)

    assert before["id"] == after["id"]
    assert before["report"]["misses"]["inductor"] == 2
    assert after["report"]["misses"] == {}
    assert after["report"]["hits"]["inductor"] == 1


def test_the_callers_own_compile_is_recorded_too(process: Run) -> None:
    """A module that the engine compiled itself is recorded, and its next start hits."""
    own = """
        module = torch.compile(Product(), dynamic=False)
        session = cachekit.attach(module, dir=store)
        call(module, 4, 8)
        report = session.report().to_json()
        session.close()
        tell(report=report)
    """

    cold = process(own)["report"]
    warm = process(own)["report"]

    assert cold["misses"]["inductor"] == 1
    assert warm["misses"] == {}
    assert warm["installed"]["inductor"] == 1
