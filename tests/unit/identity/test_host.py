"""The CPU, told without compiling anything, as Inductor would have found it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch._inductor.config

from cachekit.identity import Plan, fingerprint, host, host_requirements
from cachekit.identity.toolchain import cpu_flags, host_facts

ROOT = Path(__file__).parents[3]
X86 = ("amx_tile", "avx512_vnni", "avx512", "avx2")


@pytest.mark.parametrize(
    ("available", "forced", "simdlen", "chosen"),
    [
        (X86, None, None, "amx_tile"),
        (X86[1:], None, None, "avx512_vnni"),
        (X86[2:], None, None, "avx512"),
        (X86[3:], None, None, "avx2"),
        ((), None, None, "none"),
        (X86, "avx2", None, "avx2"),
        (X86, "avx512", None, "amx_tile"),
        (X86[2:], "avx512", None, "avx512"),
        (X86[3:], "avx512", None, "avx2"),  # the CPU cannot: torch takes its best
        (X86, "default", None, "none"),
        (X86, "AVX2", None, "amx_tile"),  # torch ignores what it does not know
        (X86, "avx2", 512, "amx_tile"),
        (X86, None, 256, "avx2"),
        (X86, None, 128, "none"),
        (X86, None, 0, "none"),
        (("sve256",), None, None, "sve256"),
        (("neon",), "avx2", None, "neon"),
    ],
)
def test_choice_of_the_isa(
    available: tuple[str, ...], forced: str | None, simdlen: int | None, chosen: str
) -> None:
    """Best first, unless the environment or ``cpp.simdlen`` says otherwise."""
    assert host.choose_isa(available, forced=forced, simdlen=simdlen) == chosen


@pytest.mark.parametrize("forced", [None, "avx2", "avx512", "default", "nonsense"])
@pytest.mark.parametrize("simdlen", [None, 256, 512, 1])
@pytest.mark.filterwarnings("ignore:ignoring invalid value")
def test_choice_agrees_with_torch(
    forced: str | None, simdlen: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails loudly when an upgrade of torch learns another ISA or another order."""
    from torch._inductor import cpu_vec_isa

    if forced is None:
        monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    else:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", forced)
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda self, code: True)
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    with torch._inductor.config.patch({"cpp.simdlen": simdlen}):
        theirs = str(cpu_vec_isa.pick_vec_isa())
        ours = host.vector_isa()
    cpu_vec_isa.valid_vec_isa_list.cache_clear()

    names = {"INVALID_VEC_ISA": "none", "asimd": "neon"}
    assert ours == names.get(theirs, theirs.rsplit(maxsplit=1)[-1])


def test_nothing_is_compiled_and_no_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own answer costs ten compiler runs in an empty folder."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("started a process")

    for cached in (host._available, host.capabilities, host.cpu_flags):
        cached.cache_clear()
    for module, name in ((subprocess, "Popen"), (subprocess, "run"), (os, "posix_spawn"), (os, "fork")):
        monkeypatch.setattr(module, name, refuse)

    assert set(host_requirements(Plan("cpu"))) == {"arch", "vector_isa", "threads", "vec_isa_ok"}
    fingerprint(torch.nn.Linear(2, 2), Plan("cpu"))


def test_another_isa_is_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's keys do not hold the ISA: a bundle of another one hits and computes NaN."""
    module, plan = torch.nn.Linear(2, 2), Plan("cpu")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    before, needs = fingerprint(module, plan), host_requirements(plan)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")

    assert [each.path for each in before.diff(fingerprint(module, plan))] == ["toolchain.cpu.vector_isa"]
    assert needs["vector_isa"] != host_requirements(plan)["vector_isa"] == "none"


def test_threads_are_told_for_the_cpu() -> None:
    """Generated loops are specialised on the number of threads; torch before 2.13 does not key on it."""
    module, plan, threads = torch.nn.Linear(2, 2), Plan("cpu"), torch.get_num_threads()
    before = fingerprint(module, plan)
    torch.set_num_threads(threads + 1)
    try:
        after, needs = fingerprint(module, plan), host_requirements(plan)
    finally:
        torch.set_num_threads(threads)

    assert [each.path for each in before.diff(after)] == ["toolchain.cpu.threads"]
    assert needs["threads"] == str(threads + 1)


def test_threads_fixed_by_the_configuration() -> None:
    """``cpp.threads`` overrules torch's own number."""
    with torch._inductor.config.patch({"cpp.threads": 7}):
        assert host_requirements()["threads"] == "7"


@pytest.mark.parametrize(("value", "told"), [(None, "none"), (True, "true"), (False, "false")])
def test_answer_instead_of_probes_is_a_requirement(value: bool | None, told: str) -> None:
    """It is in Inductor's key, so both sides must agree; the fingerprint stays what it is."""
    before = fingerprint(torch.nn.Linear(2, 2), Plan("cpu"))
    with torch._inductor.config.patch({"cpp.vec_isa_ok": value}):
        assert host_requirements()["vec_isa_ok"] == told
        assert fingerprint(torch.nn.Linear(2, 2), Plan("cpu")) == before


def test_facts_for_compiled_kernels() -> None:
    """The whole flag set, as a hash, and the C library."""
    assert cpu_flags()
    assert {"flags", "libc", "arch", "vector_isa", "threads", "vec_isa_ok"} == set(host_facts())
    assert len(host_facts()["flags"]) == 32


@pytest.mark.parametrize("machine", ["AMD64", "x86_64"])
def test_machines_have_one_name(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and Linux name the same machine differently."""
    monkeypatch.setattr(host.platform, "machine", lambda: machine)

    assert host.arch() == "x86_64"


@pytest.mark.parametrize(
    ("machine", "capabilities", "isas"),
    [
        ("aarch64", {"sve": True, "bf16": True, "sve_max_length": 256}, ("sve256",)),
        ("aarch64", {"sve2": True, "bf16": True, "sve_max_length": 128}, ("sve128",)),
        ("aarch64", {"sve": True}, ("neon",)),
        ("ppc64le", {}, ("vsx",)),
        ("riscv64", {}, ()),
        ("x86_64", {"avx2": True}, ("avx2",)),
        ("x86_64", {"avx2": True, "avx512_vnni": True}, ("avx2",)),
        ("x86_64", {}, ()),
    ],
)
def test_isas_of_other_machines(
    machine: str, capabilities: dict[str, object], isas: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other CPUs offer, in torch's order."""
    monkeypatch.setattr(host, "arch", lambda: machine)
    monkeypatch.setattr(host, "capabilities", lambda: capabilities)

    assert host._available.__wrapped__() == isas
