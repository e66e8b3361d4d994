"""Where the home folder is unknown, missing or not writable, as in a container that runs under a bare user id."""

from __future__ import annotations

from pathlib import Path

from tests.environment.containers import UNKNOWN_USER, Container

TRY = """
from tests.environment.trial import keep, room
tell(**room()[1], **keep())
"""
NO_HOME = {"HOME": None, "XDG_CACHE_HOME": None, "CACHEKIT_DIR": None}


def test_without_a_home_the_user_is_told_to_name_a_folder() -> None:
    """HOME is unset and the user id has no name: the error says which variable to set, and nothing is guessed."""
    told = Container(user=UNKNOWN_USER, environment=NO_HOME).run("""
from cachekit import CachekitError, Settings
try:
    tell(error=None, dir=str(Settings.from_env().dir))
except CachekitError as exc:
    tell(error=exc.diagnostics())
""")

    assert told["error"] == (
        "configuration: no home folder is known: set CACHEKIT_DIR to a folder on a local file system"
    )


def test_a_user_without_a_home_needs_only_the_folder(tmp_path: Path) -> None:
    """With CACHEKIT_DIR set, neither a home folder nor a line in the password file is missed."""
    tmp_path.chmod(0o777)

    told = Container(
        room=tmp_path,
        setup="mount -t tmpfs none /etc",
        user=UNKNOWN_USER,
        environment=NO_HOME | {"CACHEKIT_DIR": "/mnt/cachekit", "USER": None, "LOGNAME": None},
    ).run(TRY)

    assert told == {**told, "place": "/mnt/cachekit/process", "error": None, "generation": 1}


def test_the_home_of_a_known_user_is_found_without_home() -> None:
    """HOME is unset, as under some service managers: the password file tells the folder."""
    told = Container(
        setup="""
            echo "root:x:0:0::/mnt/home:/bin/sh" > /mnt/passwd
            mount --bind /mnt/passwd /etc/passwd
        """,
        environment=NO_HOME,
    ).run(TRY)

    assert told == {**told, "place": "/mnt/home/.cache/cachekit/process", "error": None}


def test_a_home_that_does_not_exist_costs_only_the_saving() -> None:
    """HOME=/nonexistent and no right to make it: the process works in a temporary folder, and saving says why not."""
    told = Container(
        user=UNKNOWN_USER,
        setup="read_only; mount -t tmpfs -o mode=1777 none /tmp",
        environment=NO_HOME | {"HOME": "/nonexistent"},
    ).run(TRY)

    assert told["place"] == f"/tmp/cachekit-{UNKNOWN_USER}"
    assert "/nonexistent/.cache" in told["passed_over"][0]
    assert "/nonexistent" in told["error"]
    assert "EROFS" in told["error"]


def test_a_home_that_is_not_writable_costs_only_the_saving() -> None:
    """The home folder belongs to somebody else: the same, with the errno of that."""
    told = Container(
        setup="mkdir /mnt/kim; chmod 0555 /mnt /mnt/kim",
        user=UNKNOWN_USER,
        environment=NO_HOME | {"HOME": "/mnt/kim"},
    ).run(TRY)

    assert told["place"] == f"/tmp/cachekit-{UNKNOWN_USER}"
    assert "EACCES" in told["passed_over"][0]
    assert told["error"].startswith("StoreError: cannot write /mnt/kim/.cache")
