"""The one place that opens the manifest's file: checks its revision, migrates it, sets what SQLite needs.

A file that does not exist is made; an older one is migrated, in one transaction and by one process at a time; a newer
one raises `NewerSchemaError` before anything is written to it. Foreign errors become `ManifestError` in `mapped`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from cachekit.errors import ManifestError, NewerSchemaError, StoreError
from cachekit.store import files

REVISIONS = ("0001", "0002")
"""Every revision this release knows, oldest first. Asking Alembic would import it on each opening."""

_EMPTY = ""

BUSY_TIMEOUT_S = 5.0
"""Writes take milliseconds; whoever waits longer meets a stopped process."""


@contextlib.contextmanager
def mapped(path: Path, doing: str) -> Iterator[None]:
    """Map what SQLAlchemy, SQLite and the file system raise to `ManifestError` with the path."""
    try:
        yield
    except SQLAlchemyError as exc:
        cause = getattr(exc, "orig", None) or exc
        raise ManifestError(f"cannot {doing} manifest {path}: {cause}") from exc
    except sqlite3.Error as exc:
        raise ManifestError(f"cannot {doing} manifest {path}: {exc}") from exc
    except OSError as exc:
        raise ManifestError(f"cannot {doing} manifest {path}: {files.describe(exc)}") from exc


def open_engine(path: Path) -> Engine:
    """An engine on the manifest at ``path``, which has the newest revision when this returns.

    Raises `ManifestError` if the file cannot be opened or is no manifest, `NewerSchemaError` if it is a newer one's.
    """
    if revision(path) != REVISIONS[-1]:
        _prepare(path)
    return _engine(path, foreign_keys=True)


def set_aside(path: Path) -> Path | None:
    """Rename the file, with what SQLite keeps beside it, to ``<name>.damaged-<n>``; None if there is none.

    Raises `ManifestError`.
    """
    try:
        with files.locked(_lock_of(path)), mapped(path, "set aside"):
            if not os.path.lexists(path):
                return None
            kept = next(
                name for n in range(1, 10_000) if not os.path.lexists(name := Path(f"{path}.damaged-{n}"))
            )
            path.rename(kept)
            for suffix in ("-wal", "-shm"):  # they belong to the file they are named after
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{path}{suffix}").rename(f"{kept}{suffix}")
            return kept
    except StoreError as exc:
        raise ManifestError(f"cannot set manifest {path} aside: {exc}") from exc


def scripts() -> Path:
    """The folder with the migrations: inside the installed package, or at the top of the checkout.

    Raises `ManifestError` if neither is there, which means a broken installation.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "migrations", here.parents[1] / "migrations" / "manifest"):
        if (folder / "env.py").is_file():
            return folder
    raise ManifestError(f"the manifest's migrations are missing from {here}: install torch-cachekit again")


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the migrations up to ``revision`` on an open connection, in its transaction. Raises `ManifestError`."""
    with _quiet("alembic.runtime"):
        # Slow to import, and needed once in the life of a manifest.
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config(stdout=io.StringIO())
        config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, revision)
        except CommandError as exc:
            raise ManifestError(f"cannot migrate the manifest: {exc}") from exc


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Alembic tells its import and each step at INFO, which an engine that logs verbosely has no use for."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _prepare(path: Path) -> None:
    try:
        with files.locked(_lock_of(path)):
            found = revision(path)  # another process may have been quicker
            if found != REVISIONS[-1]:
                _migrate(path)
    except StoreError as exc:
        raise ManifestError(f"cannot open manifest {path}: {exc}") from exc


def _migrate(path: Path) -> None:
    with mapped(path, "make or migrate"):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as plain:
            plain.execute("PRAGMA journal_mode=WAL")  # outside of any transaction; the file remembers it
        # Off while migrating: a table that SQLite can only change by making it anew would empty those below it.
        with _engine(path, foreign_keys=False).begin() as connection:
            upgrade(connection)
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
            if broken is not None:
                raise ManifestError(f"cannot migrate manifest {path}: a row of {broken[0]} lost its parent")


def revision(path: Path) -> str | None:
    """The file's revision, or None if there is no manifest yet; reads without changing a byte.

    Raises `ManifestError` if it is none, `NewerSchemaError` if it is a newer release's.
    """
    with mapped(path, "open"):
        try:
            if path.lstat().st_size == 0:
                return None
        except FileNotFoundError:
            return None
        try:
            found = _read_revision(path, mode="ro")
        except sqlite3.OperationalError as exc:
            if "readonly" not in str(exc):
                raise
            # A writer died while the file was made: its journal is rolled back first, and only a writer may do that.
            found = _read_revision(path, mode="rw")
    if found == _EMPTY:
        return None
    if found is None:
        raise ManifestError(f"{path} is an SQLite file, but not a manifest: move it away")
    named = found
    if named not in REVISIONS:
        raise NewerSchemaError(
            f"manifest {path} has revision {named!r:.40}, and this release knows none after {REVISIONS[-1]}: "
            "upgrade cachekit, or use another CACHEKIT_DIR"
        )
    return named


def _read_revision(path: Path, *, mode: str) -> str | None:
    """What the file says, `_EMPTY` if it has no tables, None if it is another program's. Raises what SQLite raises."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        tables = {name for (name,) in rows}
        if not tables:
            return _EMPTY
        if "alembic_version" not in tables:
            return None
        found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return None if found is None else str(found[0])


def _engine(path: Path, *, foreign_keys: bool) -> Engine:
    # A connection per transaction: nothing is kept open that a forked child could inherit, and it costs 0.2 ms.
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        # Without this, sqlite3 begins transactions by itself, and only before some statements.
        connection.isolation_level = None
        connection.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and then writes cannot wait for another writer; one that asks at once can.
        reads = connection.get_execution_options().get("reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
