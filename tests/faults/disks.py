"""Run by test_disks: two models in one process, whose disk breaks between two compiles. Prints what they report.

Arguments: the folder on that disk, and what happens to it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import cachekit
from tests.faults import acts
from tests.functional.nets import Kernel, Product


def fill(folder: Path) -> None:
    """Until not a byte more fits."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def make_read_only(folder: Path) -> None:
    """As the kernel does after an error of the disk. The mount is this process's own."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


BREAK = {"full": fill, "read-only": make_read_only, "removed": shutil.rmtree}


def generate(module: torch.nn.Module, rows: int) -> bool:
    """Run one size; whether the result is what it is without a compiler."""
    x = torch.linspace(-1, 1, rows * 8).reshape(rows, 8)
    with torch.no_grad():
        return torch.allclose(module(x), module.forward(x), atol=1e-6)


def main(folder: Path, how: str) -> list[dict[str, Any]]:
    """Attach, break, go on. The first model has run before; the second one, with a C++ kernel, has not."""
    torch.set_num_threads(1)
    told = []
    for model in (Product, Kernel):
        module = model()
        said = acts.Said()
        with acts.listening(said):
            home = folder / "cachekit" / model.__name__
            session = cachekit.attach(module, plan=cachekit.Plan("cpu", dynamic=False), dir=home)
            right = [generate(module, 2)] if model is Product else []
            session.save(wait=True)
        told.append((module, session, said, right))
    BREAK[how](folder / "cachekit" if how == "removed" else folder)
    answers = []
    for module, session, said, right in told:
        with acts.listening(said):
            right.append(generate(module, 6))
            session.save(wait=True)
            report = session.report()
            session.close()
        answers.append(
            {
                "model": type(module).__name__,
                "right": all(right),
                "state": report.state,
                "reasons": report.reasons,
                "warnings": said.warnings,
                "plain": module._compiled_call_impl is None,
            }
        )
    return answers


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
