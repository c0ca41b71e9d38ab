"""The tables of the store in SQL. What is searched for has a column; the rest of a thing is JSON, so it can grow.

A change here is a further step in `migrations`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    TypeDecorator,
)


class UTCDateTime(TypeDecorator[datetime]):
    """A moment, with time zone on both sides; SQLite itself would forget it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return `value` in UTC."""
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return what was kept, as UTC."""
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


METADATA = MetaData()

CATALOGUE = Table(
    "perdure_catalogue",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("agent", String, primary_key=True),
    Column("task_queue", String, primary_key=True),
    Column("hash", String, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("source", String, nullable=False),
    Column("seen_at", UTCDateTime, nullable=False),
)

BLOBS = Table(
    "perdure_blobs",
    METADATA,
    Column("ref", String, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("place", String, nullable=False),  # where its bytes are; see `places`
    Column("used_at", UTCDateTime, nullable=False),  # when it was last put or owned, or lost an owner
    Index("perdure_blobs_used_at", "used_at"),
)

PARTS = Table(
    "perdure_blob_parts",
    METADATA,
    Column("ref", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

OWNERS = Table(
    "perdure_blob_owners",
    METADATA,
    Column("ref", String, primary_key=True),
    Column("owner", String, primary_key=True),
    Index("perdure_blob_owners_owner", "owner"),
)

RUNS = Table(
    "perdure_runs",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("run_id", String, primary_key=True),
    Column("agent", String, nullable=False),
    Column("session", String, nullable=False),
    Column("started_at", UTCDateTime, nullable=False),
    Column("closed_at", UTCDateTime),
    Column("body", JSON, nullable=False),
    Index("perdure_runs_started_at", "namespace", "started_at"),
)

HISTORIES = Table(
    "perdure_run_histories",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),  # in the order in which they were archived
    Column("namespace", String, nullable=False),
    Column("run_id", String, nullable=False),
    Column("execution", String, nullable=False),
    Column("ref", String, nullable=False),
    Index("perdure_run_histories_execution", "namespace", "run_id", "execution", unique=True),
)

SESSIONS = Table(
    "perdure_sessions",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("agent", String, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("updated_at", UTCDateTime, nullable=False),
    Column("body", JSON, nullable=False),
    Index("perdure_sessions_updated_at", "namespace", "updated_at"),
)

TURNS = Table(
    "perdure_turns",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("session", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("body", JSON, nullable=False),
)

FACTS = Table(
    "perdure_facts",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("namespace", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("scope", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("at", UTCDateTime, nullable=False),
    Column("superseded_by", String, nullable=False),
    Column("forgotten_at", UTCDateTime),
    Column("body", JSON, nullable=False),
    Index("perdure_facts_id", "namespace", "id", unique=True),
    Index("perdure_facts_subject", "namespace", "tenant", "scope", "subject"),
    Index("perdure_facts_superseded_by", "namespace", "superseded_by"),
)

SECRETS = Table(
    "perdure_secrets",
    METADATA,
    Column("id", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("namespace", String, nullable=False),
    Column("run_id", String, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("kept_at", UTCDateTime, nullable=False),
    Index("perdure_secrets_kept_at", "namespace", "kept_at"),
)

USAGE = Table(
    "perdure_usage",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("run_id", String, primary_key=True),
    Column("position", String, primary_key=True),
    Column("at", UTCDateTime, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("time", UTCDateTime, nullable=False),  # when the request was made
    Column("kind", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("model", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("session", String, nullable=False),
    Column("status", String, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("body", JSON, nullable=False),
    Index("perdure_usage_time", "namespace", "time"),
)

AUDIT = Table(
    "perdure_audit",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("namespace", String, nullable=False),
    Column("run_id", String, nullable=False),
    Column("position", String, nullable=False),
    Column("at", UTCDateTime, nullable=False),
    Column("action", String, nullable=False),
    Column("hash", String, nullable=False),  # of the row before, and of this one
    Column("body", JSON, nullable=False),
    Index("perdure_audit_entry", "namespace", "run_id", "position", "at", unique=True),
    Index("perdure_audit_at", "namespace", "at"),
)

EVENTS = Table(
    "perdure_events",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("run_id", String, primary_key=True),
    Column("execution", String, primary_key=True),
    Column("position", String, primary_key=True),
    Column("event", BigInteger, nullable=False),  # the position, as numbers
    Column("part", Integer, nullable=False),
    Column("time", UTCDateTime, nullable=False),
    Column("type", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("session", String, nullable=False),
    Column("step", Integer, nullable=False),
    Column("call", String, nullable=False),
    Column("body", JSON, nullable=False),
    Index("perdure_events_time", "namespace", "time"),
)

KEYS = Table(
    "perdure_keys",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("since", UTCDateTime, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)

TOLD = Table(
    "perdure_told",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("run_id", String, primary_key=True),
    Column("execution", String, primary_key=True),
    Column("event", BigInteger, nullable=False),  # of the history, up to which it was told
    Column("holder", String, nullable=False),  # who tells just now, "" nobody
    Column("until", UTCDateTime, nullable=False),  # then somebody else may
)
