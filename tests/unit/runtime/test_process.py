"""The private folder is one process's own, and everything that is shared is put back when the last session leaves."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachekit.errors import StoreError, UnsupportedError
from cachekit.runtime import folder as private
from cachekit.runtime import places, process, torch_private
from cachekit.runtime.process import PrivateFolder, SharedState

HOLDER = """
import fcntl, os, sys
handle = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def mode(path: Path) -> int:
    """Return the permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def sibling(parent: Path) -> Path:
    """Leave a folder like that of a process which died."""
    folder = parent / "1-dead"
    (folder / "inductor").mkdir(parents=True)
    (folder / "inductor" / "kernel").write_text("machine code")
    return folder


@pytest.fixture
def holder() -> Iterator[object]:
    """Let another process hold a lock, until the test ends."""
    started: list[subprocess.Popen[bytes]] = []

    def hold(lock: Path) -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"

    yield hold
    for child in started:
        child.communicate(timeout=60)


# --- the folder ----------------------------------------------------------------------------------------------------


def test_the_folder_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    """The folder, what is in it, and a parent that has to be made have no permissions for others."""
    folder = PrivateFolder(tmp_path / "cachekit" / "process")

    assert [mode(path) for path in (folder.path, folder.inductor, folder.triton)] == [0o700] * 3
    assert mode(tmp_path / "cachekit" / "process") == 0o700


def test_the_lock_is_held_while_the_process_lives(tmp_path: Path) -> None:
    """Nobody else can take the folder's lock, which is how they know that it is in use."""
    folder = PrivateFolder(tmp_path)

    handle = os.open(folder.path, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def test_two_folders_of_one_process_differ(tmp_path: Path) -> None:
    """A second folder neither takes nor removes the first."""
    first, second = PrivateFolder(tmp_path), PrivateFolder(tmp_path)

    assert first.path != second.path
    assert first.inductor.is_dir()


def test_a_dead_process_s_folder_is_removed(tmp_path: Path) -> None:
    """What a killed process left is removed by the next one to start."""
    dead = sibling(tmp_path)

    PrivateFolder(tmp_path)

    assert not dead.exists()


def test_a_living_process_s_folder_is_kept(tmp_path: Path, holder: object) -> None:
    """A folder whose lock another process holds is left alone, whatever it is called."""
    living = sibling(tmp_path)
    assert callable(holder)
    holder(living)

    PrivateFolder(tmp_path)

    assert (living / "inductor" / "kernel").read_text() == "machine code"


def test_a_process_that_died_before_it_held_a_lock_leaves_nothing(tmp_path: Path) -> None:
    """A folder that was made and never filled is removed like any other of the dead: none is without a lock."""
    empty = tmp_path / "1-abcdefgh"
    empty.mkdir()

    PrivateFolder(tmp_path)

    assert not empty.exists()


def test_a_folder_knows_whether_it_is_still_there(tmp_path: Path) -> None:
    """A folder that was removed, and one that somebody made anew in its place, are not held by this process."""
    folder = PrivateFolder(tmp_path)
    assert folder.intact

    folder.remove()
    assert not folder.intact
    folder.inductor.mkdir(parents=True)
    assert not folder.intact


def test_a_folder_that_is_called_otherwise_is_not_ours_to_remove(tmp_path: Path) -> None:
    """Anything else that lies there is left alone."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").touch()

    PrivateFolder(tmp_path)

    assert (tmp_path / "notes").is_dir()
    assert (tmp_path / "file").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A folder behind a link is not emptied."""
    elsewhere = sibling(tmp_path / "elsewhere")
    parent = tmp_path / "process"
    parent.mkdir()
    (parent / "1-linked").symlink_to(elsewhere)

    PrivateFolder(parent)

    assert (elsewhere / "inductor" / "kernel").exists()


def test_a_folder_is_not_taken_for_dead_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts at the same moment does not remove a folder whose lock is not held yet."""
    real = fcntl.flock

    def looked_at(handle: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        private.remove_dead(tmp_path)  # as another process would, at the worst moment
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", looked_at)

    folder = PrivateFolder(tmp_path)

    assert folder.inductor.is_dir()
    assert folder.intact


@pytest.mark.parametrize("fault", ["a file in its place", "no permission"])
def test_a_folder_that_cannot_be_made_is_a_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The error names the path and the errno."""
    parent = tmp_path / "process"
    if fault == "a file in its place":
        parent.touch()
        name = "EEXIST"
    else:
        name = "EACCES"

        def refused(**arguments: object) -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(private.tempfile, "mkdtemp", refused)

    with pytest.raises(StoreError, match=rf"{parent}.*{name}"):
        PrivateFolder(parent)


def test_a_folder_that_cannot_be_filled_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is full in the middle of making it, nothing is left of it."""
    real = Path.mkdir

    def full(path: Path, *args: object, **kwargs: object) -> None:
        if path.name == "triton":
            raise OSError(28, "No space left on device")
        real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", full)

    with pytest.raises(StoreError, match="ENOSPC"):
        PrivateFolder(tmp_path / "process")

    assert list((tmp_path / "process").iterdir()) == []


def test_the_folder_goes_with_the_process(tmp_path: Path) -> None:
    """A process that ends in good order leaves nothing behind; a forked child of it removes nothing."""
    script = """
import os, sys
from pathlib import Path
from cachekit.runtime.process import PrivateFolder
folder = PrivateFolder(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    sys.exit()  # runs the exit handlers that the child inherited
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(folder.inductor.is_dir())
"""

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "process")],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "True\n", done.stderr
    assert list((tmp_path / "process").iterdir()) == []


# --- what sessions share -------------------------------------------------------------------------------------------


def state() -> list[object]:
    """Everything that entering changes."""
    cache, config = torch_private.code_cache(), torch_private.dynamo_config()
    return [
        os.environ.get("TORCHINDUCTOR_CACHE_DIR"),
        os.environ.get("TRITON_CACHE_DIR"),
        cache.write,
        cache._precompile_header,
        torch_private.isa_class().check_build,
        torch_private.artifact_manager().__dict__["record_artifact"],
        config.recompile_limit,
        config.accumulated_recompile_limit,
    ]


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """One variable and one limit set by somebody else, one variable unset; what there is before entering."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/theirs")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with torch_private.dynamo_config().patch(accumulated_recompile_limit=1000):
        yield state()


def test_entering_redirects_both_compilers(tmp_path: Path, before: list[object]) -> None:
    """Inductor and Triton write into the private folder, whatever the environment said."""
    shared = SharedState()

    folder = shared.enter(tmp_path)
    try:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder.inductor)
        assert os.environ["TRITON_CACHE_DIR"] == str(folder.triton)
    finally:
        shared.leave()


