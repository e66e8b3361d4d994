"""Quarantine: everything damaged is kept for a while, with the reason, in bounded room."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cachekit.errors import StoreError
from cachekit.store import quarantine
from tests.unit.store.damage import DAMAGES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A quarantine that is not there yet."""
    return tmp_path / "quarantine"


def bad(tmp_path: Path, content: bytes = b"bad", name: str = "blob") -> Path:
    """A file to take."""
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_what_is_taken_is_listed_with_its_reason(folder: Path, tmp_path: Path) -> None:
    """People see what it was, where it was, and what was wrong, in one line."""
    path = bad(tmp_path)

    quarantine.take(path, folder, "its digest\nis another")

    (kept,) = quarantine.kept(folder)
    assert not path.exists()
    assert kept.path.read_bytes() == b"bad"
    assert kept.size == 3
    assert kept.why == f"{path}: its digest is another"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "missing"])
def test_anything_can_be_taken(folder: Path, tmp_path: Path, damage: str) -> None:
    """Links, FIFOs and folders, too; a link is moved itself and what it leads to stays."""
    path = bad(tmp_path)
    DAMAGES[damage](path)

    assert quarantine.take(path, folder, "wrong") is not None

    assert not os.path.lexists(path)
    assert len(quarantine.kept(folder)) == 1
    if damage == "link":
        assert (tmp_path / "elsewhere-blob").read_bytes() == b"bad"


def test_absence_is_fine(folder: Path, tmp_path: Path) -> None:
    """Somebody else may have taken it already; nothing is made."""
    assert quarantine.take(tmp_path / "blob", folder, "wrong") is None
    assert quarantine.kept(folder) == []
    assert not folder.exists()


def test_it_is_bounded_by_count(folder: Path, tmp_path: Path) -> None:
    """A disk that damages files again and again does not fill up with them; the newest are kept."""
    for number in range(quarantine.KEPT_FILES + 3):
        quarantine.take(bad(tmp_path, b"%d" % number), folder, "wrong")

    kept = [one.path.read_bytes() for one in quarantine.kept(folder)]
    assert kept == [b"%d" % number for number in range(3, quarantine.KEPT_FILES + 3)]
    assert len(list(folder.iterdir())) == 2 * quarantine.KEPT_FILES


def test_it_is_bounded_by_bytes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few large files are let go as well, but never the newest one."""
    monkeypatch.setattr(quarantine, "KEPT_BYTES", 250)
    for number in range(4):
        quarantine.take(bad(tmp_path, b"%d" % number * 100), folder, "wrong")
    assert [one.path.read_bytes()[:1] for one in quarantine.kept(folder)] == [b"2", b"3"]

    quarantine.take(bad(tmp_path, b"x" * 1000), folder, "wrong")
    assert [one.size for one in quarantine.kept(folder)] == [1000]


def test_a_repair_lets_nothing_go(folder: Path, tmp_path: Path) -> None:
    """Whoever moves much at once on purpose keeps all of it."""
    for number in range(quarantine.KEPT_FILES + 3):
        quarantine.take(bad(tmp_path, b"%d" % number), folder, "wrong", bounded=False)

    assert len(quarantine.kept(folder)) == quarantine.KEPT_FILES + 3


def test_old_names_and_lost_reasons_are_listed(folder: Path) -> None:
    """What an earlier release put there, or a person, has no reason beside it."""
    folder.mkdir()
    (folder / "00000000000000000007-ab12-blob").write_bytes(b"x")
    (folder / "a note of mine").write_bytes(b"y")

    assert [(one.size, one.why) for one in quarantine.kept(folder)] == [(1, ""), (1, "")]


def test_a_quarantine_that_cannot_be_made_is_a_named_error(folder: Path, tmp_path: Path) -> None:
    """The damaged file stays where it is."""
    folder.write_bytes(b"a file in the folder's place")
    path = bad(tmp_path)

    with pytest.raises(StoreError, match="quarantine"):
        quarantine.take(path, folder, "wrong")
    assert path.exists()
