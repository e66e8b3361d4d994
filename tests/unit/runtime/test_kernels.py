"""C++ kernels and ISA probes: attributed, kept under what their machine code depends on, written where torch looks."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cachekit.bundle import Artifact, unmet
from cachekit.errors import StoreError, UnsupportedError
from cachekit.runtime import kernels, recorder, torch_private
from cachekit.runtime.recorder import Recording
from tests.unit.runtime.helpers import ELF, KERNEL, OTHER_KERNEL, PROBE, kernel

HOST = {"arch": "x86_64", "cpu_flags": "f" * 32, "compiler": "c" * 32, "libc": "glibc 2.36"}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A host whose requirements are known without asking a compiler."""
    monkeypatch.setattr(kernels, "host_requirements", lambda: HOST)
    monkeypatch.setattr(torch_private, "kernel_command_line", lambda: "g++ i -O3 -o o")
    return HOST


# --- writing -------------------------------------------------------------------------------------------------------


def test_kernels_are_written_where_torch_looks(tmp_path: Path) -> None:
    """Each kernel gets its path below the folder, for its user alone; what was written is counted."""
    count = kernels.write_libraries([kernel(), kernel(OTHER_KERNEL, b"\x7fELF other")], tmp_path)

    assert count == 2
    assert (tmp_path / KERNEL).read_bytes() == ELF
    assert (tmp_path / OTHER_KERNEL).read_bytes() == b"\x7fELF other"
    assert (tmp_path / KERNEL).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / KERNEL).parent.stat().st_mode & 0o077 == 0


def test_a_kernel_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """What this process compiled itself, or installed before, is neither written nor counted."""
    live = ELF[:-1] + b"!"
    (tmp_path / KERNEL).parent.mkdir()
    (tmp_path / KERNEL).write_bytes(live)

    assert kernels.write_libraries([kernel()], tmp_path) == 0
    assert (tmp_path / KERNEL).read_bytes() == live


@pytest.mark.parametrize("left", [b"", ELF[:-1]], ids=["empty", "cut short"])
def test_a_kernel_that_was_cut_short_is_replaced(tmp_path: Path, left: bytes) -> None:
    """torch never mends such a file; code that is mapped from it keeps it, under no name."""
    (tmp_path / KERNEL).parent.mkdir()
    (tmp_path / KERNEL).write_bytes(left)

    assert kernels.write_libraries([kernel()], tmp_path) == 1
    assert (tmp_path / KERNEL).read_bytes() == ELF


