"""A session whose store was turned back, lost its head, or whose key is unusable: it runs, says why, and mends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cachekit.store.local import DirectoryStore
from tests.functional.conftest import Run

RUN = """
    module = Product()
    session = cachekit.attach(module, dir=store, **{"mode": mode})
    for rows in sizes:
        call(module, rows, 8)
        session.register_shape(rows, 8, 1)
        session.save(wait=True)
    session.close()
    report = session.report()
    tell(report=report.to_json(), generation=report.generation)
"""


def started(process: Run, *sizes: int, mode: str = "auto") -> dict[str, Any]:
    """What a process that ran these sizes told."""
    return process(RUN, sizes=sizes, mode=mode)


def store_of(folder: Path) -> tuple[DirectoryStore, str, Path]:
    """The store of a cachekit folder, its one fingerprint, and that one's folder."""
    store = DirectoryStore(folder / "store")
    (fid,) = store.profiles()
    return store, fid, folder / "store/local/profiles" / fid


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the folder that all tests begin with is made by the first of them: starting torch takes seconds."""
    return tmp_path_factory.mktemp("rollback") / "kept"


@pytest.fixture
def home(process: Run, tmp_path: Path, kept: Path) -> Path:
    """A cachekit folder with two generations: one size each."""
    folder = tmp_path / "cachekit"
    if kept.exists():
        shutil.copytree(kept, folder, symlinks=True)
    else:
        started(process, 4, 6)
        shutil.copytree(folder, kept, symlinks=True)
    return folder


def test_a_store_that_was_turned_back_is_refused_and_goes_on_above(home: Path, process: Run) -> None:
    """Cold with the reason, once; what the older generation has is not lost, and the next start is warm."""
    store, fid, profile = store_of(home)
    first, second = store.generations(fid)
    (profile / "head.json").write_bytes(first.to_bytes())
    (profile / "generations" / second.filename).unlink()

    refused = started(process, 7)

    assert refused["report"]["installed"] == {}
    (reason,) = [reason for reason in refused["report"]["reasons"] if "rollback" in reason]
    assert "generation 2 was seen here before" in reason
    assert "cachekit verify --repair" in reason
    head = store.read_head(fid)
    assert head is not None
    assert head.generation == 3
    warm = started(process, 4, 7)
    assert warm["report"]["misses"] == {}
    assert warm["report"]["shapes"] == ["4x8x1", "7x8x1"]


def test_a_lost_head_is_named_and_built_upon(home: Path, process: Run) -> None:
    """The next start says that the head is missing, and its save brings all of the bundle back."""
    store, fid, profile = store_of(home)
    (profile / "head.json").unlink()

    cold = started(process, 4)

    assert any("head" in reason and "missing" in reason for reason in cold["report"]["reasons"])
    head = store.read_head(fid)
    assert head is not None
    assert head.generation == 3
    assert store.read_generation(fid, head)


def test_a_session_that_only_reads_remembers_nothing(home: Path, process: Run) -> None:
    """``readonly`` compares with what was seen, and writes no memory of its own."""
    _, fid, _ = store_of(home)
    memory = home / "seen/local/local" / f"{fid}.json"
    assert memory.exists()
    memory.unlink()

    assert started(process, 4, mode="readonly")["report"]["misses"] == {}
    assert not memory.exists()


def test_an_unusable_key_costs_the_save_only(home: Path, process: Run) -> None:
    """What is kept is installed; what is new is compiled, not saved, and the reason says what to run."""
    (home / "keys/signing.pem").chmod(0o644)

    report = started(process, 4, 7)["report"]

    assert report["installed"]
    assert report["hits"]["inductor"] == 1
    assert any("not saved" in reason and "chmod 600" in reason for reason in report["reasons"])
