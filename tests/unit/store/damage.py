"""Every way in which a file can be wrong, as functions of its path: what the tests of each file kind go through."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOBODY = 65534


def _missing(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _halved(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


def _grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n\0more")


def _link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name(f"elsewhere-{path.name}")))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": _missing,
    "empty": _empty,
    "truncated": _truncated,
    "halved": _halved,
    "flipped": _flipped,
    "zeros": _zeros,
    "grown": _grown,
    "link": _link,
    "fifo": _fifo,
    "folder": _folder,
}
"""By name; each leaves something else in the place of a regular file."""


_BECOME = """
import os


def become_ordinary():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid({uid})
        os.setuid({uid})
"""


def as_user(script: str, *arguments: str, uid: int = NOBODY) -> str:
    """What ``script`` prints in a fresh interpreter.

    It calls ``become_ordinary()`` after its imports, because an ordinary user may not be let into this checkout.
    """
    done = subprocess.run(
        [sys.executable, "-c", _BECOME.format(uid=uid) + textwrap.dedent(script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def open_the_way_to(folder: Path) -> None:
    """Let an ordinary user pass through the folders above; pytest makes them 0700."""
    for parent in folder.parents:
        if parent == Path(tempfile.gettempdir()):
            return
        parent.chmod(parent.stat().st_mode | 0o011)
