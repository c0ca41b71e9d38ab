"""The catalogue. Stores of before there were versions have it already."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Make it, if it is missing."""
    op.create_table(
        "perdure_catalogue",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("agent", sa.String, primary_key=True),
        sa.Column("task_queue", sa.String, primary_key=True),
        sa.Column("hash", sa.String, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        if_not_exists=True,
    )
