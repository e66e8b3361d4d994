"""The process that runs many mutations: little memory, and whatever touches the world outside is a finding.

    python -m tests.fuzz.watched <seed> <target>=<count> ...

Prints one JSON object per target: how many inputs were accepted and refused, and the slowest in seconds. The first
broken promise ends it, with the input in hex and the traceback on standard error.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import sys
import time
import traceback

from tests.fuzz import mutate, samples, targets

MEMORY = 768 << 20
"""Address space: what is loaded takes 200 MB of it, and the largest input 100 KB."""

_OUTSIDE = ("os.", "shutil.", "socket.", "subprocess.", "ctypes.", "sqlite3.", "urllib.")
_HARMLESS = {"os.listdir", "os.scandir", "os.walk", "os.putenv", "os.unsetenv"}


class OutsideError(BaseException):
    """A decoder touched the world. Not an ``Exception``, so that nothing can swallow it."""


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OutsideError(f"opened {arguments[0]!r} for writing")
    elif event.startswith(_OUTSIDE) and event not in _HARMLESS:
        raise OutsideError(f"{event} {arguments!r:.200}")


def main() -> int:
    """Do as the command line says; returns the exit status."""
    logging.disable(logging.CRITICAL)
    wanted = [(name, int(count)) for name, _, count in (text.partition("=") for text in sys.argv[2:])]
    for name, _ in wanted:
        for seed in samples.seeds()[name]:
            targets.run(name, seed)  # whatever is imported late is imported now
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.addaudithook(_audit)
    for name, count in wanted:
        sys.stdout.write(json.dumps({"target": name, **_many(name, count, sys.argv[1])}) + "\n")
        sys.stdout.flush()
    return 0


def _many(name: str, count: int, seed: str) -> dict[str, float]:
    accepted, slowest, seeds = 0, 0.0, [data for data in samples.seeds()[name] if len(data) < 10_000]
    for number in range(count):
        rng = random.Random(f"{seed} {name} {number}")
        data = mutate.of(name, rng.choice(seeds), rng)
        started = time.perf_counter()
        try:
            accepted += targets.run(name, data)
        except BaseException:  # noqa: BLE001  (whatever it is, it is the finding)
            sys.stderr.write(f"targets.run({name!r}, bytes.fromhex({data.hex()[:20_000]!r}))\n")
            traceback.print_exc()
            os._exit(1)  # whatever is left in a broken state must not hang the end of the process
        slowest = max(slowest, time.perf_counter() - started)
    return {"accepted": accepted, "refused": count - accepted, "slowest": slowest}


if __name__ == "__main__":
    sys.exit(main())
