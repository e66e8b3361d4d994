"""The shim as Python sees it: make the n-th call that reaches a folder fail, count calls, name what they act on.

Works only in a process that was started with the library in ``LD_PRELOAD``; `tests/faults/conftest.py` does that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ERRNOS = ("ENOSPC", "EIO", "EACCES", "EROFS", "EINTR")
OFF, FAIL, KILL_BEFORE, KILL_AFTER, FAIL_ON, SHORT = range(6)

_PLACES = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"", "cachekit folder"),
        (r"store(/local)?", "folder of the store"),
        (r"store/local/blobs(/sha256(/[0-9a-f]{2})?)?", "folder of blobs"),
        (r"store/local/blobs/sha256/../[0-9a-f]{64}", "blob"),
        (r"store/local/blobs/.*/\.tmp-.*", "new blob"),
        (r"store/local/contributions", "folder of contributions"),
        (r"store/local/contributions/[0-9a-f]{64}", "contribution"),
        (r"store/local/contributions/\.tmp-.*", "new contribution"),
        (r"store/local/profiles(/[0-9a-f]+)?", "folder of the profile"),
        (r"store/local/profiles/[0-9a-f]+/profile\.json", "components"),
        (r"store/local/profiles/[0-9a-f]+/head\.json", "head"),
        (r"store/local/profiles/[0-9a-f]+/\.lock", "lock of the head"),
        (r"store/local/profiles/[0-9a-f]+/\.turn", "turn to save"),
        (r"store/local/profiles/[0-9a-f]+/\.tmp-.*", "new head or components"),
        (r"store/local/profiles/[0-9a-f]+/generations", "folder of documents"),
        (r"store/local/profiles/[0-9a-f]+/generations/[0-9].*", "document"),
        (r"store/local/profiles/[0-9a-f]+/generations/\.tmp-.*", "new document"),
        (r"store/local/quarantine.*", "quarantine"),
        (r"keys(/trusted)?", "folder of keys"),
        (r"keys/\.lock", "lock of the keys"),
        (r"keys/signing\.pem", "signing key"),
        (r"keys/trusted/[0-9a-f]+\.pem", "trusted key"),
        (r"keys/(trusted/)?\.tmp-.*", "new key"),
        (r"seen(/local)*", "folder of what was seen"),
        (r"seen/local.*/\.lock", "lock of what was seen"),
        (r"seen/local.*/\.tmp-.*", "new note of what was seen"),
        (r"seen/local.*/[0-9a-f]+(\.withdrawn)?\.json", "note of what was seen"),
        (r"\.manifest\.sqlite3\.lock", "lock of the manifest"),
        (r"manifest\.sqlite3.*", "manifest"),
        (r"process", "folder of private folders"),
        (r"process/[^/]+(/inductor|/triton)?", "private folder"),
        (r"process/.*/[^/]*\.so.*", "kernel"),
        (r"process/.*", "compiler's file"),
    )
]


@dataclass(frozen=True, order=True)
class Call:
    """One call: what libc was asked, and what kind of thing it acts on."""

    name: str
    place: str


def place(path: str, folder: Path) -> str:
    """What kind of thing lies at ``path`` below a cachekit folder."""
    relative = os.path.relpath(path, folder)
    relative = "" if relative == "." else relative
    return next((name for pattern, name in _PLACES if pattern.fullmatch(relative)), f"other: {relative}")


class Shim:
    """The library in this process; ``folder`` is the one that is watched."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        for name in ("shim_name", "shim_path"):
            getattr(self._library, name).restype = ctypes.c_char_p
        for name in ("shim_count", "shim_stop"):
            getattr(self._library, name).restype = ctypes.c_long
        self._library.shim_start.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int)
        self.watch(folder)

    def watch(self, folder: Path) -> None:
        """Count the calls below this folder, and no others."""
        self.folder = folder
        self._library.shim_unwatch()
        self._library.shim_watch(os.fsencode(folder))

    @contextlib.contextmanager
    def fault(self, n: int = 0, mode: int = FAIL, error: str = "EIO") -> Iterator[None]:
        """Within, the n-th call (from 1; 0 is none) fails with that error, or whatever else the mode says."""
        self._library.shim_start(n, mode, getattr(errno, error))
        try:
            yield
        finally:
            self._library.shim_stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within, a test may look at what is there: its own calls neither fail nor count."""
        self._library.shim_pause(1)
        try:
            yield
        finally:
            self._library.shim_pause(0)

    @property
    def calls(self) -> list[Call]:
        """What was counted since the last start, in order."""
        count = self._library.shim_count()
        return [self._call(n) for n in range(1, count + 1)]

    def _call(self, n: int) -> Call:
        name, path = self._library.shim_name(n), self._library.shim_path(n)
        return Call(name.decode(), place(os.fsdecode(path), self.folder))
