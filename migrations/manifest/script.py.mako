"""${message}.

Rules: a released migration never changes. Add its revision to `cachekit.manifest.engine.REVISIONS`. Changing tables goes
through `op.batch_alter_table`; use no model of `cachekit.manifest.schema`, which describes today's tables. A step that
cannot be undone raises in `downgrade` and says why.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
