"""What Alembic runs around each migration of the local manifest.

The library hands over an open connection and its transaction (`cachekit.manifest.engine.upgrade`). Developers run
``alembic -c migrations/alembic.ini -x path=FILE ...``; see ``migrations/README.md``.
"""

from __future__ import annotations

from pathlib import Path

from alembic import context
from sqlalchemy import Connection

from cachekit.manifest import engine
from cachekit.manifest.schema import Base


def run(connection: Connection) -> None:
    """Run what was asked for inside the connection's transaction."""
    # SQLite cannot alter most things in place, so Alembic makes the table anew and copies it.
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    path = context.get_x_argument(as_dictionary=True).get("path")
    if not path:
        raise SystemExit("name the manifest to work on: -x path=FILE")
    with engine._engine(Path(path), foreign_keys=False).begin() as opened:  # noqa: SLF001
        run(opened)
