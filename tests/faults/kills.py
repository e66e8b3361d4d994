"""Forking a process that is killed at its n-th call, so that one warm process can watch many die."""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from cachekit.store import files
from tests.faults.shim import KILL_AFTER, KILL_BEFORE, OFF, Shim


def forked(work: Callable[[], None]) -> int:
    """Run it in a forked child; the child's exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001  a child must end here, whatever happens
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def points(name: str, calls: int, count: int) -> list[tuple[int, int]]:
    """Where to kill: call numbers, and whether before or after the call. The same each time for the same name."""
    chance = random.Random(name)
    return [(chance.randint(1, calls), chance.choice((KILL_BEFORE, KILL_AFTER))) for _ in range(count)]


def kill(shim: Shim, n: int, mode: int, act: Callable[[], object]) -> None:
    """Do it in a child that dies at that call."""

    def work() -> None:
        with shim.fault(n, mode):
            act()

    code = forked(work)
    assert code in {-signal.SIGKILL, 0}, code  # 0: this time it took fewer calls


def count(shim: Shim, act: Callable[[], object]) -> int:
    """How many calls it takes where nobody is killed."""
    read, write = os.pipe()

    def work() -> None:
        with shim.fault(0, OFF):
            act()
        os.write(write, str(len(shim.calls)).encode())

    assert forked(work) == 0
    os.close(write)
    with os.fdopen(read) as pipe:
        return int(pipe.read())


def check_leftovers(folder: Path) -> None:
    """Everything temporary that is left can be told to be a dead process's."""
    left = {path for path in folder.rglob(".tmp-*") if "process" not in path.parts}
    assert left <= set(files.leftovers(folder, below=True))
