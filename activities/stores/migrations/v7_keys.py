"""By which keys is encrypted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "7"
down_revision = "6"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "perdure_keys",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
