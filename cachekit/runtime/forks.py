"""What a fork must not cut in half.

A forked child has one thread. A lock that another thread held stays locked in it for ever, a module that another
thread was importing stays half imported, and SQLite goes on believing in its own locks. So locks are made anew in the
child (:func:`renew_in_child`), and a fork waits, for a bounded time, until nobody is in an :func:`unforkable` stretch.

Locks are plain ``threading.RLock``: with those, ``with`` cannot be torn apart by a ``KeyboardInterrupt``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

FORK_WAIT_S = 5.0
"""Importing SQLAlchemy takes half a second, a transaction milliseconds; a fork that waits longer meets a hung disk."""

_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_unforkable = threading.RLock()
_waited = threading.local()


def renew_in_child(owner: Any) -> None:
    """Give ``owner._lock`` a new, free lock in every child that is forked from now on."""
    _owners.add(owner)


def held_here(lock: Any) -> bool:
    """Whether the calling thread is inside of ``with lock``: a signal handler or finalizer may have cut in there."""
    return bool(lock._is_owned())


@contextlib.contextmanager
def unforkable() -> Iterator[None]:
    """Keep other threads' forks waiting: around imports that take long and around SQLite. Re-entrant."""
    with _unforkable:
        yield


def _before() -> None:
    _waited.taken = _unforkable.acquire(timeout=FORK_WAIT_S)


def _in_parent() -> None:
    if _waited.taken:
        _unforkable.release()


def _in_child() -> None:
    global _unforkable  # noqa: PLW0603  the one that the parent's threads held
    _unforkable = threading.RLock()
    for owner in list(_owners):
        owner._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
