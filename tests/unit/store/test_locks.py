"""Temporary files and locks: what a dead writer left is told from what a live one is writing."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from cachekit.errors import StoreError
from cachekit.store import files, locks


def test_a_temporary_file_that_nobody_holds_is_a_leftover(tmp_path: Path) -> None:
    """Whatever its age and the process id in its name; other files are none."""
    dead, other = tmp_path / f".tmp-{os.getpid()}-aa", tmp_path / ".lock"
    below = tmp_path / "ab" / ".tmp-1-bb"
    below.parent.mkdir()
    for path in (dead, other, below):
        path.touch()

    assert files.leftovers(tmp_path) == [dead]
    assert files.leftovers(tmp_path, below=True) == [dead, below]
    assert files.remove_leftovers(tmp_path, below=True) == 2
    assert other.exists()


def test_a_temporary_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """The writer holds its lock until it is renamed."""
    seen: list[tuple[list[Path], list[Path]]] = []
    real = os.fsync

    def look(descriptor: int) -> None:
        seen.append((files.leftovers(tmp_path), sorted(tmp_path.glob(".tmp-*"))))
        real(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", look)
        files.write(tmp_path / "file", b"data")

    leftovers, present = seen[0]
    assert leftovers == []
    assert len(present) == 1
    assert (tmp_path / "file").read_bytes() == b"data"


def test_the_next_writer_removes_what_a_dead_one_left(tmp_path: Path) -> None:
    """In the folder that it writes to."""
    (tmp_path / ".tmp-1-aa").write_bytes(b"half")

    files.write(tmp_path / "file", b"data")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_swept_before_it_is_locked_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, another process may take it for a left-over."""
    real = fcntl.flock
    swept = []

    def late(descriptor: int, operation: int) -> None:
        if not swept:
            swept.append(True)
            assert files.remove_leftovers(tmp_path) == 1
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)

    files.write(tmp_path / "file", b"data")

    assert (tmp_path / "file").read_bytes() == b"data"
    assert swept


def test_a_link_is_no_leftover(tmp_path: Path) -> None:
    """It is not followed: what it names is not ours."""
    target = tmp_path / "target"
    target.touch()
    (tmp_path / ".tmp-link").symlink_to(target)

    assert files.leftovers(tmp_path) == []
    assert files.remove_leftovers(tmp_path) == 0


def test_many_writers_of_one_folder_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    """Each sweeps before it writes, and nobody's file gets lost."""
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for n in range(25):
            files.write(tmp_path / f"{number}-{n}", bytes([n]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{number}-{n}" for number in range(4) for n in range(25)
    )


def test_a_forked_child_keeps_no_lock_of_its_parent(tmp_path: Path) -> None:
    """The parent releases it for good, although the child lives on."""
    ready, done = os.pipe(), os.pipe()
    with files.locked(tmp_path / ".lock"):
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    try:
        with files.locked(tmp_path / ".lock", timeout_s=0.0):
            pass
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*ready, *done):
            os.close(descriptor)


def test_a_lock_that_is_held_is_waited_for_and_then_told(tmp_path: Path) -> None:
    """The error names the lock."""
    with (
        files.locked(tmp_path / ".lock"),
        pytest.raises(StoreError, match="another process has held it"),
        files.locked(tmp_path / ".lock", timeout_s=0.0),
    ):
        pytest.fail("locked twice")


def test_releasing_never_raises(tmp_path: Path) -> None:
    """Also where the descriptor is closed already."""
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    locks.take(descriptor)
    os.close(descriptor)

    locks.release(descriptor)
