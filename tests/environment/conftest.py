"""Small libraries that change what a process is answered, built once by the C++ compiler."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

_NO_FLOCK = """
#include <errno.h>
extern "C" int flock(int, int) { errno = ENOLCK; return -1; }
"""

_CLOCK = """
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long seconds() {
    static const long long start = atoll(getenv("CLOCK_START")), step = atoll(getenv("CLOCK_STEP"));
    static long long looks = 0;
    return start + step * __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED);
}

extern "C" int clock_gettime(clockid_t clock, struct timespec* at) noexcept {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, at);
    *at = {seconds(), 0};
    return 0;
}

extern "C" int gettimeofday(struct timeval* at, void*) noexcept {
    *at = {seconds(), 0};
    return 0;
}

extern "C" time_t time(time_t* at) noexcept {
    time_t now = seconds();
    if (at) *at = now;
    return now;
}
"""


def _build(folder: Path, name: str, source: str) -> Path:
    library = folder / f"{name}.so"
    code = folder / f"{name}.cpp"
    code.write_text(source, encoding="ascii")
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, code], check=True, timeout=120)
    return library


Preload = Callable[[str], str]


@pytest.fixture(scope="session")
def _built() -> dict[str, bytes]:
    """Libraries by name, each built once."""
    return {}


@pytest.fixture
def preload(tmp_path: Path, _built: dict[str, bytes]) -> Preload:
    """Put ``no_flock`` or ``clock`` into the room of the test; the shell line that has it preloaded.

    ``no_flock`` knows no file locks. With ``clock`` the calendar starts ``CLOCK_START`` seconds after 1970 and goes
    on by ``CLOCK_STEP`` at each look; clocks that measure time run on.
    """

    def place(name: str) -> str:
        if name not in _built:
            _built[name] = _build(tmp_path, name, {"no_flock": _NO_FLOCK, "clock": _CLOCK}[name]).read_bytes()
        (tmp_path / f"{name}.so").write_bytes(_built[name])
        return f"export LD_PRELOAD=/mnt/{name}.so"

    return place
