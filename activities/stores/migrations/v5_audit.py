"""Who did what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "5"
down_revision = "4"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "perdure_audit",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("namespace", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("position", sa.String, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("hash", sa.String, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("perdure_audit_entry", "perdure_audit", ["namespace", "run_id", "position", "at"], unique=True)
    op.create_index("perdure_audit_at", "perdure_audit", ["namespace", "at"])
