"""Installing: what this host may use goes where torch looks, the rest is left out and named, and nothing is raised."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cachekit.bundle import Artifact, Bundle, requires
from cachekit.errors import CorruptError, StoreError, UnsupportedError
from cachekit.runtime import installer, kernels, recorder, torch_private
from cachekit.runtime.installer import Installed
from cachekit.runtime.process import PrivateFolder
from cachekit.store.base import Store
from cachekit.store.local import DirectoryStore
from cachekit.store.memory import MemoryStore
from tests.unit.runtime.helpers import ELF, HOST, KERNEL, OTHER_KERNEL, PROBE, fixture_artifacts, kernel
from tests.unit.store.world import World

MACHINE = {"arch": "x86_64", "cpu_flags": "f" * 32}
COMMAND = {**MACHINE, "command": "c" * 32}
AUTOTUNE = Artifact("autotune", f"aa/{'0' * 64}.best_config", b'{"XBLOCK": 8}')


class Refused:
    """Pickles into something that runs a command when torch loads it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of either kind."""
    return (
        MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path / "store", namespace="local")
    )


@pytest.fixture
def memory() -> MemoryStore:
    """A store in memory."""
    return MemoryStore()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateFolder:
    """A private folder that torch loads into."""
    made = PrivateFolder(tmp_path / "process")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(made.inductor))
    return made


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, no_answers: dict[str, bool]) -> None:
    """A host that kernels may ask about, and no probe answered yet."""
    monkeypatch.setattr(kernels, "host_requirements", lambda: MACHINE)
    monkeypatch.setattr(kernels, "command_line", lambda: COMMAND)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, no_answers: dict[str, bool]) -> list[str]:
    """The same host; tells what it was asked."""
    told: list[str] = []
    monkeypatch.setattr(kernels, "host_requirements", lambda: told.append("host") or MACHINE)
    monkeypatch.setattr(kernels, "command_line", lambda: told.append("command") or COMMAND)
    return told


def published(store: Store, *artifacts: Artifact) -> Bundle:
    """The bundle of these artifacts, published."""
    return World(store).save(*artifacts).bundle


def install(store: Store, bundle: Bundle, folder: PrivateFolder) -> Installed:
    """Install on a host that is ``HOST``."""
    return installer.install(store, bundle, folder, HOST)


def present(folder: PrivateFolder) -> set[str]:
    """Names of everything in torch's folder."""
    return {path.name for path in folder.inductor.rglob("*")}


# --- torch's artifacts ---------------------------------------------------------------------------------------------