def test_recompile_limits_are_raised_and_never_lowered(tmp_path: Path, before: list[object]) -> None:
    """A limit that is too small for regional compiles is raised; a larger one of the engine stays."""
    shared = SharedState()

    shared.enter(tmp_path)
    try:
        config = torch_private.dynamo_config()
        assert config.recompile_limit == process.RECOMPILE_LIMIT
        assert config.accumulated_recompile_limit == 1000
    finally:
        shared.leave()


def test_leaving_puts_everything_back(tmp_path: Path, before: list[object]) -> None:
    """Variables (set or unset), torch's functions and limits are what they were; the folder stays."""
    shared = SharedState()

    folder = shared.enter(tmp_path)
    assert sum(a is not b for a, b in zip(before, state(), strict=True)) == 7
    shared.leave()

    assert state() == before
    assert folder.inductor.is_dir()


def test_sessions_are_counted(tmp_path: Path, before: list[object]) -> None:
    """The second session shares what the first set up, and the last to leave puts it back."""
    shared = SharedState()

    first = shared.enter(tmp_path / "one")
    during = state()
    second = shared.enter(tmp_path / "two")
    shared.leave()

    assert second is first
    assert not (tmp_path / "two").exists()
    assert state() == during
    shared.leave()
    assert state() == before


def test_the_folder_is_used_again_after_everybody_left(tmp_path: Path, before: list[object]) -> None:
    """A later session finds the folder that live code is read from."""
    shared = SharedState()
    first = shared.enter(tmp_path)
    shared.leave()

    second = shared.enter(tmp_path)
    shared.leave()

    assert second is first
    assert state() == before


