"""What lies in a directory store that does not belong there, or not so: links, FIFOs, left-overs, strange names, modes.

Looks at names and statuses only, never into a file, and changes nothing; `cachekit verify` reports it, and with
``--repair`` puts it right.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cachekit.errors import StoreError
from cachekit.store import files
from cachekit.store.base import Head, is_digest, is_fingerprint_id

Inside = Callable[[Path], Iterator["Oddity"]]
Kind = Literal["type", "leftover", "mode", "readable", "stray"]


@dataclass(frozen=True, slots=True)
class Oddity:
    """One thing that was found.

    ``kind``: ``type`` is something else in the place of a file or folder, ``leftover`` what a killed writer left,
    ``mode`` rights that are too many or too few, ``readable`` a folder that others can look into, ``stray`` a name that
    means nothing here.
    """

    path: Path
    kind: Kind
    message: str


def namespace(folder: Path) -> Iterator[Oddity]:
    """Everything odd below the folder of a namespace. Raises `StoreError` if a folder cannot be listed."""
    yield from private(folder)
    for path in files.leftovers(folder, below=True):
        yield Oddity(path, "leftover", "left by a writer that was killed")
    known: dict[str, Inside] = {
        "blobs": _blobs,
        "contributions": _contributions,
        "profiles": _profiles,
        "quarantine": lambda inside: iter(()),
    }
    yield from _each(folder, known.get)


def private(folder: Path) -> Iterator[Oddity]:
    """Whether others can write or read what is in the folder; nothing if it is not there."""
    found = _status(folder)
    if found is None or os.name != "posix" or not stat.S_ISDIR(found.st_mode):
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022 or mode & 0o700 != 0o700:
        yield Oddity(folder, "mode", f"has mode {mode:04o} and should have 0700: run chmod 700 on it")
    elif mode & 0o055:
        yield Oddity(folder, "readable", f"can be looked into by other users (mode {mode:04o})")


def _blobs(folder: Path) -> Iterator[Oddity]:
    def shard(name: str) -> Inside | None:
        return _digests if len(name) == 2 and is_digest(name * 32) else None

    yield from _each(folder, lambda name: (lambda at: _each(at, shard)) if name == "sha256" else None)


def _digests(folder: Path) -> Iterator[Oddity]:
    shard = folder.name
    yield from _files(folder, lambda name: is_digest(name) and name.startswith(shard))


def _contributions(folder: Path) -> Iterator[Oddity]:
    yield from _files(folder, is_digest)


def _profiles(folder: Path) -> Iterator[Oddity]:
    yield from _each(folder, lambda name: _profile if is_fingerprint_id(name) else None)


def _profile(folder: Path) -> Iterator[Oddity]:
    for path, status in _listed(folder):
        if path.name in ("head.json", "profile.json"):
            yield from _file(path, status)
        elif path.name == "generations":
            if stat.S_ISDIR(status.st_mode):
                yield from _files(path, lambda name: Head.from_filename(name) is not None)
            else:
                yield _wrong(path, status, "a folder")
        else:
            yield _stray(path)


def _each(folder: Path, inside: Callable[[str], Inside | None]) -> Iterator[Oddity]:
    """A folder of folders; a file that has the name of one is stray, for a profile's name is almost any."""
    for path, status in _listed(folder):
        look = inside(path.name)
        if look is None:
            yield _stray(path)
        elif stat.S_ISDIR(status.st_mode):
            yield from _readable(path, status, 0o700)
            yield from look(path)
        elif look is _profile:
            yield _stray(path)
        else:
            yield _wrong(path, status, "a folder")


def _files(folder: Path, belongs: Callable[[str], bool]) -> Iterator[Oddity]:
    for path, status in _listed(folder):
        yield from _file(path, status) if belongs(path.name) else (_stray(path),)


def _file(path: Path, status: os.stat_result) -> Iterator[Oddity]:
    if stat.S_ISREG(status.st_mode):
        yield from _readable(path, status, 0o600)
    else:
        yield _wrong(path, status, "a file")


def _readable(path: Path, status: os.stat_result, wanted: int) -> Iterator[Oddity]:
    if os.name == "posix" and status.st_mode & wanted & 0o700 != wanted:
        mode = stat.S_IMODE(status.st_mode)
        yield Oddity(
            path, "mode", f"has mode {mode:04o}, which keeps its owner out: run chmod {wanted:o} on it"
        )


def _listed(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        found = files.names(folder)
    except StoreError:
        if os.access(folder, os.R_OK | os.X_OK):
            raise
        return  # its mode was reported
    for name in found:
        status = _status(folder / name)
        if status is not None:
            yield folder / name, status


def _status(path: Path) -> os.stat_result | None:
    try:
        with files.reading(path):
            try:
                return path.lstat()
            except FileNotFoundError:
                return None  # gone since it was listed
    except StoreError:
        return None  # in a folder whose mode was reported


_TYPES = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFIFO: "a FIFO"}


def _wrong(path: Path, status: os.stat_result, wanted: str) -> Oddity:
    found = _TYPES.get(stat.S_IFMT(status.st_mode), "something")
    return Oddity(path, "type", f"{found} in the place of {wanted}")


def _stray(path: Path) -> Oddity:
    return Oddity(path, "stray", "does not belong there; nothing reads it")
