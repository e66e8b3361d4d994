"""Where damaged files go: out of the way of readers, kept for people to look at, with the reason beside each.

::

    <folder>/<time in ns>-<random>-<name>         what was taken, moved and not copied
    <folder>/<time in ns>-<random>-<name>.why     one line: where it was and what is wrong with it

Bounded by count and by bytes, the oldest go first. Nothing here is ever read back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from cachekit.errors import CachekitError
from cachekit.store import files

KEPT_FILES = 64
"""Enough to study what happened; a disk that keeps damaging files must not fill up with them."""

KEPT_BYTES = 512 * 2**20
"""The same for large ones. The newest is kept whatever its size."""

_WHY = ".why"
_MAX_WHY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Kept:
    """One thing in quarantine: where it is, its bytes, when it was taken (ns since the epoch) and why."""

    path: Path
    size: int
    taken_at: int
    why: str


def take(path: Path, folder: Path, why: str, *, bounded: bool = True) -> Path | None:
    """Move whatever is at ``path`` into the quarantine ``folder``; its new place, None if there is nothing.

    A link is moved, not what it leads to. Without ``bounded`` nothing older is let go for it. Raises `StoreError`.
    """
    if not os.path.lexists(path):
        return None
    files.make_folder(folder)
    # Digits first and of equal length, so that names sort by age.
    place = folder / f"{time.time_ns():020d}-{os.urandom(2).hex()}-{path.name}"
    with files.writing(folder):
        try:
            path.rename(place)
        except FileNotFoundError:  # somebody else was quicker
            return None
    _write_why(place, f"{path}: {why}")
    if bounded:
        _bound(folder)
    return place


def kept(folder: Path) -> list[Kept]:
    """What is in quarantine, the oldest first. Raises `StoreError`."""
    found = []
    for name in files.names(folder):
        path = folder / name
        if name.endswith(_WHY) and os.path.lexists(path.with_name(name.removesuffix(_WHY))):
            continue
        with contextlib.suppress(FileNotFoundError), files.writing(path):
            digits = name.partition("-")[0]
            taken_at = int(digits) if digits.isdecimal() and digits.isascii() else path.lstat().st_mtime_ns
            found.append(Kept(path, _size(path), taken_at, _read_why(path)))
    return found


def _write_why(place: Path, why: str) -> None:
    """A reason is for people: that it cannot be written is no reason to fail."""
    with contextlib.suppress(OSError):
        descriptor = os.open(
            f"{place}{_WHY}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(" ".join(why.split()).encode("utf-8", "backslashreplace")[:_MAX_WHY_BYTES])


def _read_why(place: Path) -> str:
    try:
        data = files.read(place.with_name(place.name + _WHY), max_bytes=_MAX_WHY_BYTES)
    except CachekitError:
        return ""
    return data.decode("utf-8", "replace")


def _bound(folder: Path) -> None:
    left_files, left_bytes = KEPT_FILES, KEPT_BYTES
    for index, one in enumerate(reversed(kept(folder))):
        left_files -= 1
        left_bytes -= one.size
        if index and (left_files < 0 or left_bytes < 0):
            with files.writing(folder):
                _remove(one.path)
                one.path.with_name(one.path.name + _WHY).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()


def _size(path: Path) -> int:
    """The bytes of a file, or of all files below a folder."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return found.st_size
    return sum(inner.lstat().st_size for inner in path.rglob("*"))
