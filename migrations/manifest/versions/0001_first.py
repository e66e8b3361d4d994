"""Make the tables of the first manifest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("fingerprint_id", sa.String(length=128), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_fingerprint_id"), "events", ["fingerprint_id"], unique=False)
    op.create_index(op.f("ix_events_kind"), "events", ["kind"], unique=False)
    op.create_table(
        "fingerprints",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("components", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fingerprints")),
    )
    op.create_table(
        "bundles",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("namespace", sa.String(length=63), nullable=False),
        sa.Column("fingerprint_id", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("newest", sa.BigInteger(), nullable=False),
        sa.Column("indexed_at", sa.BigInteger(), nullable=False),
        sa.Column("producers", sa.JSON(), nullable=False),
        sa.Column("cold", sa.JSON(), nullable=False),
        sa.Column("tombstones", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fingerprint_id"],
            ["fingerprints.id"],
            name=op.f("fk_bundles_fingerprint_id_fingerprints"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bundles")),
        sa.UniqueConstraint("namespace", "fingerprint_id", name=op.f("uq_bundles_namespace_fingerprint_id")),
    )
    op.create_index(op.f("ix_bundles_fingerprint_id"), "bundles", ["fingerprint_id"], unique=False)
    op.create_table(
        "artifacts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("identity", sa.String(length=96), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("guards", sa.Text(), nullable=False),
        sa.Column("requires", sa.JSON(), nullable=False),
        sa.Column("raw_digest", sa.String(length=64), nullable=False),
        sa.Column("raw_size", sa.BigInteger(), nullable=False),
        sa.Column("stored_digest", sa.String(length=64), nullable=False),
        sa.Column("stored_size", sa.BigInteger(), nullable=False),
        sa.Column("inline", sa.Boolean(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("contribution", sa.String(length=64), nullable=False),
        sa.Column("producer", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["bundle_id"], ["bundles.id"], name=op.f("fk_artifacts_bundle_id_bundles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("bundle_id", "identity", name=op.f("uq_artifacts_bundle_id_identity")),
    )
    op.create_index(op.f("ix_artifacts_kind_key"), "artifacts", ["kind", "key"], unique=False)
    op.create_table(
        "shapes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("alternative", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["bundle_id"], ["bundles.id"], name=op.f("fk_shapes_bundle_id_bundles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shapes")),
        sa.UniqueConstraint(
            "bundle_id",
            "width",
            "height",
            "batch",
            "variant",
            "alternative",
            "unit",
            name=op.f("uq_shapes_bundle_id_width_height_batch_variant_alternative_unit"),
        ),
    )
    op.create_table(
        "units",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("bundle_id", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(length=64), nullable=False),
        sa.Column("dynamic", sa.Boolean(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("guards", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["bundle_id"], ["bundles.id"], name=op.f("fk_units_bundle_id_bundles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_units")),
    )
    op.create_index(op.f("ix_units_bundle_id_unit"), "units", ["bundle_id", "unit"], unique=False)
    op.create_table(
        "unit_artifacts",
        sa.Column("unit_id", sa.Integer(), nullable=False),
        sa.Column("artifact_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact_id"],
            ["artifacts.id"],
            name=op.f("fk_unit_artifacts_artifact_id_artifacts"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["unit_id"], ["units.id"], name=op.f("fk_unit_artifacts_unit_id_units"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("unit_id", "artifact_id", name=op.f("pk_unit_artifacts")),
    )
    op.create_index(op.f("ix_unit_artifacts_artifact_id"), "unit_artifacts", ["artifact_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_unit_artifacts_artifact_id"), table_name="unit_artifacts")
    op.drop_table("unit_artifacts")
    op.drop_index(op.f("ix_units_bundle_id_unit"), table_name="units")
    op.drop_table("units")
    op.drop_table("shapes")
    op.drop_index(op.f("ix_artifacts_kind_key"), table_name="artifacts")
    op.drop_table("artifacts")
    op.drop_index(op.f("ix_bundles_fingerprint_id"), table_name="bundles")
    op.drop_table("bundles")
    op.drop_table("fingerprints")
    op.drop_index(op.f("ix_events_kind"), table_name="events")
    op.drop_index(op.f("ix_events_fingerprint_id"), table_name="events")
    op.drop_table("events")
