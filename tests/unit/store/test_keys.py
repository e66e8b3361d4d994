from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cachekit.bundle import signing
from cachekit.bundle.signing import SigningKey
from cachekit.errors import ConfigurationError, StoreError
from cachekit.store import files, keys

ROOT = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where keys may be made."""
    return tmp_path / "cachekit" / "keys"


def test_the_first_use_makes_a_key_that_is_trusted(root: Path) -> None:
    """A single user needs no set-up: what this key signs is verified here, and the key is the same next time."""
    key = keys.load_or_create(root)

    assert keys.load_or_create(root).keyid == key.keyid
    assert set(keys.trusted(root)) == {key.keyid}
    assert signing.verify(signing.sign(b"{}", key), keys.trusted(root)).keyid == key.keyid


def test_looking_for_trusted_keys_makes_nothing(root: Path) -> None:
    """A machine that never saved anything trusts nobody and has no key."""
    assert keys.trusted(root) == {}
    assert not root.exists()


def test_the_key_is_for_its_user_only(root: Path) -> None:
    """The private key is 0600 in a 0700 folder, whatever the umask."""
    before = os.umask(0)
    try:
        keys.load_or_create(root)
    finally:
        os.umask(before)

    assert stat.S_IMODE((root / "signing.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(root: Path, mode: int) -> None:
    """A key that may have been copied does not sign; the message says what to do."""
    keys.load_or_create(root)
    (root / "signing.pem").chmod(mode)

    with pytest.raises(ConfigurationError, match="chmod 600"):
        keys.load_or_create(root)


def test_a_folder_that_others_can_write_is_refused(root: Path) -> None:
    """Whoever can add files there could make themselves trusted."""
    keys.load_or_create(root)
    for folder in (root / "trusted", root):
        folder.chmod(0o777)
        with pytest.raises(StoreError, match="chmod 700"):
            keys.trusted(root)
        folder.chmod(0o700)


def test_a_key_behind_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    """Links are not followed to keys."""
    keys.load_or_create(root)
    (root / "signing.pem").rename(tmp_path / "elsewhere.pem")
    (root / "signing.pem").symlink_to(tmp_path / "elsewhere.pem")

    with pytest.raises(StoreError, match="ELOOP"):
        keys.load_or_create(root)


def test_a_damaged_key_is_named_and_not_replaced(root: Path) -> None:
    """A key is never overwritten by itself: bundles signed with it would be lost."""
    keys.load_or_create(root)
    (root / "signing.pem").write_bytes(b"-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n")

    with pytest.raises(ConfigurationError, match=r"signing\.pem"):
        keys.load_or_create(root)


def test_trusting_and_revoking_are_files(root: Path) -> None:
    """Another machine's key is trusted while its public key is there, under whatever name."""
    mine, theirs = keys.load_or_create(root), signing.generate()
    path = keys.trust(root, theirs.public)
    assert set(keys.trusted(root)) == {mine.keyid, theirs.keyid}

    path.rename(path.with_name("build machine.pem"))
    assert set(keys.trusted(root)) == {mine.keyid, theirs.keyid}
    path.with_name("build machine.pem").unlink()

    assert set(keys.trusted(root)) == {mine.keyid}


@pytest.mark.parametrize("content", [b"", b"hello", signing.generate().pem])
def test_a_file_that_is_no_public_key_is_named(
    root: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in the trusted folder is reported with the file's name, and locks nobody out."""
    mine = keys.load_or_create(root)
    (root / "trusted" / "mistake.pem").write_bytes(content)

    assert set(keys.trusted(root)) == {mine.keyid}
    assert "mistake.pem" in caplog.text


def test_who_waited_for_the_first_key_gets_that_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that found no key, and waits while another one makes it, does not make a second."""
    waits = threading.Event()
    locked = files.locked

    def announced(path: Path) -> AbstractContextManager[None]:
        waits.set()
        return locked(path)

    found: list[SigningKey] = []
    with locked(root / ".lock"):
        monkeypatch.setattr(files, "locked", announced)
        waiter = threading.Thread(target=lambda: found.append(keys.load_or_create(root)))
        waiter.start()
        assert waits.wait(timeout=30)
        made = keys._create(root)
    waiter.join()

    assert [key.keyid for key in found] == [made.keyid]


def test_processes_that_start_at_once_get_one_key(root: Path) -> None:
    """First uses that race make one key, and it is the trusted one."""
    script = """
import sys
from cachekit.store import keys
print("ready", flush=True)
sys.stdin.readline()
print(keys.load_or_create(sys.argv[1]).keyid)
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    found = {process.communicate("go\n", timeout=60)[0].strip() for process in processes}

    assert found == set(keys.trusted(root))
    assert len(found) == 1
