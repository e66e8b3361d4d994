"""Where the process's own folder goes when a mount, a disk, a path or another user stands in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.environment.containers import UNKNOWN_USER, Container

TRY = """
from tests.environment.trial import keep, room
tell(**room()[1], **keep())
"""
HERE = Container(environment={"CACHEKIT_DIR": "/mnt/cachekit", "TMPDIR": None})
ELSEWHERE = f"/tmp/cachekit-{UNKNOWN_USER}"
EVERYWHERE = ("/tmp", "/var/tmp", "/dev/shm")


def test_on_a_tmpfs_everything_works() -> None:
    """A folder in memory is as good as one on a disk."""
    told = HERE.run(TRY)

    assert told == {
        **told,
        "place": "/mnt/cachekit/process",
        "passed_over": [],
        "error": None,
        "generation": 1,
    }


def test_a_noexec_folder_keeps_bundles_and_runs_nothing() -> None:
    """CACHEKIT_DIR is mounted noexec: saving works, and torch compiles where its kernels can be loaded."""
    told = HERE.but(setup="mount -o remount,noexec /mnt; chmod 777 /mnt", user=UNKNOWN_USER).run(TRY)

    assert told == {**told, "place": ELSEWHERE, "error": None, "generation": 1}
    assert told["passed_over"] == [
        "/mnt/cachekit/process is mounted noexec: nothing compiled can be loaded from it"
    ]


def test_a_noexec_temporary_folder_does_not_matter() -> None:
    """/tmp is mounted noexec, as on hardened hosts: it is not needed."""
    told = HERE.but(setup="mount -o remount,noexec /tmp").run(TRY)

    assert told == {**told, "place": "/mnt/cachekit/process", "passed_over": []}


def test_where_nothing_may_be_executed_the_reason_names_every_place() -> None:
    """All folders that can be written are noexec: the session will be disabled, with what to set."""
    told = HERE.but(
        setup="read_only\n"
        + "\n".join(f"mount -t tmpfs -o noexec,mode=1777 none {name}" for name in ("/mnt", *EVERYWHERE))
    ).run(TRY)

    for name in ("/mnt/cachekit/process", *(f"{name}/cachekit-0" for name in EVERYWHERE)):
        assert f"{name} is mounted noexec" in told["nowhere"]
    assert "set CACHEKIT_DIR or TMPDIR to a folder" in told["nowhere"]
    assert told["error"] is None


def test_a_small_tmpfs_is_passed_over() -> None:
    """A compile would fail half-way in 16 MiB, in the engine's call: another place is taken before."""
    told = HERE.but(setup="mount -o remount,size=16m /mnt").run(TRY)

    assert told["place"] == "/tmp/cachekit-0"
    assert "MiB are free below /mnt/cachekit/process" in told["passed_over"][0]
    assert told["error"] is None


def test_a_file_system_without_inodes_is_passed_over() -> None:
    """Bytes are left and files are not: nothing can be compiled there, nor saved, and both say so."""
    told = HERE.but(setup="mount -t tmpfs -o nr_inodes=12 none /mnt").run(TRY)

    assert told["place"] == "/tmp/cachekit-0"
    assert "ENOSPC" in told["passed_over"][0] or "more files can be made" in told["passed_over"][0]
    assert "ENOSPC" in told["error"]


def test_a_full_file_system_costs_only_the_saving() -> None:
    """Not a byte is left in CACHEKIT_DIR: the save names path and errno, and what was there can be read."""
    told = HERE.but(
        setup="mount -t tmpfs -o size=1m none /mnt", shell="head -c 1044480 /dev/zero > /mnt/full || true"
    ).run(TRY)

    assert told["place"] == "/tmp/cachekit-0"
    assert "ENOSPC: No space left on device" in told["error"]


