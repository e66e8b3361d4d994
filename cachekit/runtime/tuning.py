"""Results of autotuning, which torch writes while compiled code runs: in the engine's call, past any backend.

One that cannot be read is measured again, and one that cannot be written is used all the same; it was recorded before.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from cachekit.logs import Log
from cachekit.runtime import torch_private
from cachekit.store.files import describe

log = Log("cachekit")


def watch(stack: contextlib.ExitStack) -> None:
    """Keep what the file system says from the engine; undone when ``stack`` closes."""
    backend = torch_private.local_cache_backend()
    if backend is None:
        return
    read, write = backend.__dict__["_get"], backend.__dict__["_put"]
    told: list[str] = []

    def tell(doing: str, key: str, error: OSError) -> None:
        log.log(
            logging.DEBUG if told else logging.WARNING,
            "a result of autotuning cannot be %s: %s: %s",
            doing,
            key,
            describe(error),
        )
        told.append(key)

    def get(self: Any, key: str) -> Any:
        try:
            return read(self, key)
        except OSError as exc:
            tell("read", key, exc)
            return None

    def put(self: Any, key: str, data: bytes) -> None:
        try:
            write(self, key, data)
        except OSError as exc:
            tell("written", key, exc)

    for name, original, watched in (("_get", read, get), ("_put", write, put)):
        stack.callback(setattr, backend, name, original)
        setattr(backend, name, watched)
