"""A clock that is far off: machines without a battery start in 1970, and some are set back while they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environment.conftest import Preload
from tests.environment.containers import Container

CLOCKS = {
    "1970": (0, 1),
    "before 1970": (-86_400, 1),
    "2038": (1 << 31, 1),
    "2106": (1 << 32, 1),
    "backwards": (1_800_000_000, -60),
}
"""Seconds since 1970 at the first look, and seconds per look."""


@pytest.mark.parametrize("kind", CLOCKS)
def test_a_wrong_clock_does_not_matter(tmp_path: Path, preload: Preload, kind: str) -> None:
    """Saving, merging, indexing and reading work at any time, and a machine with the right time reads the result."""
    start, step = CLOCKS[kind]
    wrong = Container(
        room=tmp_path,
        shell=preload("clock"),
        environment={"CACHEKIT_DIR": "/mnt/cachekit", "CLOCK_START": str(start), "CLOCK_STEP": str(step)},
    )

    told = wrong.run("""
import time
from cachekit import Manifest, Settings
from tests.environment.trial import FINGERPRINT, Library, find, keep, room
started, patience = time.time(), time.monotonic()
place = room()[1]
first, second = keep(), keep(b"\\x7fELF another")
bundle = Library(Settings.from_env()).find(FINGERPRINT)
problem = Library(Settings.from_env()).record("saved", bundle)
manifest = Manifest(Settings.from_env().manifest_path)
tell(place=place["place"], first=first, second=second, problem=problem, indexed=len(manifest.bundles()),
     year=started, took=time.monotonic() - patience)
""")
    right = wrong.but(shell="").run(
        "from tests.environment.trial import find, keep; tell(before=find(), after=keep())"
    )

    assert abs(told["year"] - start) < 10_000_000
    assert told["place"] == "/mnt/cachekit/process"
    assert [told["first"]["error"], told["second"]["error"], told["problem"]] == [None, None, None]
    assert told["indexed"] == 1
    assert told["took"] < 30
    assert right["before"]["artifacts"] == 2
    assert right["after"]["error"] is None


def test_waiting_for_a_lock_ends_whatever_the_clock_does(tmp_path: Path, preload: Preload) -> None:
    """Somebody holds the lock of a head and the clock runs backwards: the wait ends by the clock that only goes on."""
    told = Container(
        room=tmp_path,
        shell=preload("clock"),
        environment={"CLOCK_START": "1800000000", "CLOCK_STEP": "-60"},
    ).run("""
import time
from pathlib import Path
from cachekit import CachekitError
from cachekit.store import files
before, error = time.monotonic(), None
with files.locked(Path("/mnt/lock")):
    try:
        with files.locked(Path("/mnt/lock"), timeout_s=0.2):
            pass
    except CachekitError as exc:
        error = str(exc)
tell(error=error, took=time.monotonic() - before)
""")

    assert "another process has held it for too long" in told["error"]
    assert 0.2 <= told["took"] < 20
