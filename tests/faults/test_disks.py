"""A disk that fills up, turns read-only or is emptied while a pipeline compiles: it goes on generating."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import reachable

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE = "160m"
"""More than what a private folder needs to be made, little enough to be filled at once."""

pytestmark = pytest.mark.slow


def own_mounts() -> str | None:
    """Why this test cannot mount anything in a name space of its own, if so."""
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as exc:
        return f"unshare cannot be run ({exc}): install util-linux"
    return done.stderr.strip() or "refused" if done.returncode else None


def broken(folder: Path, how: str, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """Run both models on a disk of their own; with ``everywhere`` there is no other disk to go to."""
    mounts = []
    if how != "removed":
        reason = own_mounts()
        if reason:
            pytest.skip(f"a tmpfs cannot be mounted in a user name space here: {reason}")
        mounts.append(f"mount -t tmpfs -o size={SIZE},mode=1777 tmpfs {folder}")
    if everywhere:  # every place that a private folder could be made in
        mounts += [
            f"mount --bind {folder} {place}" for place in ("/tmp", "/var/tmp") if Path(place) != folder
        ]
    python = [reachable.PYTHON, "-W", "ignore", "-m", "tests.faults.disks", str(folder), how]
    script = reachable.MOUNTS + " && ".join([*mounts, 'exec "$@"'])
    variables = {k: v for k, v in os.environ.items() if not k.startswith("CACHEKIT_") and k != "TMPDIR"}
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-ec", script, "sh", *python] if mounts else [sys.executable, *python[1:]],
        cwd="/",
        env={
            **variables,
            "PYTHONPATH": str(reachable.REPOSITORY if mounts else REPOSITORY),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for told in answers:
        assert told["right"], told
        assert told["plain"], told
    return answers


@pytest.mark.parametrize(("how", "error"), [("full", "ENOSPC"), ("read-only", "EROFS")])
def test_a_disk_that_breaks_is_left_for_another(tmp_path: Path, how: str, error: str) -> None:
    """The next compile takes place in another folder, once; what cannot be saved is told with path and errno."""
    product, kernel = broken(tmp_path, how)

    replaced = f"the private folder was replaced: {tmp_path}"
    assert any(reason.startswith(replaced) and error in reason for reason in product["reasons"])
    for told in (product, kernel):
        assert told["state"] != "disabled"
        assert any(str(tmp_path) in text and error in text for text in told["warnings"])


def test_where_no_disk_is_left_graphs_run_uncompiled() -> None:
    """Every place is full: the engine generates all the same, and one warning says why it is slow."""
    for told in broken(Path("/dev/shm"), "full", everywhere=True):
        assert told["state"] == "disabled"
        (warning,) = told["warnings"]
        assert "uncompiled" in warning
        assert "/dev/shm/cachekit" in warning
        assert "ENOSPC" in warning


def test_a_folder_that_is_removed_while_the_engine_runs_is_made_anew(tmp_path: Path) -> None:
    """After ``rm -rf`` of everything that cachekit keeps, the next compile is kept again."""
    product, kernel = broken(tmp_path, "removed")

    assert any("it was removed" in reason for reason in product["reasons"])
    for told in (product, kernel):
        assert told["state"] != "disabled"
        assert told["model"] == "Kernel" or (tmp_path / "cachekit" / "Product" / "store").is_dir()
