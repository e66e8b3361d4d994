"""Run by test_kills: processes that save, start and collect, killed at random calls. Prints how many as JSON.

Arguments: an empty folder, and how many of each are killed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from cachekit.runtime import housekeeping
from cachekit.settings import Settings
from tests.faults import acts
from tests.faults.acts import NEW, NEXT, OLD
from tests.faults.kills import check_leftovers, count, kill, points
from tests.faults.shim import Shim


def collect(folder: Path, limit: int | None = None) -> None:
    """What ``cachekit gc`` does."""
    housekeeping.tidy(Settings(dir=folder), limit=limit)


def check(folder: Path, *acknowledged: str) -> None:
    """Nothing acknowledged is lost, and the next processes do all they should and clear up after the dead one."""
    check_leftovers(folder)
    acts.verify(folder, indexed=False)
    assert acts.holds(folder, *acknowledged)
    assert acts.private_folders(folder) == []
    for name in (OLD, NEW):
        _, problem = acts.save(folder, name)
        assert problem is None, problem
    collect(folder)
    assert acts.holds(folder, OLD, NEW)
    assert list(folder.rglob(".tmp-*")) == []
    acts.verify(folder)


def main(work: Path, each: int) -> dict[str, int]:
    """Kill, and look at what is left."""
    acts.save(work / "warm up", NEXT)
    acts.verify(work / "warm up")
    collect(work / "warm up")
    old, both = work / "old", work / "both"
    acts.save(old, OLD)
    shutil.copytree(old, both)
    acts.save(both, NEW)
    half = sum(path.stat().st_size for path in (both / "store").rglob("*") if path.is_file()) // 2
    new = work / "new"
    new.mkdir()
    shim = Shim(work)
    operations: dict[str, tuple[Path, Callable[[Path], object], tuple[str, ...], int]] = {
        "first save": (new, lambda folder: acts.save(folder, NEW), (), each // 2),
        "save": (old, lambda folder: acts.save(folder, NEW), (OLD,), each - each // 2),
        "start": (old, lambda folder: acts.start(folder, folder / "elsewhere"), (OLD,), each),
        "collect": (both, lambda folder: collect(folder, half), (), each),
    }
    killed = {}
    for name, (base, act, acknowledged, times) in operations.items():

        def fresh(base: Path = base) -> Path:
            folder = work / "case"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(base, folder)
            shim.watch(folder)
            return folder

        folder = fresh()
        calls = count(shim, lambda act=act, folder=folder: act(folder))  # type: ignore[misc]
        for n, mode in points(name, calls, times):
            folder = fresh()
            kill(shim, n, mode, lambda act=act, folder=folder: act(folder))  # type: ignore[misc]
            try:
                check(folder, *acknowledged)
            except BaseException as exc:
                raise AssertionError(f"{name}: killed at call {n} of {calls}, mode {mode}") from exc
        killed[name] = times
    return killed


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
