"""What runs have used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "perdure_usage",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("position", sa.String, primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("agent", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("session", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("estimated", sa.Boolean, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("perdure_usage_time", "perdure_usage", ["namespace", "time"])
