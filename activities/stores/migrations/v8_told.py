"""How far executions have been told of elsewhere."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "8"
down_revision = "7"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "perdure_told",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("execution", sa.String, primary_key=True),
        sa.Column("event", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
    )
