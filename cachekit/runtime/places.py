"""Where a process may keep its private folder, and why torch could not work in some places.

torch compiles there and loads what it compiled, by command lines that it splits at spaces. A place that is not fit for
that would fail in the engine's own call, so it is passed over before the first compile: a network file system (torch's
caches break there), a mount without execution, a full disk, a path that compilers do not take, a folder of others.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import tempfile
from pathlib import Path

from cachekit.store.files import describe
from cachekit.store.mounts import network_type

MIN_FREE_BYTES = 128 << 20
"""Room for what one compile writes: a large U-Net's sources, kernels and artifacts took 105 MB."""

MIN_FREE_FILES = 2000
"""A compiled kernel is five files and a folder, a large U-Net has some hundred of them."""

MAX_PATH_BYTES = 3500
"""Linux takes 4,095; torch, Triton and compilers go up to 400 deeper."""

ADVICE = (
    "set CACHEKIT_DIR or TMPDIR to a folder on a local disk that is writable, is not mounted noexec, "
    f"and has {MIN_FREE_BYTES >> 20} MiB free"
)

_TAKEN_BY_COMPILERS = re.compile(r"[A-Za-z0-9_./+,@%=~-]+")


def candidates(first: Path) -> list[Path]:
    """``first``, then this user's own below the folders that are meant for temporary files, best first."""
    named = (tempfile.tempdir, *(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")))
    parents = [os.fsdecode(name) for name in named if name]
    parents += ["/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108  below each a folder that must be this user's alone
    places = [
        Path(parent).absolute() / f"cachekit-{os.geteuid()}" for parent in parents if os.path.isdir(parent)
    ]
    return list(dict.fromkeys((first, *places)))


def unfit_path(parent: Path) -> str | None:
    """Why no private folder can be below ``parent``, from where it is; None if it may be tried."""
    path = os.path.realpath(parent)
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        return f"{path[:40]}... is too long a path for compilers"
    if not _TAKEN_BY_COMPILERS.fullmatch(path):
        return f"compilers do not take the path {path!a}"
    network = network_type(Path(path))
    return f"{path} is on a network file system ({network})" if network else None


def unfit_folder(folder: Path) -> str | None:
    """Why torch could not work in a folder that was just made; None if it can."""
    try:
        found = os.statvfs(folder)
        if found.f_bavail * found.f_frsize < MIN_FREE_BYTES:
            return f"only {found.f_bavail * found.f_frsize >> 20} MiB are free below {folder.parent}"
        if found.f_files > 0 and found.f_favail < MIN_FREE_FILES:  # some file systems count no files
            return f"only {found.f_favail} more files can be made below {folder.parent}"
        return (
            None
            if _executes(folder)
            else f"{folder.parent} is mounted noexec: nothing compiled can be loaded from it"
        )
    except OSError as exc:
        return f"{folder} cannot be used: {describe(exc)}"


def unsafe_parent(parent: Path) -> str | None:
    """Why a folder of this process would not be safe from other users below ``parent``; None if it is."""
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return f"{parent} is not a folder"
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        return f"{parent} belongs to another user or can be written by one"
    return None


def _executes(folder: Path) -> bool:
    """Whether code can be mapped from files in ``folder``, asked of the kernel itself."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0")
        file.flush()
        try:
            mmap.mmap(file.fileno(), 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
        except PermissionError:
            return False
    return True
