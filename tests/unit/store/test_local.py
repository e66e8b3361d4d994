from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from cachekit.errors import ConflictError, CorruptError, StoreError
from cachekit.store import files, locks, quarantine
from cachekit.store.base import Head, digest_of
from cachekit.store.local import DirectoryStore

FID = "f" * 64
ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty store in a folder that does not exist yet."""
    return DirectoryStore(tmp_path / "store")


def _run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with the checkout importable."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _commit(store: DirectoryStore, data: bytes) -> Head:
    before = store.read_head(FID)
    generation = before.generation + 1 if before else 1
    head = Head(generation, store.write_generation(FID, generation, data))
    store.move_head(FID, before, head)
    return head


def _tree(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_the_layout_is_the_documented_one(store: DirectoryStore) -> None:
    """Every object is at the key of the common layout, so that a folder and a bucket can be copied into each other."""
    blob = store.write_blob(b"blob")
    statement = store.write_contribution(b"statement")
    store.write_profile(FID, b"{}")
    head = _commit(store, b"document")

    assert _tree(store.root) == {
        f"local/blobs/sha256/{blob[:2]}/{blob}",
        f"local/contributions/{statement}",
        f"local/profiles/{FID}/profile.json",
        f"local/profiles/{FID}/generations/1-{head.digest}.json",
        f"local/profiles/{FID}/head.json",
        f"local/profiles/{FID}/.lock",
    }
    assert (store.root / "local/profiles" / FID / "head.json").read_text() == (
        f'{{"digest":"{head.digest}","generation":1}}'
    )


def test_folders_are_0700_and_files_0600(store: DirectoryStore) -> None:
    """Nobody else can read or plant anything, whatever the umask allows."""
    before = os.umask(0)
    try:
        store.write_blob(b"blob")
        _commit(store, b"document")
        store.write_profile(FID, b"{}")
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.root.rglob("*") if path.is_dir()}
    assert modes == {0o700}
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.root.rglob("*") if path.is_file()} == {0o600}


def test_a_second_write_of_a_blob_touches_nothing(store: DirectoryStore) -> None:
    """Put-if-absent does not rewrite what is there and whole."""
    path = store.root / "local/blobs/sha256" / digest_of(b"blob")[:2] / store.write_blob(b"blob")
    before = path.stat()

    store.write_blob(b"blob")

    assert (before.st_ino, before.st_mtime_ns) == (path.stat().st_ino, path.stat().st_mtime_ns)


def test_damaged_files_go_to_quarantine(store: DirectoryStore) -> None:
    """What was damaged is kept for people to look at, under its own name, and no longer read."""
    digest = store.write_blob(b"good bytes")
    head = _commit(store, b"document")
    blob = store.root / "local/blobs/sha256" / digest[:2] / digest
    blob.write_bytes(b"bad")

    store.quarantine_blob(digest)
    store.quarantine_generation(FID, head)
    (store.root / "local/profiles" / FID / "head.json").write_bytes(b"{")
    store.discard_head(FID)

    kept = quarantine.kept(store.quarantine)
    assert [one.path.name.split("-", 2)[2] for one in kept] == [digest, head.filename, "head.json"]
    assert kept[0].path.read_bytes() == b"bad"
    assert str(blob) in kept[0].why


def test_leftovers_of_a_killed_writer_are_ignored(store: DirectoryStore) -> None:
    """Temporary files and strange names are in nobody's way and in no listing."""
    head = _commit(store, b"document")
    statement = store.write_contribution(b"statement")
    profiles = store.root / "local/profiles"
    for folder in (
        profiles,
        profiles / FID,
        profiles / FID / "generations",
        store.root / "local/contributions",
    ):
        (folder / ".tmp-1-00").write_bytes(b"half")
        (folder / "Readme.txt").write_bytes(b"not ours")
    for name in ("01-" + head.digest, f"0-{head.digest}.json", "1-short.json", f"{'9' * 5000}-x.json"[:200]):
        (profiles / FID / "generations" / name).write_bytes(b"")

    assert store.profiles() == [FID]
    assert store.generations(FID) == [head]
    assert store.contributions() == [statement]