def test_another_folder_can_be_used_from_now_on(tmp_path: Path, before: list[object]) -> None:
    """Everybody who shares the folder goes on in the new one; the old one stays for what was loaded from it."""
    shared = SharedState()
    folder = shared.enter(tmp_path / "one", tmp_path / "two")
    old = folder.path

    shared.relocate()

    assert folder.path.parent == tmp_path / "two"
    assert folder.intact
    assert old.is_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder.inductor)
    shared.leave()
    assert state() == before


def test_a_folder_that_vanished_between_sessions_is_made_anew(tmp_path: Path, before: list[object]) -> None:
    """A session that starts after somebody removed the folder gets one that is held."""
    shared = SharedState()
    folder = shared.enter(tmp_path)
    shared.leave()
    folder.remove()

    assert shared.enter(tmp_path).intact
    shared.leave()


def test_a_failure_leaves_everything_as_it_was(
    tmp_path: Path, before: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When this torch lacks something that must be watched, nothing stays changed, and the next try starts anew."""
    shared = SharedState()
    with monkeypatch.context() as patch:
        patch.setattr(torch_private, "isa_class", lambda: torch_private._need("torch", "no_such_thing"))
        with pytest.raises(UnsupportedError, match="no_such_thing"):
            shared.enter(tmp_path)

    assert state() == before
    shared.enter(tmp_path)
    assert state() != before
    shared.leave()
    assert state() == before


def test_a_folder_that_cannot_be_made_changes_nothing(tmp_path: Path, before: list[object]) -> None:
    """Without a folder nothing is redirected."""
    parent = tmp_path / "process"
    parent.touch()

    with pytest.raises(StoreError):
        SharedState().enter(parent)

    assert state() == before


def test_a_forked_child_starts_anew(tmp_path: Path, before: list[object]) -> None:
    """A session of a child gets a folder of its own, is directed to it, and leaves the parent's environment behind."""
    shared = SharedState()
    parents = shared.enter(tmp_path)
    read, write = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            folder = shared.enter(tmp_path)
            told = [
                folder.path != parents.path,
                os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder.inductor),
            ]
            shared.leave()
            told.append(state() == before)
            os.write(write, repr(told).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    shared.leave()

    assert told == "[True, True, True]"
    assert parents.inductor.is_dir()


# --- where the folder is made --------------------------------------------------------------------------------------


def test_a_full_folder_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile that cannot write fails in the engine's call: the private folder goes where there is room."""
    full, roomy = tmp_path / "full", tmp_path / "roomy"

    monkeypatch.setattr(places, "unfit_folder", lambda path: "full" if full in path.parents else None)
    shared = SharedState()

    folder = shared.enter(full, roomy)
    shared.leave()

    assert folder.path.parent == roomy
    assert list(full.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_passed_over(tmp_path: Path) -> None:
    """A file in place of the folder, or a read-only one, does not disable the session."""
    (tmp_path / "file").touch()
    shared = SharedState()

    folder = shared.enter(tmp_path / "file" / "process", tmp_path / "elsewhere")
    shared.leave()

    assert folder.path.parent == tmp_path / "elsewhere"


def test_without_any_room_every_place_is_named(tmp_path: Path) -> None:
    """The error says of each place why it would not do."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match=r"one.*ENOTDIR.*two.*ENOTDIR"):
        SharedState().enter(tmp_path / "file" / "one", tmp_path / "file" / "two")


def test_a_session_that_is_collected_while_another_one_starts_leaves_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer may run anywhere, on the thread that sets up too: it waits for nothing, and nothing is put back."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    state = SharedState()
    state.enter(tmp_path)
    real = SharedState._set_up

    def cut_into(self: SharedState, parents: tuple[Path, ...]) -> PrivateFolder:
        self.leave()
        return real(self, parents)

    monkeypatch.setattr(SharedState, "_set_up", cut_into)
    folder = state.enter(tmp_path)

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder.inductor)
    state.leave()
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
