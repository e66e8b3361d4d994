"""Starts coverage-guided fuzzing in processes of their own and reads from their logs what happened."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import samples

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"

MAX_INPUT = 96 * 1024
"""Bytes of one input: room for a real artifact."""
ONE_INPUT_S = 20
"""An input that takes longer is a finding; the slowest of millions take a tenth of a second."""
MEMORY_MB = 1024
"""Resident memory of a fuzzing process beyond which it is a finding; Python with everything loaded takes 60."""

_LAST = re.compile(rb"cov: (\d+) ft: (\d+) corp: (\d+)")


def missing() -> str | None:
    """Why there can be no coverage-guided fuzzing here, or None."""
    if importlib.util.find_spec("atheris") is None:
        return "coverage-guided fuzzing needs atheris, which has wheels for CPython 3.11 to 3.13 on Linux x86-64 only"
    return None


@dataclass(frozen=True)
class Outcome:
    """What one fuzzing process did: executions, coverage counters and features, and the input that broke something."""

    target: str
    seconds: int
    executions: int
    counters: int
    features: int
    reproducer: bytes | None
    log: str

    def complaint(self) -> str:
        """The finding for people: how to run it again, and the process's last words."""
        found = (self.reproducer or b"").hex()
        again = f"targets.run({self.target!r}, bytes.fromhex({found[:20_000]!r}))"
        return f"{self.target} broke a promise; from tests.fuzz import targets; {again}\n{self.log[-4000:]}"


def fuzz(target: str, *, seconds: int, scratch: Path, seed: int = 0) -> Outcome:
    """Fuzz one target for so many seconds, starting from the samples and the committed corpus.

    `scratch` is a folder for this target alone: ``corpus/`` keeps what was found interesting. A `seed` other than 0
    makes libFuzzer's choices the same each time.
    """
    corpus = scratch / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(samples.seeds()[target]):
        (corpus / f"sample-{number}").write_bytes(data)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={ONE_INPUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-max_len={MAX_INPUT}",
        f"-seed={seed}",
        f"-artifact_prefix={scratch}/found-",
        "-print_final_stats=1",
    ]
    folders = [str(corpus), *([str(CORPUS / target)] if (CORPUS / target).is_dir() else [])]
    code, log = _run(target, [*options, *folders], limit=seconds + 120)
    return _outcome(target, seconds, code, log, scratch)


def minimise(target: str, folders: list[Path], into: Path) -> None:
    """Copy into a folder the fewest and smallest inputs that reach all that those in `folders` reach."""
    into.mkdir(parents=True, exist_ok=True)
    options = ["-merge=1", f"-max_len={MAX_INPUT}", f"-timeout={ONE_INPUT_S}"]
    code, log = _run(target, [*options, str(into), *map(str, folders)], limit=600)
    if code:
        raise RuntimeError(log[-2000:])


def _run(target: str, arguments: list[str], *, limit: int) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.guided", target, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            log, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            log, _ = process.communicate()
    return process.returncode, log.decode("utf-8", "replace")


def _outcome(target: str, seconds: int, code: int, log: str, scratch: Path) -> Outcome:
    last = (_LAST.findall(log.encode()) or [(b"0", b"0", b"0")])[-1]
    runs = re.search(r"stat::number_of_executed_units: (\d+)", log)
    took = re.search(r"Done \d+ runs in (\d+) second", log)
    found = sorted(scratch.glob("found-*"), key=lambda path: path.stat().st_mtime)
    reproducer = found[-1].read_bytes() if found else b""
    return Outcome(
        target,
        int(took[1]) if took else seconds,
        int(runs[1]) if runs else 0,
        int(last[0]),
        int(last[1]),
        reproducer if code or found else None,
        log,
    )