def test_a_read_only_root_needs_one_temporary_folder(tmp_path: Path) -> None:
    """The usual hardened container: bundles are read from the image, and the process works in its tmpfs."""
    HERE.but(room=tmp_path).run(TRY)

    told = HERE.but(room=tmp_path, setup="read_only; mount -t tmpfs none /tmp").run("""
from tests.environment.trial import find, keep, room
tell(**room()[1], found=find(), **keep())
""")

    assert told["place"] == "/tmp/cachekit-0"
    assert "EROFS" in told["passed_over"][0]
    assert told["found"] == {"generation": 1, "artifacts": 1}


def test_where_nothing_can_be_written_every_place_is_named() -> None:
    """Everything is read-only: no exception but ours, which names each place, the errno and what to set."""
    told = HERE.but(setup="read_only").run(TRY)

    assert told["nowhere"].count("EROFS") == 4
    assert "set CACHEKIT_DIR or TMPDIR to a folder" in told["nowhere"]
    assert "EROFS" in told["error"]


@pytest.mark.parametrize("temporary", ["/mnt/missing", "/proc", ""], ids=["missing", "not writable", "blank"])
def test_a_wrong_tmpdir_is_passed_over(temporary: str) -> None:
    """TMPDIR is no folder or cannot be written: the next one is taken, without a word to the engine."""
    told = HERE.but(setup="mount -o remount,noexec /mnt", environment={"TMPDIR": temporary}).run(TRY)

    assert told["place"] == "/tmp/cachekit-0"


def test_without_proc_and_shared_memory_it_goes_on() -> None:
    """A minimal container without /proc and /dev/shm: nothing that is needed is asked there."""
    told = HERE.but(setup="umount /dev/shm || true; mount -t tmpfs none /proc").run(TRY)

    assert told == {**told, "place": "/mnt/cachekit/process", "error": None, "generation": 1}


@pytest.mark.parametrize("prepared", ["mkdir -m 0777 {}", "mkdir /mnt/theirs; ln -s /mnt/theirs {}"])
def test_a_folder_that_somebody_prepared_is_not_used(prepared: str) -> None:
    """Our folder in /tmp is a link, or others can write it: code in it could be exchanged, so it is passed over."""
    told = HERE.but(setup="mount -o remount,noexec /mnt", shell=prepared.format("/tmp/cachekit-0")).run(TRY)

    assert told["place"] == "/var/tmp/cachekit-0"
    assert "/tmp/cachekit-0" in told["passed_over"][1]


ODD = {
    "space": "/mnt/two words",
    "quote": "/mnt/it's",
    "double quote": '/mnt/a"b',
    "newline": "/mnt/a\nb",
    "backslash": "/mnt/a\\b",
    "dollar": "/mnt/$HOME",
    "letters": "/mnt/größe",
    "not UTF-8": os.fsdecode(b"/mnt/gr\xf6\xdfe"),
    "long": "/mnt/" + "/".join(["x" * 200] * 18),
    "too long": "/mnt/" + "/".join(["x" * 200] * 30),
    "long name": "/mnt/" + "x" * 300,
}


@pytest.mark.parametrize("kind", ODD)
def test_a_path_that_compilers_do_not_take_keeps_bundles_only(kind: str) -> None:
    """torch splits its command lines at spaces: it is given another folder, and the store uses the odd one."""
    told = HERE.but(environment={"CACHEKIT_DIR": ODD[kind]}).run(TRY)

    assert told["place"] == "/tmp/cachekit-0"
    assert told["passed_over"]
    if kind in ("too long", "long name"):
        assert "ENAMETOOLONG" in told["error"]
    else:
        assert told == {**told, "error": None, "generation": 1}


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_a_plain_locale_does_not_matter(locale: str) -> None:
    """No UTF-8 locale, as in a bare image, and Python told not to make one up: paths stay the bytes that they are."""
    told = HERE.but(
        environment={
            "CACHEKIT_DIR": ODD["letters"],
            "LC_ALL": locale,
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        }
    ).run(TRY)

    assert told == {**told, "place": "/tmp/cachekit-0", "error": None, "generation": 1}
