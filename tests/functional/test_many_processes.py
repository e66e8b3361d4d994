"""Many processes with one store and one manifest at once: nothing is lost, nothing half done is ever seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.functional.conftest import REPOSITORY, TIMEOUT_S, Run, Started


def crowd(scene: str, folder: Path, *numbers: int) -> dict[str, Any]:
    """Play a scene of ``crowd.py`` and return what came of it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.functional.crowd", scene, folder, *map(str, numbers)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["failures"] == [], "\n".join(told["failures"])
    return told


def test_the_union_of_sixteen_that_save_at_once_is_exact(tmp_path: Path) -> None:
    """Sixteen processes save other shapes of one fingerprint at the same moment, ten times; two read all the while.

    Every artifact with its bytes, every unit and every shape is in the bundle, of a compile that all made one is kept,
    and each save is a generation. No reader ever saw a bundle that was incomplete, damaged or older than before.
    """
    told = crowd("compete", tmp_path, 16, 10, 2)

    assert told["artifacts"] == 16 * 10 * 3 + 10
    assert (told["missing"], told["strange"], told["altered"]) == (0, 0, 0)
    assert told["units"]
    assert told["shapes"]
    assert told["generation"] == 160
    assert min(told["looks"]) > 10


def test_saving_using_verifying_rebuilding_and_evicting_get_along(tmp_path: Path) -> None:
    """Four save and index, one starts and reads, and verify, rebuild and eviction run over and over: no error at all.

    A locked manifest is waited for, what is in use is not evicted, and a save in progress is no problem to verify.
    Afterwards the store verifies, fits its limit, and the manifest says what the bundle says.
    """
    told = crowd("quarrel", tmp_path, 4, 6)

    assert told["afterwards"] == {"verify": [0, ""], "rebuild": [0, ""]}
    assert told["agrees"]
    assert told["events"] == 4 * 6
    assert told["evicted"] > 0
    assert told["fits"]
    assert all(told["done"][name] for name in ("use", "verify", "rebuild"))


COMPILE_AND_SAVE_TOGETHER = """
    module = Product()
    session = cachekit.attach(module, dir=store, save="never", plan=cachekit.Plan("cpu", dynamic=False))
    for rows in sizes:
        call(module, rows, 8)
        session.register_shape(rows, 8, 1)
    at_rendezvous()
    saved = session.save(wait=True)
    tell(saved=saved, state=session.state, report=session.report().to_json())
"""

REPLAY = """
    module = Product()
    plan = cachekit.Plan("cpu", dynamic=False)
    with cachekit.attach(module, dir=store, mode="strict", plan=plan) as session:
        for rows in sizes:
            call(module, rows, 8)
        tell(report=session.report().to_json())
"""


def test_what_real_processes_save_at_once_is_replayed_without_a_miss(
    start: Callable[..., Started], process: Run
) -> None:
    """Four interpreters compile four shapes each, two of them shared, and save at the same moment; a fifth hits all."""
    own = [[2 + 4 * n, 3 + 4 * n] for n in range(4)]
    shared = [30, 31]
    started = [start(COMPILE_AND_SAVE_TOGETHER, sizes=[*sizes, *shared]) for sizes in own]
    for one in started:
        one.wait_until_ready()
    for one in started:
        one.go_on()
    for one in started:
        assert one.end() == 0, one.stderr[-4000:]
        assert one.told[0]["saved"]
        assert one.told[0]["state"] == "clean"
        assert "not saved" not in str(one.told[0]["report"]["reasons"])

    sizes = sorted({*(rows for each in own for rows in each), *shared})
    report = process(REPLAY, sizes=sizes)["report"]

    assert report["misses"] == {}
    assert report["hits"]["inductor"] == len(sizes)
    assert report["shapes"] == [f"{rows}x8x1" for rows in sizes]
    assert report["generation"] == 4
