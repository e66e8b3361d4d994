"""Run by test_kills: real sessions of torch, killed at random calls. Prints how many as JSON.

Torch is imported once; each session is a process forked from that one, which itself never compiles.
Arguments: an empty folder, and how many are killed.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import torch._inductor.compile_fx  # so that no child has to import it

import cachekit
from tests.faults import acts
from tests.faults.kills import check_leftovers, count, forked, kill, points
from tests.faults.session_calls import run
from tests.faults.shim import Shim
from tests.functional.nets import OtherProduct, Product


def session(folder: Path, module: torch.nn.Module) -> None:
    """From attach to close; the engine gets its result."""
    with cachekit.attach(module, dir=folder) as attached, torch.no_grad():
        x = torch.linspace(-1, 1, 32).reshape(4, 8)
        torch.testing.assert_close(module(x), module.forward(x))
        attached.save(wait=True)


def warm(folder: Path, module: torch.nn.Module) -> None:
    """A start that must hit."""
    with cachekit.attach(module, dir=folder) as attached:
        run(attached, module)
        report = attached.report()
        assert report.misses == {}, report
        assert report.hits.get("inductor") == 1, report


def main(work: Path, times: int) -> dict[str, int]:
    """Kill, and look at what is left."""
    torch.set_num_threads(1)
    base, folder = work / "base", work / "case"
    assert forked(lambda: session(base, Product())) == 0  # what every other one finds there
    shim = Shim(folder)

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)

    fresh()
    calls = count(shim, lambda: session(folder, OtherProduct()))
    for n, mode in points("sessions", calls, times):
        fresh()
        kill(shim, n, mode, lambda: session(folder, OtherProduct()))
        check_leftovers(folder)
        acts.verify(folder, indexed=False)
        assert forked(lambda: warm(folder, Product())) == 0, f"what was saved before is lost: {n} of {calls}"
        assert forked(lambda: session(folder, OtherProduct())) == 0, f"no start: {n} of {calls}"
        left = acts.private_folders(folder)
        assert len(left) == 1  # the last one's, which left without its exit handlers
        acts.verify(folder)
    return {"sessions": times}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