def test_a_probe_is_not_a_file(tmp_path: Path) -> None:
    """The answer of a probe is learnt, never written."""
    assert kernels.write_libraries([kernel(PROBE, b"1")], tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When writing fails half-way nothing lies where torch looks, and the error tells the path and why."""
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        real(path, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)

    with pytest.raises(StoreError, match=f"{KERNEL}: ENOSPC: No space left on device"):
        kernels.write_libraries([kernel()], tmp_path)

    assert list((tmp_path / KERNEL).parent.iterdir()) == []


def test_threads_that_write_one_kernel_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two sessions that install at once leave one whole file and no leftovers."""
    data = b"\x7fELF" + b"x" * 1_000_000
    start = threading.Barrier(4)

    def write() -> None:
        start.wait()
        kernels.write_libraries([kernel(data=data)], tmp_path)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [path.name for path in (tmp_path / KERNEL).parent.iterdir()] == [Path(KERNEL).name]
    assert (tmp_path / KERNEL).read_bytes() == data


# --- reading -------------------------------------------------------------------------------------------------------


def test_kernels_are_collected_with_what_they_require(
    tmp_path: Path, host: dict[str, str], no_answers: dict[str, bool]
) -> None:
    """Machine code requires the whole host and the command line; a probe's answer the host alone."""
    kernels.write_libraries([kernel(), kernel(OTHER_KERNEL)], tmp_path)
    no_answers["0" * 64] = True

    found = kernels.collect([OTHER_KERNEL, KERNEL], tmp_path)

    assert [artifact.key for artifact in found] == [KERNEL, OTHER_KERNEL, PROBE]
    assert [artifact.data for artifact in found] == [ELF, ELF, b"1"]
    assert {name for name, _ in found[0].requires} == {*host, "command"}
    assert found[2].requires == tuple(sorted(host.items()))


def test_without_kernels_nothing_is_asked_of_a_compiler(
    tmp_path: Path, no_answers: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline without C++ saves no probes and needs no compiler."""
    no_answers["0" * 64] = True
    monkeypatch.setattr(kernels, "host_requirements", lambda: pytest.fail("asked"))

    assert kernels.collect([], tmp_path) == []


def test_a_kernel_that_vanished_is_left_out_and_named(
    tmp_path: Path, host: dict[str, str], no_answers: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    """The others are saved all the same."""
    other = f"aa/c{'b' * 51}.main.so"
    kernels.write_libraries([Artifact("kernel", other, b"code")], tmp_path)

    assert [found.key for found in kernels.collect([KERNEL, other], tmp_path)] == [other]
    assert KERNEL in caplog.text


def test_a_kernel_in_another_folder_is_read_from_where_it_was_loaded(
    tmp_path: Path, host: dict[str, str], no_answers: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process compiled before attach lies in the engine's folder; torch knows the module by the key."""
    library = tmp_path / "elsewhere.so"
    library.write_bytes(b"code")
    module = types.ModuleType("kernel")
    module.__file__ = str(library)
    monkeypatch.setitem(sys.modules, f"{Path(KERNEL).name.partition('.')[0]}.kernel", module)

    (found,) = kernels.collect([KERNEL], tmp_path / "folder")

    assert found.data == b"code"


def test_identities_are_those_of_collected_kernels(
    tmp_path: Path, host: dict[str, str], no_answers: dict[str, bool]
) -> None:
    """A kernel saved earlier is referred to by the identity it was saved under, without reading it."""
    kernels.write_libraries([kernel()], tmp_path)
    (collected,) = kernels.collect([KERNEL], tmp_path)

    assert kernels.identities([KERNEL]) == {KERNEL: collected.identity.id}


# --- what a host must have -----------------------------------------------------------------------------------------


@pytest.fixture
def fresh_requirements() -> Iterator[None]:
    """Have the host asked anew, in and after the test."""
    kernels.host_requirements.cache_clear()
    yield
    kernels.host_requirements.cache_clear()


def test_another_compiler_is_another_host(monkeypatch: pytest.MonkeyPatch, fresh_requirements: None) -> None:
    """The compiler's own words count, as a digest, so that no path of the machine gets into a bundle."""
    monkeypatch.setattr(torch_private, "compiler_version", lambda: "g++ (/usr/local/gcc) 12.2.0")
    one = dict(kernels.host_requirements())
    kernels.host_requirements.cache_clear()
    monkeypatch.setattr(torch_private, "compiler_version", lambda: "g++ (/usr/local/gcc) 12.3.0")
    two = dict(kernels.host_requirements())

    assert [d.name for d in unmet(tuple(sorted(one.items())), two)] == ["compiler"]
    assert not any("/" in value for value in one.values())
    assert one.keys() == {"arch", "cpu_flags", "compiler", "libc"}


def test_the_compiler_is_asked_once(monkeypatch: pytest.MonkeyPatch, fresh_requirements: None) -> None:
    """Asking runs a process, so the answer is kept."""
    asked: list[int] = []
    monkeypatch.setattr(torch_private, "compiler_version", lambda: str(asked.append(1)))

    kernels.host_requirements()
    kernels.host_requirements()

    assert asked == [1]


def test_the_real_host_answers(fresh_requirements: None) -> None:
    """Here, with the compiler that torch would use, every requirement is known."""
    assert all(kernels.host_requirements().values())
    assert kernels.known_host() == kernels.host_requirements()


@pytest.mark.parametrize(
    "error", [UnsupportedError("no name"), FileNotFoundError(2, "c++"), RuntimeError("no C++")]
)
def test_without_a_compiler_no_kernel_is_met(
    monkeypatch: pytest.MonkeyPatch, fresh_requirements: None, error: Exception
) -> None:
    """Whatever torch raises where there is no compiler means that it is not known, and everything else is."""

    def fail() -> str:
        raise error

    monkeypatch.setattr(torch_private, "compiler_version", fail)

    assert kernels.known_host().keys() == {"arch", "cpu_flags", "libc"}
    assert "compiler" in [
        difference.name for difference in unmet(kernel(**HOST).requires, kernels.known_host())
    ]


def test_another_command_line_is_another_kernel(
    host: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags count, as a digest: include paths are of the machine."""
    one = dict(kernels.kernel_requirements())
    monkeypatch.setattr(torch_private, "kernel_command_line", lambda: "g++ i -O2 -o o")
    two = dict(kernels.kernel_requirements())

    assert [d.name for d in unmet(tuple(sorted(one.items())), two)] == ["command"]
    assert "O3" not in one["command"]


# --- probes --------------------------------------------------------------------------------------------------------


def test_answers_travel(host: dict[str, str], no_answers: dict[str, bool]) -> None:
    """What one process was answered, yes or no, another one learns."""
    no_answers.update({"0" * 64: True, "1" * 64: False})
    probes = kernels.probe_answers()
    no_answers.clear()

    assert kernels.learn([*probes, kernel()]) == 2
    assert no_answers == {"0" * 64: True, "1" * 64: False}


def test_own_answers_are_kept(no_answers: dict[str, bool]) -> None:
    """What this process found out itself beats what a bundle says."""
    no_answers["0" * 64] = False

    kernels.learn([kernel(PROBE, b"1")])

    assert no_answers == {"0" * 64: False}


class Isa:
    """A vector ISA that counts its probes."""

    def __init__(self, flags: str, *, answer: bool = True) -> None:
        self.flags = flags
        self.answer = answer
        self.probed: list[str] = []

    def build_arch_flags(self) -> str:
        """The compiler flags."""
        return self.flags

    def check_build(self, code: str) -> bool:
        """Compile a probe."""
        self.probed.append(code)
        return self.answer


@pytest.fixture
def watched_probe(no_answers: dict[str, bool]) -> Callable[[Isa, str], bool]:
    """The probe as it is patched into torch."""
    probe: Callable[[Isa, str], bool] = kernels._remembered_probe(Isa.check_build)
    return probe


@pytest.mark.parametrize("answer", [True, False])
def test_a_probe_is_compiled_once(
    watched_probe: Callable[[Isa, str], bool], no_answers: dict[str, bool], answer: bool
) -> None:
    """A question asked again is answered from memory, yes and no alike."""
    isa = Isa("-mavx512f", answer=answer)

    assert [watched_probe(isa, "code") for _ in range(3)] == [answer] * 3

    assert isa.probed == ["code"]
    assert list(no_answers.values()) == [answer]


def test_probes_differ_in_code_and_flags(watched_probe: Callable[[Isa, str], bool]) -> None:
    """Another source or other flags are another question."""
    avx2, avx512 = Isa("-mavx2", answer=False), Isa("-mavx512f")

    answers = [watched_probe(avx2, "one"), watched_probe(avx512, "one"), watched_probe(avx512, "two")]

    assert answers == [False, True, True]
    assert (avx2.probed, avx512.probed) == (["one"], ["one", "two"])


# --- watching torch ------------------------------------------------------------------------------------------------


@dataclass
class Compiled:
    """One real kernel compile, and the same again with the kernel in place."""

    folder: Path
    written: list[tuple[str, str]]
    """(extension, path) of each file that the code cache wrote in the first compile."""
    windows: list[recorder.Window]
    headers: list[int]
    """How many headers were precompiled in each."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Compile one pointwise kernel, twice, and watch: 5 s."""
    folder = tmp_path_factory.mktemp("inductor")
    cache = torch_private.code_cache()
    done = Compiled(folder, [], [], [])
    write = cache.write

    def noted(content: Any, extension: str, *args: Any, **kwargs: Any) -> Any:
        key, path = write(content, extension, *args, **kwargs)
        if not done.windows:
            done.written.append((extension, path))
        return key, path

    def header(*args: Any, **kwargs: Any) -> None:
        done.headers[-1] += (
            1  # precompiling it for real takes 10 s, and the kernel is built without it as well
        )

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        patch.setattr(cache, "write", noted)
        patch.setattr(cache, "_precompile_header", header)
        kernels.watch(stack)
        with torch._inductor.config.patch({"cpp.vec_isa_ok": True, "fx_graph_cache": False}):
            for _ in range(2):
                torch._dynamo.reset()
                cache.CppPythonBindingsCodeCache.cache_clear()
                done.headers.append(0)
                recording = Recording()
                with recorder.scope(recording), torch.no_grad():
                    torch.compile(lambda x: x.sin() + 1, dynamic=False)(torch.ones(8))
                done.windows.append(recording.take())
    torch._dynamo.reset()
    return done


def test_a_kernel_is_written_as_source_with_its_library_beside_it(compiled: Compiled) -> None:
    """torch writes ``*.main.cpp`` through ``write`` and looks for ``*.main.so`` in the same folder."""
    sources = [Path(path) for extension, path in compiled.written if extension == "main.cpp"]

    assert len(sources) == 1
    assert sources[0].name.endswith(".main.cpp")
    assert sources[0].with_suffix(".so").read_bytes().startswith(b"\x7fELF")


def test_a_kernel_is_filed_with_the_scope_it_was_compiled_in(compiled: Compiled) -> None:
    """It goes by the path that a bundle keeps, which is the key of a kernel artifact, and counts as compiled."""
    ((path, made),) = compiled.windows[0].kernels.items()

    assert Artifact("kernel", path, b"").key == path
    assert (compiled.folder / path).is_file()
    assert made


def test_a_kernel_that_lies_there_is_found(compiled: Compiled) -> None:
    """The second compile looks the same kernel up, and nothing was made."""
    assert compiled.windows[1].kernels == dict.fromkeys(compiled.windows[0].kernels, False)


def test_headers_are_precompiled_only_for_kernels_that_are_compiled(compiled: Compiled) -> None:
    """A header that no compile is going to read is not paid for."""
    assert compiled.headers[0] >= 1
    assert compiled.headers[1] == 0


def test_watching_is_undone(no_answers: dict[str, bool]) -> None:
    """Everything patched is the very function it was before."""
    cache, isa = torch_private.code_cache(), torch_private.isa_class()
    before = (cache.write, cache._precompile_header, isa.check_build)

    with contextlib.ExitStack() as stack:
        kernels.watch(stack)
        assert not any(
            a is b
            for a, b in zip(before, (cache.write, cache._precompile_header, isa.check_build), strict=True)
        )

    assert (cache.write, cache._precompile_header, isa.check_build) == before


def test_a_torch_without_precompiled_headers_is_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch has nothing to skip."""
    cache = SimpleNamespace(write=lambda content, extension: ("key", f"/folder/{content}.{extension}"))
    monkeypatch.setattr(torch_private, "code_cache", lambda: cache)
    recording = Recording()

    with contextlib.ExitStack() as stack, recorder.scope(recording):
        kernels.watch(stack)
        cache.write("one", "main.cpp")
        cache.write("two", "py")

    assert recording.take().kernels == {"folder/one.main.so": True}
    assert not hasattr(cache, "_precompile_header")