def test_a_writer_killed_before_the_rename_leaves_nothing_visible(store: DirectoryStore) -> None:
    """SIGKILL with the bytes written and flushed but not renamed: readers see the state before."""
    first = _commit(store, b"one")
    killed = _run(
        """
        import os, signal, sys
        from pathlib import Path
        from cachekit.store.base import Head
        from cachekit.store.local import DirectoryStore

        store = DirectoryStore(sys.argv[1])
        head = store.read_head(sys.argv[2])
        new = Head(2, store.write_generation(sys.argv[2], 2, b"two"))
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        store.move_head(sys.argv[2], head, new)
        """,
        store.root,
        FID,
    )

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert any(path.name.startswith(".tmp-") for path in (store.root / "local/profiles" / FID).iterdir())
    assert store.read_head(FID) == first
    # The lock died with its holder, and the document that nobody committed does not count.
    assert _commit(store, b"other two").generation == 2


def test_links_are_not_followed(store: DirectoryStore, tmp_path: Path) -> None:
    """A link in a file's place is refused, wherever it leads, and is not written through."""
    digest = store.write_blob(b"blob")
    path = store.root / "local/blobs/sha256" / digest[:2] / digest
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"blob")
    path.unlink()
    path.symlink_to(elsewhere)

    with pytest.raises(StoreError, match="ELOOP"):
        store.read_blob(digest)
    with pytest.raises(StoreError, match="ELOOP"):
        store.write_blob(b"blob")
    assert not store.has_blob(digest)
    assert elsewhere.read_bytes() == b"blob"


def test_a_namespace_that_is_a_link_is_refused(store: DirectoryStore, tmp_path: Path) -> None:
    """The namespace's folder itself must be a folder."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    store.root.mkdir()
    (store.root / "local").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StoreError, match="link"):
        store.write_blob(b"blob")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(store: DirectoryStore, mode: int) -> None:
    """Neither read nor written where anybody else could have planted files; the message says what to do."""
    digest = store.write_blob(b"blob")
    (store.root / "local").chmod(mode)
    fresh = DirectoryStore(store.root)

    with pytest.raises(StoreError, match="chmod 700"):
        fresh.read_blob(digest)
    with pytest.raises(StoreError, match="chmod 700"):
        fresh.write_blob(b"another")


def test_a_fifo_in_a_files_place_does_not_block(store: DirectoryStore) -> None:
    """Whatever is not a regular file is refused at once."""
    digest = store.write_blob(b"blob")
    path = store.root / "local/blobs/sha256" / digest[:2] / digest
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(StoreError, match="not a regular file"):
        store.read_blob(digest)


def test_errors_name_the_path_and_the_errno(tmp_path: Path) -> None:
    """A store that cannot be used says where and why, and never that something is absent."""
    (tmp_path / "file").write_bytes(b"")
    store = DirectoryStore(tmp_path / "file")

    with pytest.raises(StoreError, match=r"file/local.*ENOTDIR") as read:
        store.read_head(FID)
    with pytest.raises(StoreError, match=r"file/local.*ENOTDIR"):
        store.write_blob(b"blob")
    assert isinstance(read.value.__cause__, NotADirectoryError)
    assert read.value.code == "store"


def test_a_write_that_the_disk_refuses_leaves_no_trace(store: DirectoryStore) -> None:
    """A file over the process's size limit stands for a full disk: named error, nothing kept, old state whole."""
    first = _commit(store, b"one")
    done = _run(
        """
        import resource, signal, sys
        from cachekit.errors import StoreError
        from cachekit.store.local import DirectoryStore

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            DirectoryStore(sys.argv[1]).write_blob(bytes(100_000))
        except StoreError as exc:
            print(exc)
        """,
        store.root,
    )

    assert "EFBIG" in done.stdout, done.stderr
    assert digest_of(bytes(100_000)) in done.stdout
    assert not any("blobs" in name for name in _tree(store.root))
    assert store.read_head(FID) == first


def test_a_lock_that_is_never_released_is_reported(tmp_path: Path) -> None:
    """Waiting for a stopped process is bounded."""
    with (
        files.locked(tmp_path / "lock"),
        pytest.raises(StoreError, match="lock"),
        files.locked(tmp_path / "lock", timeout_s=0.02),
    ):
        pytest.fail("two holders of one lock")


