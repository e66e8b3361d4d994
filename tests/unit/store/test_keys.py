from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cachekit.bundle import signing
from cachekit.bundle.signing import SigningKey
from cachekit.errors import ConfigurationError, StoreError
from cachekit.store import files, keys
from tests.unit.store.damage import DAMAGES, NOBODY, as_user, open_the_way_to

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


@pytest.mark.parametrize("bit", range(6))
def test_a_key_that_others_may_have_seen_or_made_is_refused(root: Path, bit: int) -> None:
    """Any right of group or others: such a key does not sign; the message has the mode and says what to do."""
    keys.load_or_create(root)
    (root / "signing.pem").chmod(0o600 | 1 << bit)

    with pytest.raises(ConfigurationError, match=f"mode {0o600 | 1 << bit:04o}.*chmod 600"):
        keys.load_or_create(root)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602, 0o664])
def test_a_trusted_key_that_others_could_write_is_passed_over(
    root: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can write a trusted key can make himself trusted; the others still count, and the file is named."""
    mine, theirs = keys.load_or_create(root), signing.generate()
    keys.trust(root, theirs.public).chmod(mode)

    assert set(keys.trusted(root)) == {mine.keyid}
    assert f"{theirs.keyid}.pem has mode {mode:04o}" in caplog.text


@pytest.mark.parametrize("mode", [0o644, 0o400, 0o444])
def test_a_trusted_key_that_others_can_only_read_counts(root: Path, mode: int) -> None:
    """Public keys are public, and copied with whatever umask."""
    mine, theirs = keys.load_or_create(root), signing.generate()
    keys.trust(root, theirs.public).chmod(mode)

    assert set(keys.trusted(root)) == {mine.keyid, theirs.keyid}


# A flipped bit may give another key, as good as any.
@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "flipped"])
def test_a_damaged_signing_key_is_refused_and_left(root: Path, damage: str) -> None:
    """Whatever is in its place is named, and neither replaced nor followed; only absence makes a new key."""
    before = keys.load_or_create(root)
    path = root / "signing.pem"
    DAMAGES[damage](path)
    if damage == "missing":
        assert keys.load_or_create(root).keyid != before.keyid
        return
    found = path.lstat()

    if damage in ("grown", "truncated"):  # what follows the end of the key says nothing
        assert keys.load_or_create(root).keyid == before.keyid
    else:
        with pytest.raises((ConfigurationError, StoreError), match=r"signing\.pem"):
            keys.load_or_create(root)
    assert path.lstat().st_ino == found.st_ino


@pytest.mark.parametrize(
    "damage", [name for name in DAMAGES if name not in ("grown", "truncated", "missing", "flipped")]
)
def test_a_damaged_trusted_key_locks_nobody_else_out(
    root: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Link, FIFO, folder or nonsense: the file is named and passed over, in bounded time."""
    mine, theirs = keys.load_or_create(root), signing.generate()
    DAMAGES[damage](keys.trust(root, theirs.public))

    # A link is not followed; what it leads to lies beside it here, and counts under its own name.
    assert set(keys.trusted(root)) == {mine.keyid} | ({theirs.keyid} if damage == "link" else set())
    assert theirs.keyid in caplog.text


def test_a_lost_public_half_is_made_again(root: Path) -> None:
    """A key that signs is trusted by its own store, or its owner could not read what he saves."""
    key = keys.load_or_create(root)
    (root / "trusted" / f"{key.keyid}.pem").unlink()
    assert keys.trusted(root) == {}

    keys.load_or_create(root)

    assert set(keys.trusted(root)) == {key.keyid}


def test_a_key_of_another_user_is_refused(root: Path) -> None:
    """A key that belongs to somebody else may have been chosen by him."""
    keys.load_or_create(root)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(root / "signing.pem", NOBODY, -1)

    with pytest.raises(ConfigurationError, match=f"belongs to user {NOBODY}"):
        keys.load_or_create(root)


def test_a_folder_of_another_user_is_refused(root: Path) -> None:
    """An ordinary user relies on no folder that a third one owns, and on one of root's."""
    root.mkdir(parents=True, mode=0o755)
    script = """
        import sys
        from cachekit.errors import StoreError
        from cachekit.store import keys
        become_ordinary()
        try:
            print(keys.trusted(sys.argv[1]))
        except StoreError as exc:
            print(exc)
    """
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    open_the_way_to(root)
    assert as_user(script, str(root)) == "{}\n"
    os.chown(root, NOBODY - 1, -1)

    assert f"belongs to user {NOBODY - 1}, not to {NOBODY}" in as_user(script, str(root))


def test_a_key_that_cannot_be_read_is_named(root: Path) -> None:
    """Permission denied is no absence: no second key is made."""
    keys.load_or_create(root)
    (root / "signing.pem").chmod(0)
    if os.geteuid() == 0:
        os.chown(root, NOBODY, -1)
        os.chown(root / "signing.pem", NOBODY, -1)
        open_the_way_to(root)
    script = """
        import sys
        from cachekit.bundle import signing
        from cachekit.errors import StoreError
        from cachekit.store import keys
        become_ordinary()
        try:
            keys.load_or_create(sys.argv[1])
        except StoreError as exc:
            print(exc)
    """

    assert "EACCES" in as_user(script, str(root))


@pytest.mark.parametrize("step", range(1, 12))
def test_a_key_is_whole_or_absent_after_a_kill(root: Path, step: int) -> None:
    """Killed before any system call that writes, a first use leaves no key or a whole one; the next one works."""
    script = """
        import os, signal, sys
        from cachekit.store import keys

        left = int(sys.argv[2])

        def counted(name):
            works = getattr(os, name)

            def call(*args, **kwargs):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return works(*args, **kwargs)

            setattr(os, name, call)

        for name in ("write", "fsync", "replace", "rename", "mkdir"):
            counted(name)
        keys.load_or_create(sys.argv[1])
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(root), str(step)], cwd=ROOT, check=False
    )
    assert killed.returncode in (0, -signal.SIGKILL)
    there = (root / "signing.pem").exists()

    key = keys.load_or_create(root)

    assert key.keyid in keys.trusted(root)
    assert not there or killed.returncode == 0 or step > 4
    assert signing.verify(signing.sign(b"{}", key), keys.trusted(root)).keyid == key.keyid


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


def test_a_new_key_over_bundles_is_told(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, when the folder of keys was lost; not where somebody's key is trusted, nor on a first use."""
    keys.load_or_create(root / "first")
    keys.trust(root / "theirs", signing.generate().public)
    keys.load_or_create(root / "theirs", over_bundles=True)
    assert caplog.text == ""

    for _ in range(2):
        keys.load_or_create(root / "lost", over_bundles=True)

    assert caplog.text.count("put the lost keys back") == 1


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
