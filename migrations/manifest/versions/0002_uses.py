"""Count how often each unit was used, and note when last: what is collected first is decided by it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "uses",
        sa.Column("namespace", sa.String(length=63), nullable=False),
        sa.Column("fingerprint_id", sa.String(length=128), nullable=False),
        sa.Column("unit", sa.String(length=64), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "fingerprint_id", "unit", name=op.f("pk_uses")),
    )


def downgrade() -> None:
    op.drop_table("uses")
