"""Copies of events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "6"
down_revision = "5"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "perdure_events",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("execution", sa.String, primary_key=True),
        sa.Column("position", sa.String, primary_key=True),
        sa.Column("event", sa.BigInteger, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("agent", sa.String, nullable=False),
        sa.Column("session", sa.String, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("call", sa.String, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("perdure_events_time", "perdure_events", ["namespace", "time"])
