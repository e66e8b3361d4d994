from __future__ import annotations

import logging
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from cachekit.errors import ManifestError, NewerSchemaError
from cachekit.manifest import Manifest, engine
from cachekit.manifest.schema import Base

ROOT = Path(__file__).parents[3]

NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9999", "{down}", None, None


def upgrade():
    with op.batch_alter_table("events") as table:
        table.add_column(sa.Column("host", sa.Text(), nullable=True))
    with op.batch_alter_table("bundles", recreate="always") as table:
        table.alter_column("generation", type_=sa.BigInteger())
    {then}


def downgrade():
    raise NotImplementedError
"""


def _a_later_release(monkeypatch: pytest.MonkeyPatch, folder: Path, then: str = "pass") -> None:
    """Let this process be a release that has one more migration."""
    shutil.copytree(engine.scripts(), folder)
    script = NEXT.format(then=then, down=engine.REVISIONS[-1])
    (folder / "versions" / "9999_next.py").write_text(script)
    monkeypatch.setattr(engine, "scripts", lambda: folder)
    monkeypatch.setattr(engine, "REVISIONS", (*engine.REVISIONS, "9999"))


def _rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def _insert_a_bundle(path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO fingerprints VALUES ('f1', '{}')")
        connection.execute("INSERT INTO bundles VALUES (1, 'local', 'f1', 3, NULL, 0, 0, '{}', '{}', '[]')")
        connection.execute("INSERT INTO units VALUES (1, 1, 'u', 0, '{}', '', 1.5)")
    connection.close()


def test_models_and_migrations_are_equal(manifest: Manifest) -> None:
    """The migrations make exactly the tables that the models describe."""
    with manifest._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_the_known_revisions_are_those_that_exist() -> None:
    """The list that is consulted on each opening names every migration, in order."""
    config = Config()
    config.set_main_option("script_location", str(engine.scripts()))
    walked = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]

    assert list(engine.REVISIONS) == walked[::-1]


def test_up_down_and_up_again(path: Path) -> None:
    """Going down to nothing and up again through the developers' alembic.ini gives the same tables."""
    config = Config(ROOT / "migrations" / "alembic.ini", cmd_opts=None)
    config.cmd_opts = type("Options", (), {"x": [f"path={path}"]})()

    command.upgrade(config, "head")
    before = _rows(path, "SELECT type, name, sql FROM sqlite_schema ORDER BY name")
    command.downgrade(config, "base")
    assert _rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'") == [("alembic_version",)]
    command.upgrade(config, "head")

    assert _rows(path, "SELECT type, name, sql FROM sqlite_schema ORDER BY name") == before


def test_an_older_manifest_is_migrated_with_what_is_in_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening migrates; rows survive, also those below a table that has to be made anew."""
    with Manifest(path) as manifest:
        manifest.add_event("saved", data={"n": 1})
    _insert_a_bundle(path)
    _a_later_release(monkeypatch, tmp_path / "scripts")

    Manifest(path)

    assert _rows(path, "SELECT version_num FROM alembic_version") == [("9999",)]
    assert _rows(path, "SELECT kind, host FROM events") == [("saved", None)]
    assert _rows(path, "SELECT bundle_id, seconds FROM units") == [(1, 1.5)]


def test_a_migration_that_fails_changes_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a migration is undone, the error is ours, and the release before still opens the file."""
    Manifest(path)
    _insert_a_bundle(path)
    before = _rows(path, "SELECT sql FROM sqlite_schema ORDER BY name")

    with monkeypatch.context() as patched:
        _a_later_release(patched, tmp_path / "scripts", then="op.execute('INSERT INTO nowhere VALUES (1)')")
        with pytest.raises(ManifestError, match="no such table: nowhere"):
            Manifest(path)

    assert _rows(path, "SELECT sql FROM sqlite_schema ORDER BY name") == before
    assert Manifest(path).bundles()[0].generation == 3