def test_artifacts_go_where_torch_looks(
    store: Store, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """Everything a bundle lists is read from the store, given to torch and counted by kind."""
    done = install(store, published(store, *artifacts, AUTOTUNE), folder)

    assert done.counts == {"inductor": 2, "aot_autograd": 2, "autotune": 1}
    assert {artifact.key for artifact in artifacts} <= present(folder)
    assert (done.skipped, done.problems, done.damaged) == ({}, [], set())


def test_both_guards_of_one_key_are_installed(memory: MemoryStore, folder: PrivateFolder) -> None:
    """Two compiles of one key, told apart by guards, both lie in the key's folder."""
    guarded = fixture_artifacts("guards")

    done = install(memory, published(memory, *guarded), folder)

    assert done.counts == {"inductor": 2, "aot_autograd": 2}
    for artifact in guarded:
        (lookup,) = folder.inductor.rglob(artifact.key)
        assert len(list(lookup.iterdir())) == 2


def test_what_the_host_does_not_meet_is_left_out_and_named(
    memory: MemoryStore, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """An artifact for another vector ISA never reaches torch; the reason names both."""
    theirs = tuple(replace(a, requires=requires({**HOST, "vector_isa": "avx2"})) for a in artifacts[:2])
    bundle = published(memory, *theirs, *artifacts[2:])

    done = install(memory, bundle, folder)

    assert done.counts == {"inductor": 1, "aot_autograd": 1}
    assert done.skipped == {"vector_isa avx2 is required, here avx512": 2}
    assert not {artifact.key for artifact in theirs} & present(folder)


def test_a_requirement_that_nobody_knows_is_not_met(
    memory: MemoryStore, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """What a newer release requires, this one cannot check."""
    needed = tuple(replace(artifact, requires=(("moon", "full"),)) for artifact in artifacts)

    done = install(memory, published(memory, *needed), folder)

    assert done.skipped == {"moon full is required, here unknown": 4}
    assert done.counts == {}


def test_all_differences_are_named(
    memory: MemoryStore, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """One reason names everything that differs."""
    needed = replace(artifacts[0], requires=requires({"arch": "aarch64", "vector_isa": "sve"}))

    done = install(memory, published(memory, needed), folder)

    assert list(done.skipped) == [
        "arch aarch64 is required, here x86_64, vector_isa sve is required, here avx512"
    ]


def test_a_refused_artifact_is_named_and_the_rest_installed(
    memory: MemoryStore, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """The last look finds a pickle that runs a command: torch never gets it, the others are used."""
    harmful = Artifact("inductor", "f" + "a" * 51, pickle.dumps(Refused()))

    done = install(memory, published(memory, harmful, *artifacts), folder)

    assert done.counts == {"inductor": 2, "aot_autograd": 2}
    assert len(done.problems) == 1
    assert harmful.key in done.problems[0]
    assert "system" in done.problems[0]
    assert harmful.key not in present(folder)


def test_a_blob_that_was_lost_is_named_and_to_be_offered_again(
    memory: MemoryStore, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """What cannot be read costs only itself."""
    bundle = published(memory, *artifacts)
    lost = bundle.entries[0]
    memory.quarantine_blob(lost.stored_digest)

    done = install(memory, bundle, folder)

    assert sum(done.counts.values()) == 3
    assert len(done.problems) == 1
    assert lost.key in done.problems[0]
    assert done.damaged == {lost.identity.id}


def test_an_empty_bundle_does_not_wake_torch(
    memory: MemoryStore, folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing to load, torch is not asked to load."""
    monkeypatch.setattr(torch_private, "load_artifacts", lambda data: pytest.fail("asked"))

    done = install(memory, replace(published(memory, AUTOTUNE), entries=()), folder)

    assert done.counts == {}


# --- torch fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        pickle.UnpicklingError("bad"),
        AssertionError("pgo is off"),
    ],
)
def test_what_torch_raises_is_reported_and_not_raised(
    memory: MemoryStore,
    folder: PrivateFolder,
    artifacts: tuple[Artifact, ...],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """A load that fails half-way is told with its class and text; nothing counts as installed."""

    def fail(data: bytes) -> int:
        raise error

    monkeypatch.setattr(torch_private, "load_artifacts", fail)

    done = install(memory, published(memory, *artifacts), folder)

    assert done.problems == [f"torch loaded the bundle in part: {type(error).__name__}: {error}"]
    assert done.counts == {}


def test_a_refusal_of_torch_is_reported(
    memory: MemoryStore,
    folder: PrivateFolder,
    artifacts: tuple[Artifact, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch says None where it could not read the bundle."""
    monkeypatch.setattr(torch_private, "load_artifacts", lambda data: None)

    done = install(memory, published(memory, *artifacts), folder)

    assert done.problems == ["torch refused the bundle; its log says why"]
    assert done.counts == {}


def test_a_full_disk_is_reported(
    memory: MemoryStore, folder: PrivateFolder, artifacts: tuple[Artifact, ...]
) -> None:
    """A folder that torch really cannot write into is a problem of the cache, not of the engine."""
    folder.inductor.rmdir()
    folder.inductor.touch()

    done = install(memory, published(memory, *artifacts), folder)

    assert len(done.problems) == 1
    assert done.counts == {}


def test_a_torch_without_mega_cache_is_an_error(
    memory: MemoryStore,
    folder: PrivateFolder,
    artifacts: tuple[Artifact, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own errors are for the session to tell."""

    def fail(data: bytes) -> int:
        raise UnsupportedError("this torch has no load_cache_artifacts")

    monkeypatch.setattr(torch_private, "load_artifacts", fail)

    with pytest.raises(UnsupportedError):
        install(memory, published(memory, *artifacts), folder)


def test_loading_holds_the_compile_lock(
    memory: MemoryStore,
    folder: PrivateFolder,
    artifacts: tuple[Artifact, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a bundle is loaded no other thread compiles (pytorch#192103)."""
    lock = torch_private.compile_lock()
    free: list[bool] = []

    def load(data: bytes) -> int:
        thread = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False)))  # type: ignore[attr-defined]
        thread.start()
        thread.join()
        return 4

    monkeypatch.setattr(torch_private, "load_artifacts", load)

    install(memory, published(memory, *artifacts), folder)

    assert free == [False]


# --- kernels -------------------------------------------------------------------------------------------------------


def test_kernels_and_probes_are_installed_where_the_host_is_the_same(
    memory: MemoryStore, folder: PrivateFolder, host: None, no_answers: dict[str, bool]
) -> None:
    """The kernel lies where torch looks, and the probe is answered."""
    bundle = published(memory, kernel(**COMMAND), kernel(PROBE, b"1", **MACHINE))

    done = install(memory, bundle, folder)

    assert done.counts == {"kernel": 1, "probe": 1}
    assert (folder.inductor / KERNEL).read_bytes() == ELF
    assert no_answers == {PROBE.removesuffix(".isa"): True}


@pytest.mark.parametrize("name", sorted(COMMAND))
def test_a_kernel_of_another_host_is_not_used(
    memory: MemoryStore, folder: PrivateFolder, host: None, name: str
) -> None:
    """Any difference, the command line's included, leaves the kernel out, to be compiled and offered by this host."""
    theirs = kernel(**{**COMMAND, name: "other"})

    done = install(memory, published(memory, theirs), folder)

    assert done.counts["kernel"] == 0
    (reason,) = done.skipped
    assert f"{name} other is required, here {COMMAND[name]}" in reason
    assert not (folder.inductor / KERNEL).exists()
    assert done.damaged == {theirs.identity.id}


def test_a_probe_of_another_host_is_not_believed(
    memory: MemoryStore, folder: PrivateFolder, host: None, no_answers: dict[str, bool]
) -> None:
    """Another compiler's answer is not this one's."""
    install(memory, published(memory, kernel(PROBE, b"1", **{**MACHINE, "cpu_flags": "other"})), folder)

    assert no_answers == {}


def test_probes_are_learnt_before_the_command_line_is_asked_for(
    memory: MemoryStore,
    folder: PrivateFolder,
    asked: list[str],
    no_answers: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asking for it runs the probes that are not answered yet, 15 s of them."""
    known: list[int] = []
    monkeypatch.setattr(kernels, "command_line", lambda: known.append(len(no_answers)) or COMMAND)

    install(memory, published(memory, kernel(**COMMAND), kernel(PROBE, b"0", **MACHINE)), folder)

    assert known == [1]


def test_without_kernels_the_compiler_is_not_asked(
    memory: MemoryStore, folder: PrivateFolder, asked: list[str], artifacts: tuple[Artifact, ...]
) -> None:
    """A GPU pipeline's start runs no C++ compiler."""
    install(memory, published(memory, *artifacts), folder)

    assert asked == []


def test_a_command_line_is_not_asked_for_on_another_host(
    memory: MemoryStore, folder: PrivateFolder, asked: list[str]
) -> None:
    """Where no kernel can be used anyway, no probe is run to find that out."""
    install(memory, published(memory, kernel(**{**COMMAND, "cpu_flags": "other"})), folder)

    assert asked == ["host"]


def test_where_the_compiler_does_not_tell_no_kernel_is_installed(
    memory: MemoryStore,
    folder: PrivateFolder,
    artifacts: tuple[Artifact, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels are left out, and everything else is used."""

    def fail() -> dict[str, str]:
        raise RuntimeError("no working C++ compiler")

    monkeypatch.setattr(kernels, "host_requirements", fail)

    done = install(memory, published(memory, kernel(**COMMAND), *artifacts), folder)

    assert done.counts["kernel"] == 0
    assert done.counts["inductor"] == 2
    assert sum(done.skipped.values()) == 1


@pytest.mark.parametrize(
    "wrong",
    [kernel(KERNEL, b"#!/bin/sh", **COMMAND), kernel(PROBE, b"2", **MACHINE), kernel(PROBE, b"", **MACHINE)],
    ids=["no library", "no answer", "empty"],
)
def test_what_is_no_kernel_is_refused_and_named(
    memory: MemoryStore, folder: PrivateFolder, host: None, no_answers: dict[str, bool], wrong: Artifact
) -> None:
    """Bytes that are neither a library nor an answer go nowhere, and the rest is installed."""
    done = install(memory, published(memory, wrong, kernel(OTHER_KERNEL, **COMMAND)), folder)

    assert (done.counts["kernel"], done.counts["probe"]) == (1, 0)
    assert len(done.problems) == 1
    assert wrong.key in done.problems[0]
    assert no_answers == {}


def test_a_kernel_that_cannot_be_written_is_a_store_error(
    memory: MemoryStore, folder: PrivateFolder, host: None
) -> None:
    """The session tells it and starts cold."""
    folder.inductor.rmdir()
    folder.inductor.touch()

    with pytest.raises(StoreError, match=KERNEL):
        install(memory, published(memory, kernel(**COMMAND)), folder)


def test_a_store_that_fails_altogether_is_told_entry_by_entry(
    memory: MemoryStore,
    folder: PrivateFolder,
    artifacts: tuple[Artifact, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is installed and everything is to be offered again."""
    bundle = published(memory, *artifacts)

    def fail(digest: str, **limits: object) -> bytes:
        raise CorruptError(f"blob {digest} is damaged")

    monkeypatch.setattr(memory, "read_blob", fail)

    done = install(memory, bundle, folder)

    assert done.counts == {}
    assert len(done.problems) == 4
    assert done.damaged == {entry.identity.id for entry in bundle.entries}


def test_installed_artifacts_hit(memory: MemoryStore, folder: PrivateFolder) -> None:
    """What one compile recorded, installed into an empty folder, is found by the next."""
    recording = recorder.Recording()

    def compiled() -> int:
        torch._dynamo.reset()
        before = torch_private.compile_counters()["inductor"]["fxgraph_cache_hit"]
        with recorder.scope(recording), torch.no_grad():
            torch.compile(lambda x: x @ x.T, dynamic=False)(torch.ones(4, 4))
        return torch_private.compile_counters()["inductor"]["fxgraph_cache_hit"] - before

    with contextlib.ExitStack() as stack:
        recorder.watch_artifacts(stack)
        assert compiled() == 0
    found = [Artifact(*item) for item in recording.take().artifacts]
    other = PrivateFolder(folder.path.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(other.inductor))
        done = install(memory, published(memory, *found), other)
        assert done.counts == {"inductor": 1, "aot_autograd": 1}
        assert compiled() == 1
    torch._dynamo.reset()
