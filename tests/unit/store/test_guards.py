"""Locks on folders: who shares, who is alone, and what becomes of them when a process ends or a folder goes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from cachekit.errors import StoreError
from cachekit.store import guards
from cachekit.store.local import DirectoryStore
from tests.unit.store.world import FINGERPRINT, World, inductor

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(not guards.SUPPORTED, reason="folders cannot be locked here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    made = tmp_path / "folder"
    made.mkdir()
    return made


def _free(folder: Path) -> bool:
    held = guards.claim(folder)
    if held is not None:
        held.release()
    return held is not None


def test_users_share_and_keep_others_out(folder: Path) -> None:
    """Several may use a folder at once; it is free again when the last one lets go, and letting go twice is fine."""
    first, second = guards.share(folder), guards.share(folder)
    assert first is not None
    assert second is not None

    first.release()
    first.release()
    assert not _free(folder)
    second.release()
    assert _free(folder)


def test_a_claimed_folder_is_waited_for(folder: Path) -> None:
    """Who wants to use it gets it when whoever is alone lets go, and a named error if that takes too long."""
    claimed = guards.claim(folder)
    assert claimed is not None

    with pytest.raises(StoreError, match="in use"):
        guards.share(folder, timeout_s=0.0)
    timer = threading.Timer(0.05, claimed.release)
    timer.start()
    held = guards.share(folder)
    timer.join()

    assert held is not None
    assert not _free(folder)


def test_what_is_not_there_is_not_held(folder: Path) -> None:
    """A folder that does not exist is nobody's, and holding it makes none."""
    missing = folder / "missing"

    assert guards.share(missing) is None
    assert guards.claim(missing) is None
    assert not missing.exists()


def test_a_folder_that_was_replaced_meanwhile_is_looked_for_again(folder: Path) -> None:
    """A lock on a folder that is not at its path any more protects nothing, so the one that is there gets locked."""
    claimed = guards.claim(folder)
    assert claimed is not None
    got: list[guards.Hold | None] = []
    waiting = threading.Thread(target=lambda: got.append(guards.share(folder)))
    waiting.start()
    folder.rename(folder.with_name("gone"))
    folder.mkdir()
    claimed.release()
    waiting.join(10)

    assert got[0] is not None
    assert not _free(folder)


def test_a_forgotten_hold_is_let_go(folder: Path) -> None:
    """A session that its engine dropped without closing protects nothing any more."""
    held = guards.share(folder)
    assert not _free(folder)

    del held

    assert _free(folder)


def test_a_dead_process_holds_nothing_and_a_forked_child_neither(folder: Path) -> None:
    """The system lets go for a process that was killed, also while a child lives that it forked before."""
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from cachekit.store import guards
        held = guards.share(Path(sys.argv[1]))
        if os.fork() == 0:
            sys.stdin.readline()
            os._exit(0)
        print("held", flush=True)
        os.kill(os.getpid(), 9)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.wait(30)

    held = guards.claim(folder, timeout_s=10.0)
    process.communicate("end\n", timeout=30)

    assert held is not None


def test_using_a_profile_needs_no_right_to_write(world: World) -> None:
    """A store that others wrote can be guarded by who may only read it, and looking makes nothing."""
    world.save(inductor("a"))
    root = Path(getattr(world.store, "root"))  # noqa: B009  only a directory store has one
    profile = root / "local" / "profiles" / FINGERPRINT.id
    before = sorted(root.rglob("*"))
    profile.chmod(0o500)

    held = DirectoryStore(root).use(FINGERPRINT.id)

    assert held is not None
    assert not _free(profile)
    assert sorted(root.rglob("*")) == before


def test_a_profile_that_is_not_there_cannot_be_used(tmp_path: Path) -> None:
    """A machine that never saved anything makes no folder to say so."""
    assert DirectoryStore(tmp_path / "store").use("f" * 64) is None
    assert not (tmp_path / "store").exists()


def test_publishing_keeps_collection_away(world: World) -> None:
    """The namespace cannot be had alone while somebody publishes in it."""
    root = Path(getattr(world.store, "root"))  # noqa: B009  same
    with world.store.publishing():
        assert not _free(root / "local")
    assert _free(root / "local")


def test_what_collects_for_too_long_fails_a_save(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save gives up with a named error, and nothing of it is committed."""
    root = Path(getattr(world.store, "root"))  # noqa: B009  same
    world.save(inductor("a"))
    monkeypatch.setattr(guards, "TIMEOUT_S", 0.0)
    claimed = guards.claim(root / "local")

    with pytest.raises(StoreError, match="in use"):
        world.save(inductor("b"))

    assert claimed is not None
    bundle = world.fetch()
    assert bundle is not None
    assert bundle.generation == 1


def test_a_program_that_is_started_inherits_no_lock(folder: Path) -> None:
    """A compiler that the engine starts does not keep a bundle in use after the engine ended."""
    held = guards.share(folder)
    assert held is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    held.release()

    free = _free(folder)
    child.communicate(b"\n", timeout=30)

    assert free
