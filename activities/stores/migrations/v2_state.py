"""Blobs and who owns them, runs that have ended, sessions, facts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Make the tables and the index of words, which is each database's own."""
    _blobs()
    _runs()
    _sessions()
    _facts()
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE perdure_fact_terms USING fts5(terms)")
    else:
        op.execute("CREATE TABLE perdure_fact_terms (number integer PRIMARY KEY, terms tsvector NOT NULL)")
        op.execute("CREATE INDEX perdure_fact_terms_terms ON perdure_fact_terms USING gin (terms)")


def _blobs() -> None:
    op.create_table(
        "perdure_blobs",
        sa.Column("ref", sa.String, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("place", sa.String, nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("perdure_blobs_used_at", "perdure_blobs", ["used_at"])
    op.create_table(
        "perdure_blob_parts",
        sa.Column("ref", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "perdure_blob_owners",
        sa.Column("ref", sa.String, primary_key=True),
        sa.Column("owner", sa.String, primary_key=True),
    )
    op.create_index("perdure_blob_owners_owner", "perdure_blob_owners", ["owner"])


def _runs() -> None:
    op.create_table(
        "perdure_runs",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("agent", sa.String, nullable=False),
        sa.Column("session", sa.String, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True)),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("perdure_runs_started_at", "perdure_runs", ["namespace", "started_at"])
    op.create_table(
        "perdure_run_histories",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("namespace", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("execution", sa.String, nullable=False),
        sa.Column("ref", sa.String, nullable=False),
    )
    execution = ["namespace", "run_id", "execution"]
    op.create_index("perdure_run_histories_execution", "perdure_run_histories", execution, unique=True)


def _sessions() -> None:
    op.create_table(
        "perdure_sessions",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("agent", sa.String, nullable=False),
        sa.Column("turns", sa.Integer, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("perdure_sessions_updated_at", "perdure_sessions", ["namespace", "updated_at"])
    op.create_table(
        "perdure_turns",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("session", sa.String, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )


def _facts() -> None:
    op.create_table(
        "perdure_facts",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("namespace", sa.String, nullable=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("agent", sa.String, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("superseded_by", sa.String, nullable=False),
        sa.Column("forgotten_at", sa.DateTime(timezone=True)),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_index("perdure_facts_id", "perdure_facts", ["namespace", "id"], unique=True)
    op.create_index("perdure_facts_subject", "perdure_facts", ["namespace", "tenant", "scope", "subject"])
    op.create_index("perdure_facts_superseded_by", "perdure_facts", ["namespace", "superseded_by"])
