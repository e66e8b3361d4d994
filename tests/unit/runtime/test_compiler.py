"""A host without a C++ compiler: it uses kernels whatever compiler made them, and refuses what would be compiled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachekit.bundle import Artifact, Entry, unmet
from cachekit.runtime import compiler, kernels, torch_private
from tests.unit.runtime.helpers import ELF, KERNEL, OTHER_KERNEL, PROBE, kernel

MACHINE = {"arch": "x86_64", "cpu_flags": "f" * 32, "libc": "glibc-2.36"}
OLD, NEW = {**MACHINE, "compiler": "gcc-12"}, {**MACHINE, "compiler": "gcc-13"}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiler of the name that torch is told; put back, and forgotten, after the test."""
    monkeypatch.setattr(compiler, "_lookup", {"by name": False})
    monkeypatch.setattr(kernels, "_machine", lambda: MACHINE)
    with torch_private._need("torch._inductor.config").patch({"cpp.cxx": (None, "/nowhere/g++")}):
        compiler.is_missing.cache_clear()
        torch_private.compiler_lookup().cpp_compiler_search.cache_clear()
        yield
    compiler.is_missing.cache_clear()
    torch_private.compiler_lookup().cpp_compiler_search.cache_clear()


def entry(artifact: Artifact) -> Entry:
    """The artifact as a bundle lists it."""
    return Entry.of(artifact, b"stored", accepted=1, contribution="0" * 64, producer="1" * 64)


def test_a_compiler_that_answers_is_not_missing() -> None:
    """Here is one."""
    compiler.is_missing.cache_clear()

    assert not compiler.is_missing()


def test_a_compiler_that_does_not_answer_is_missing(without: None) -> None:
    """A name that leads nowhere is no compiler; torch is asked as it will ask itself."""
    assert compiler.is_missing()


@pytest.mark.parametrize(
    ("configured", "name"),
    [((None, "clang++"), "clang++"), ("/opt/g++", "/opt/g++"), ((None, None), "g++"), (("a", "b"), "b")],
)
def test_the_name_is_the_configured_one(configured: Any, name: str) -> None:
    """``$CXX`` at the end of torch's list; it is in the key of everything that can be hit."""
    with torch_private._need("torch._inductor.config").patch({"cpp.cxx": configured}):
        assert torch_private.configured_compiler() == name


def test_torch_is_told_the_name_only_once_kernels_are_to_be_used(without: None) -> None:
    """Before that torch's own error is raised, as without cachekit; afterwards the name is answered."""
    lookup = torch_private.compiler_lookup()
    with contextlib.ExitStack() as stack:
        kernels.watch(stack)
        with pytest.raises(RuntimeError, match="No working C\\+\\+ compiler"):
            lookup.get_cpp_compiler()
        compiler.go_by_name()
        assert lookup.get_cpp_compiler() == "/nowhere/g++"

    with pytest.raises(RuntimeError):
        lookup.get_cpp_compiler()


def test_what_would_be_compiled_is_torch_s_own_error(
    without: None, no_answers: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel or a probe that no bundle brought is refused where it would be compiled; one that is there is found."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiler.go_by_name()
    with contextlib.ExitStack() as stack:
        kernels.watch(stack)
        cache, isa = torch_private.code_cache(), torch_private.isa_class()
        with pytest.raises(RuntimeError, match="No working C\\+\\+ compiler"):
            cache.write("int main;", "main.cpp")
        with pytest.raises(RuntimeError, match="No working C\\+\\+ compiler"):
            isa.check_build(type("Isa", (), {"build_arch_flags": lambda self: "-mavx2"})(), "code")
        (source,) = tmp_path.rglob("*.main.cpp")
        source.with_suffix(".so").write_bytes(ELF)
        assert cache.write("int main;", "main.cpp")[1] == str(source)

    assert no_answers == {}


def test_a_host_with_a_compiler_answers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compiler is the one that counts, for all kernels."""
    monkeypatch.setattr(compiler, "is_missing", lambda: False)
    monkeypatch.setattr(kernels, "host_requirements", lambda: OLD)
    entries = [entry(kernel(**OLD)), entry(kernel(OTHER_KERNEL, **NEW))]

    assert kernels.hosts(entries) == [(OLD, entries)]


def test_without_one_the_most_used_compiler_comes_first(without: None) -> None:
    """Kernels that go together come from one compiler; those of another one are asked apart."""
    old, new, probe = (
        entry(kernel(**OLD)),
        entry(kernel(OTHER_KERNEL, **NEW)),
        entry(kernel(PROBE, b"1", **NEW)),
    )

    assert kernels.hosts([old, new, probe]) == [(NEW, [new, probe]), (OLD, [old])]


@pytest.mark.parametrize("name", sorted(MACHINE))
def test_everything_but_the_compiler_is_required_all_the_same(without: None, name: str) -> None:
    """Code for another CPU or libc is not used because there is no compiler."""
    theirs = entry(kernel(**{**OLD, name: "other"}))

    ((host, _),) = kernels.hosts([theirs])

    assert [difference.name for difference in unmet(theirs.requires, host)] == [name]


def test_a_save_names_kernels_by_what_they_were_installed_under(
    without: None, no_answers: dict[str, bool], tmp_path: Path
) -> None:
    """A new unit that uses an installed kernel refers to the very artifact, although no compiler can be asked."""
    installed, probe = kernel(**OLD, command="c"), kernel(PROBE, b"1", **OLD)
    kernels.write_libraries([installed], tmp_path)
    kernels.learn([probe])
    compiler.go_by_name()

    assert kernels.collect([KERNEL], tmp_path) == [installed, probe]
    assert kernels.identities([KERNEL]) == {KERNEL: installed.identity.id}
    with pytest.raises(RuntimeError, match="No working C\\+\\+ compiler"):
        kernels.identities([OTHER_KERNEL])


def test_a_library_that_cannot_be_loaded_is_discarded_and_named(
    no_answers: dict[str, bool], tmp_path: Path
) -> None:
    """Made against a C++ runtime that is not there: the loader's own words, and torch never meets it."""
    kernels.write_libraries([kernel(**OLD)], tmp_path)

    refused = kernels.discard_unloadable([kernel(**OLD)], tmp_path)

    assert list(refused) == [KERNEL]
    assert os.fspath(tmp_path / KERNEL) in refused[KERNEL]
    assert not (tmp_path / KERNEL).exists()
