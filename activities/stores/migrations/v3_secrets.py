"""Secrets of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "perdure_secrets",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("namespace", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("kept_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("perdure_secrets_kept_at", "perdure_secrets", ["namespace", "kept_at"])