def test_processes_that_move_one_head_lose_nothing(store: DirectoryStore) -> None:
    """Two processes that each commit 30 times, retrying on conflict, make 60 gapless generations."""
    script = """
        import sys
        from cachekit.errors import ConflictError
        from cachekit.store.base import Head
        from cachekit.store.local import DirectoryStore

        root, fid, name = sys.argv[1:]
        store, done = DirectoryStore(root), 0
        while done < 30:
            head = store.read_head(fid)
            n = head.generation + 1 if head else 1
            new = Head(n, store.write_generation(fid, n, f"{n} by {name} after {head}".encode()))
            try:
                store.move_head(fid, head, new)
            except ConflictError:
                continue
            done += 1
            print(new.filename)
    """
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(store.root), FID, name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    seen: list[int] = []
    while any(writer.poll() is None for writer in writers):
        head = store.read_head(FID)  # never half a head, never a document that is not there
        if head is not None:
            store.read_generation(FID, head)
            seen.append(head.generation)
    committed = [line for writer in writers for line in writer.communicate()[0].split()]

    assert [writer.returncode for writer in writers] == [0, 0]
    assert sorted(int(name.split("-")[0]) for name in committed) == list(range(1, 61))
    assert seen == sorted(seen)
    head = store.read_head(FID)
    assert head is not None
    assert head.generation == 60


def test_a_link_to_the_whole_store_may_lead_to_it(store: DirectoryStore, tmp_path: Path) -> None:
    """Folders above the namespace belong to the user's set-up: a cache moved to a bigger disk works."""
    digest = store.write_blob(b"blob")
    (tmp_path / "cache").symlink_to(store.root)

    assert DirectoryStore(tmp_path / "cache").read_blob(digest) == b"blob"


def test_a_conflict_leaves_the_lock_free(store: DirectoryStore) -> None:
    """An error while the lock is held releases it."""
    first = _commit(store, b"one")
    second = Head(2, store.write_generation(FID, 2, b"two"))

    with pytest.raises(ConflictError):
        store.move_head(FID, None, first)
    store.move_head(FID, first, second)
    (store.root / "local/profiles" / FID / "head.json").write_bytes(b"")
    with pytest.raises(CorruptError, match=r"head\.json"):
        store.move_head(FID, second, Head(3, store.write_generation(FID, 3, b"three")))
    store.discard_head(FID)


def test_a_writer_that_has_not_locked_its_file_yet_is_not_taken_for_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever clears up between the making of a file and its lock costs the writer nothing but a retry."""
    take = locks.take

    def cleared_up_first(descriptor: int) -> None:
        monkeypatch.setattr(locks, "take", take)
        assert files.remove_leftovers(tmp_path) == 1
        take(descriptor)

    monkeypatch.setattr(locks, "take", cleared_up_first)
    files.write(tmp_path / "kept", b"data")

    assert (tmp_path / "kept").read_bytes() == b"data"


def test_a_file_is_not_removed_after_its_lock_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was free a moment ago and is locked by now belongs to a living writer."""
    monkeypatch.setattr(locks, "is_free", lambda path: True)
    temporary = tmp_path / ".tmp-1-alive"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT)
    locks.take(descriptor)

    assert files.remove_leftovers(tmp_path) == 0

    locks.release(descriptor)
    assert files.remove_leftovers(tmp_path) == 1


def test_writers_of_a_profile_take_turns(store: DirectoryStore) -> None:
    """Whoever has the turn is alone with the profile; one who cannot have it in time goes on without."""
    entered: list[str] = []

    def other() -> None:
        with store.in_turn(FID):
            entered.append("other")

    with store.in_turn(FID):
        thread = threading.Thread(target=other)
        thread.start()
        entered.append("first")
    thread.join()
    assert entered == ["first", "other"]


def test_a_turn_that_cannot_be_had_is_done_without(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody stopped with the turn in hand keeps nobody from saving."""
    with store.in_turn(FID):
        monkeypatch.setattr(files, "_lock", _refuse)
        with store.in_turn(FID):
            pass


def _refuse(descriptor: int, path: Path, deadline: float) -> None:
    raise StoreError(f"cannot lock {path}")
