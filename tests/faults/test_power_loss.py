"""Files that a power cut left empty or cut short: none is taken for what it was, and the next save mends the store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cachekit.errors import CachekitError
from cachekit.runtime.process import PrivateFolder
from tests.faults import acts
from tests.faults.acts import NEW, OLD, artifacts
from tests.faults.shim import place

LOCKS = {
    "lock of the head",
    "lock of the keys",
    "lock of the manifest",
    "lock of what was seen",
    "turn to save",
}
KEYS = {"signing key", "trusted key"}
OF_THE_STORE = {"blob", "contribution", "components", "document", "head"}

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one save in it."""
    folder = tmp_path_factory.mktemp("power") / "base"
    acts.save(folder, OLD)
    return folder


def damaged(base: Path, folder: Path, kind: str, damage: str) -> Path:
    """A copy of the folder in which every file of the kind is damaged; one of them."""
    shutil.copytree(base, folder)
    found = [path for path in folder.rglob("*") if path.is_file() and place(str(path), folder) == kind]
    assert found, f"no {kind} in {sorted(map(str, folder.rglob('*')))}"
    for path in found:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    return found[0]


def check_start(folder: Path) -> acts.Started:
    """A start that neither raises nor finds anything wrong."""
    done = acts.start(folder, folder / "elsewhere")
    wanted = {artifact.key: artifact.data for artifact in artifacts(OLD)}
    assert done.found.items() <= wanted.items()
    assert done.installed.items() <= wanted.items()
    return done


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", sorted(OF_THE_STORE))
def test_a_damaged_file_of_the_store_is_never_used_and_mended_by_saving(
    base: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    """The start is cold for as much as was lost; saves write it anew, and everything is there again."""
    folder = tmp_path / "home"
    damaged(base, folder, kind, damage)

    check_start(folder)
    for name in (OLD, NEW):
        acts.save(folder, name)

    assert acts.holds(folder, OLD, NEW)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", sorted(KEYS))
def test_a_damaged_key_is_named_and_nothing_is_trusted_for_it(
    base: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    """No new key is made in its place, for that would make everything untrusted that was signed before."""
    folder = tmp_path / "home"
    path = damaged(base, folder, kind, damage)
    said = acts.Said()

    with acts.listening(said):
        check_start(folder)
        try:
            acts.save(folder, NEW)
        except CachekitError as exc:
            said.warnings.append(str(exc))

    assert any(str(path) in text for text in said.warnings)
    assert len(list((folder / "keys" / "trusted").iterdir())) == 1


@pytest.mark.parametrize("damage", ["empty", "garbage"])
@pytest.mark.parametrize("kind", sorted(LOCKS))
def test_what_is_in_a_lock_file_does_not_matter(base: Path, tmp_path: Path, kind: str, damage: str) -> None:
    """Only its lock does."""
    folder = tmp_path / "home"
    shutil.copytree(base, folder)
    for path in folder.rglob(".*"):
        if place(str(path), folder) == kind:
            path.write_bytes(b"" if damage == "empty" else b"\0garbage" * 100)

    acts.save(folder, NEW)

    assert acts.holds(folder, OLD, NEW)
    acts.verify(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_manifest_is_told_and_costs_no_save(base: Path, tmp_path: Path, damage: str) -> None:
    """It is an index: the bundle is saved, and the start does not even look."""
    folder = tmp_path / "home"
    shutil.copytree(base, folder)
    path = folder / "manifest.sqlite3"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))

    assert check_start(folder).found
    _, problem = acts.save(folder, NEW)

    assert problem is None or str(path) in problem
    assert acts.holds(folder, OLD, NEW)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_note_of_what_was_seen_costs_no_start(base: Path, tmp_path: Path, damage: str) -> None:
    """It guards against older generations, and what it cannot say it does not say."""
    folder = tmp_path / "home"
    damaged(base, folder, "note of what was seen", damage)

    check_start(folder)
    acts.save(folder, NEW)

    assert acts.holds(folder, OLD, NEW)


@pytest.mark.parametrize("name", ["x.py", "x.main.so", "x.best_config", "x.json"])
def test_what_a_dead_process_left_half_written_is_never_read(tmp_path: Path, name: str) -> None:
    """torch would take such a file as it is; the next process removes the folder and compiles into another one."""
    torn = tmp_path / "1-abcdefgh" / "inductor" / "xx" / name
    torn.parent.mkdir(parents=True)
    torn.touch()

    folder = PrivateFolder(tmp_path)

    assert not torn.exists()
    assert list(folder.inductor.iterdir()) == []