def test_a_newer_manifest_is_left_untouched(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest of a later release is refused by name and stays as it is, byte for byte."""
    with monkeypatch.context() as patched:
        _a_later_release(patched, tmp_path / "scripts")
        Manifest(path)
    before = path.read_bytes()

    with pytest.raises(NewerSchemaError, match="9999"):
        Manifest(path)

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"this is not a database, only some text that is long enough", "file is not a database"),
        (b"SQLite format 3\0" + bytes(200), "manifest"),
    ],
)
def test_a_damaged_manifest_is_named_and_kept(path: Path, content: bytes, told: str) -> None:
    """What SQLite cannot read is our error with the path, and nobody's data is overwritten."""
    path.write_bytes(content)

    with pytest.raises(ManifestError, match=told) as caught:
        Manifest(path)

    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_somebody_elses_database_is_refused(path: Path) -> None:
    """An SQLite file that is no manifest is not turned into one."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()

    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest(path)
    assert _rows(path, "SELECT name FROM sqlite_schema") == [("theirs",)]


@pytest.mark.parametrize("kind", ["folder", "link", "file above"])
def test_what_cannot_be_opened_is_a_manifest_error(path: Path, tmp_path: Path, kind: str) -> None:
    """A folder, a link or a file in the way are reported as ours, never as OSError or SQLAlchemyError."""
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(b"x")
        path = path / "manifest.sqlite3"

    with pytest.raises(ManifestError, match="manifest"):
        Manifest(path)
    assert not (tmp_path / "elsewhere").exists()


def test_it_is_opened_as_a_database_for_several_processes(manifest: Manifest) -> None:
    """Readers do not block writers (WAL), a busy file is waited for, and references between tables are held."""
    with manifest._engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "busy_timeout", "foreign_keys")
        }

    assert pragmas == {"journal_mode": "wal", "busy_timeout": 5000, "foreign_keys": 1}


def test_a_new_manifest_is_private(tmp_path: Path) -> None:
    """The file and the folders that are made for it are for this user only; names with % and spaces are fine."""
    path = tmp_path / "100% new" / "deeper" / "manifest.sqlite3"

    Manifest(path).add_event("made")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_processes_that_make_one_manifest_at_once_all_get_it(path: Path) -> None:
    """The first opening is raced for by several processes of a fresh machine; each gets a working manifest."""
    script = textwrap.dedent("""
        import sys
        from cachekit.manifest import Manifest
        print("ready", flush=True)
        sys.stdin.readline()
        manifest = Manifest(sys.argv[1])
        for n in range(10):
            manifest.add_event("opened", data={"n": n})
    """)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
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
    for process in processes:
        process.communicate("go\n", timeout=60)

    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(Manifest(path).events(100)) == 30


def test_opening_a_current_manifest_does_not_import_alembic(path: Path) -> None:
    """Alembic is paid for once in the life of a manifest."""
    Manifest(path)
    script = "import sys, cachekit; cachekit.Manifest(sys.argv[1]); print('alembic' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", script, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "False\n", done.stderr


def test_missing_migrations_are_a_named_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation says so instead of making an empty file."""
    monkeypatch.setattr(engine, "__file__", str(path.parent / "a" / "b" / "engine.py"))

    with pytest.raises(ManifestError, match="install torch-cachekit again"):
        Manifest(path)
    monkeypatch.undo()
    assert Manifest(path).events() == []


def _as_released(path: Path, revision: str) -> None:
    """Make the file as the release with this newest revision made it."""
    config = Config(ROOT / "migrations" / "alembic.ini", cmd_opts=None)
    config.cmd_opts = type("Options", (), {"x": [f"path={path}"]})()
    command.upgrade(config, revision)


def test_a_manifest_of_the_first_release_gets_uses(path: Path) -> None:
    """0001 is migrated on opening: bundles and events stay, and uses are counted from then on."""
    _as_released(path, "0001")
    _insert_a_bundle(path)

    with Manifest(path) as manifest:
        assert manifest.bundles()[0].generation == 3
        assert manifest.uses() == []
        manifest.add_uses("local", "f1", ["u"])
        assert [use.starts for use in manifest.uses()] == [1]


def test_making_a_manifest_is_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An engine that logs verbosely hears nothing of Alembic's steps, and Alembic's level is as it was."""
    level = logging.getLogger("alembic.runtime").level
    with caplog.at_level(logging.INFO):
        Manifest(tmp_path / "manifest.sqlite3")

    assert [record.name for record in caplog.records if record.name.startswith("alembic")] == []
    assert logging.getLogger("alembic.runtime").level == level


def test_a_journal_that_a_killed_writer_left_is_rolled_back(tmp_path: Path) -> None:
    """SQLite refuses to read such a file without being allowed to write: it must not stay unreadable for ever."""
    path = tmp_path / "manifest.sqlite3"
    with Manifest(path) as manifest:
        assert list(manifest.bundles()) == []
    killed = """
        import os, signal, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE filler (data BLOB)")
        connection.executemany("INSERT INTO filler VALUES (?)", [(bytes(5000),)] * 100)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(killed), str(path)], check=False, timeout=60)
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0

    with Manifest(path) as manifest:
        assert list(manifest.bundles()) == []

    assert not path.with_name(f"{path.name}-journal").exists()
