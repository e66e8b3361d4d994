"""Counting compiler runs: what is one, what is a probe, and what is neither."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cachekit.demo.compilers import kind_of

ROOT = Path(__file__).parents[3]
HASH = "c73ehsvuqgg4ajaapbuvlpudb53lhe3dlyle6lngn4oa7lkwtgjf"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (
            ["g++", f"/cache/73/{HASH}.main.cpp", "-O3", "-shared", "-o", f"/cache/73/{HASH}.main.so"],
            "compile",
        ),
        (["/usr/bin/x86_64-linux-gnu-g++-14", "-c", "kernel.cpp.main.cpp"], "compile"),
        (["clang++-18", "-O3", "-c", f"/cache/{HASH}.main.cpp"], "compile"),
        (["g++", "/scratch/header.hpp", "-E", "-o", "/scratch/header.i"], "compile"),
        (["g++", "/scratch/precompiled/x.h", "-O3", "-o", "/scratch/precompiled/x.h.gch"], "compile"),
        (["g++", f"/cache/73/{HASH}.cpp", "-shared", "-fPIC"], "probe"),
        ([sys.executable, "-c", 'from ctypes import cdll\ncdll.LoadLibrary("/cache/x.so")'], "probe"),
        (["g++", "--version"], None),
        (["g++", "-v"], None),
        (["g++", "-print-file-name=bin"], None),
        ([sys.executable, "-c", "import torch"], None),
        (["openssl", "sha512", "header.i"], None),
        (["ld", "-shared", "a.o"], None),
        ([], None),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else str(value),
)
def test_commands_are_told_apart(command: list[str], kind: str | None) -> None:
    """Compiles and preprocessor runs count, probes count apart, asking for a version does not count."""
    assert kind_of(command) == kind


def test_real_runs_are_counted(tmp_path: Path) -> None:
    """In a process that runs the compiler by list and by path, each compile and each probe is counted once."""
    script = """
        import json, subprocess, sys
        from pathlib import Path
        from cachekit.demo.compilers import CompilerRuns

        runs = CompilerRuns()
        runs.watch()
        for name in ("abc.cpp", "abc.main.cpp", "def.main.cpp"):
            Path(name).write_text("int x;")
            subprocess.run(["g++", "-c", Path(name).absolute()], check=True)
        Path("header.h").write_text("int y;")
        subprocess.run(["g++", "header.h", "-o", "header.h.gch"], check=True)
        subprocess.check_output(["g++", "--version"])
        subprocess.run([sys.executable, "-c", "print('cdll.LoadLibrary(')"], check=True, stdout=subprocess.DEVNULL)
        print(json.dumps([runs.compiles, runs.probes]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert json.loads(done.stdout) == [3, 2]
