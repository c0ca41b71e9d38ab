"""Settings of a process, from the environment (`PERDURE_…`) or a `.env` file. Data only."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from perdure.notices import OCCASIONS, Occasion


def _duration(value: Any, parse: ValidatorFunctionWrapHandler) -> timedelta:
    with contextlib.suppress(ValueError):
        value = float(value) if isinstance(value, str) else value
    try:
        duration: timedelta = parse(value)
    except ValueError:
        raise ValueError("a duration is a number of seconds (7, 0.5) or ISO 8601 (PT7S)") from None
    return duration


Duration = Annotated[timedelta, WrapValidator(_duration)]


def _json(form: str) -> WrapValidator:
    """Return what reads a setting that is JSON; where it is not what the field takes, `form` says how to write it."""

    def read(value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        try:
            return parse(json.loads(value) if isinstance(value, str) else value)
        except ValueError:
            raise ValueError(form) from None

    return WrapValidator(read)


PerModel = Annotated[
    dict[str, Annotated[int, Field(ge=1)]],
    NoDecode,
    _json('tokens per minute are JSON such as {"openai:gpt-5": 200000}, each 1 or more'),
]
ByName = Annotated[
    dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]],
    NoDecode,
    _json('it is JSON such as {"name": 5}, each number above 0'),
]


def _split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


Names = Annotated[
    list[str],
    NoDecode,
    BeforeValidator(lambda given: _split(given) if isinstance(given, str) else given),
]


Occasions = Annotated[
    list[Occasion],
    NoDecode,
    BeforeValidator(lambda given: _split(given) if isinstance(given, str) else given),
]


class Provider(BaseModel):
    """A Chat Completions server with a name of its own.

    Attributes:
        base_url: Its address.
        api_key_env: Name of the environment variable on the worker that holds the key. Default: it needs none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(pattern="^https?://.")
    api_key_env: str = ""


_FORM = '{"deepseek": {"base_url": "https://api.deepseek.com/v1", "api_key_env": "DEEPSEEK_API_KEY"}}'
Providers = Annotated[
    dict[Annotated[str, Field(pattern="^[a-z0-9-]+$")], Provider],
    NoDecode,
    _json(f"providers are JSON such as {_FORM}"),
]


class Settings(BaseSettings):
    """How this process works, whatever agents it serves. Durations are seconds (`7`, `0.5`) or ISO 8601 (`PT7S`).

    Attributes:
        home: Folder of the embedded engine and of the embedded store. Default `.perdure`.
        store: SQLAlchemy address of the store. Default: `store.db` in `home`.
        blobs: Where the store keeps large things: `s3://BUCKET/PREFIX`. Default: `blobs` beside a SQLite file, or in
            PostgreSQL itself.
        task_queue: Queue of the agents; default: one per agent file. Set it where client and worker see the
            file at different paths.
        heartbeat_timeout: A worker silent for so long is taken for lost. Default 5 s.
        grace: How long a stopping worker lets calls finish. Default 10 s.
        cancel_grace: How long a cancelled tool may take to unwind before it is abandoned. Default 2 s.
        threads: Sync tools running at once in a worker. Default 32.
        max_activities: Tool calls at once in a worker. Default 100.
        model_slots: Model calls at once in a worker, of each provider. Default 100.
        model_rate: Model calls a second, by provider, of all workers of a queue together: `{"openai": 5}`. The engine
            holds them back; a retry counts as a call. Default: no limit.
        tenant_weights: Shares of tenants that are not 1: `{"acme": 3}`. Those of whoever starts a run count.
        max_runs: Runs kept in memory by a worker. Default 1000.
        breaker_failures: So many failures of a model provider (or of a tool that only reads) in a row, within
            `breaker_window`, and this worker leaves it alone for `breaker_open`. Default 5.
        breaker_window: Default 60 s.
        breaker_open: Default 30 s.
        providers: Chat Completions servers by names of your own, as JSON: `{"deepseek": {"base_url": "https://…",
            "api_key_env": "DEEPSEEK_API_KEY"}}` makes `deepseek:…` a model, at that address whatever the agent's
            settings say. Default: none.
        tpm: Tokens per minute by model, as JSON: `{"openai:gpt-5": 200000}`; for this worker alone. Default: as many
            as the server takes.
        max_history_events: A run that is started here continues as new, unseen, when its history has so many events.
            Default: when the engine suggests it, at about 4,000 events or 4 MB.
        encryption_key: Encrypts all contents of runs, in histories and in the store: 32 bytes in base64 or hex, as from
            `openssl rand -base64 32`. Several, by commas: the first one encrypts, all decrypt. `ID:KEY` names one.
        encryption_key_file: A file with such keys, one a line; those of `encryption_key` come first.
        stream: Whether text that a model writes, and what tools say of their progress, is passed on to those who watch
            while it comes: through files in `home`, or through the store where that is PostgreSQL. Default on.
        event_log: A file to which a worker appends the events of runs, each a line of JSON; `-` is stderr. Default:
            none; the logger `perdure.events` has them in any case.
        copy_every: Seconds after which a worker copies, about, what runs tell that go on, into the log of events, the
            store, and to OpenTelemetry; what has ended is copied at once. 0: only then. Default 10 s.
        redactors: Detectors of your own for what tells of runs, as `MODULE:NAME`, separated by commas: each one a
            `Detector`, or a function from text to text. Default: none besides those that are always there.
        otel: Whether OpenTelemetry is told: true (needs `perdure[otel]`), false, or by default where the application
            has a provider of its own or the standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, …) say where to.
        capture_content: Whether messages, arguments and results are in spans: `off` (default), `redacted`, or `whole`.
        metrics_port: A worker answers there to `/metrics` (Prometheus), `/healthz` and `/readyz`. Needs
            `perdure[otel]`. 0: any free one. Default: it does not.
        metrics_host: The address on which it does. Default 127.0.0.1.
        notify_url: Where a webhook is sent to, signed by Standard Webhooks, when a run waits for a person, nears its
            budget, or ends.
        notify_command: A command that is run then, with the same JSON on its stdin; not by a shell.
        notify_on: Of what runs that are started here tell: `waiting`, `budget`, `ended`, separated by commas. Default:
            of all where `notify_url` or `notify_command` is set, else of nothing. Address, command and secret are
            those of the workers.
        notify_by: Names of installed extensions that deliver notices, separated by commas; see `Notifier`.
        notify_secret: Signs webhooks: `whsec_` and base64 of 24 to 64 bytes.
        cache_bytes: Bytes of conversations kept in memory by a worker. Default 64 MiB.
    """

    model_config = SettingsConfigDict(env_prefix="PERDURE_", env_file=".env", extra="ignore")

    home: Path = Path(".perdure")
    store: str | None = None
    blobs: str | None = None
    task_queue: str | None = None
    heartbeat_timeout: Duration = Field(default=timedelta(seconds=5), gt=timedelta())
    grace: Duration = Field(default=timedelta(seconds=10), ge=timedelta())
    cancel_grace: Duration = Field(default=timedelta(seconds=2), ge=timedelta())
    threads: int = Field(default=32, ge=1)
    max_activities: int = Field(default=100, ge=1)
    model_slots: int = Field(default=100, ge=1)
    model_rate: ByName = Field(default_factory=dict)
    tenant_weights: ByName = Field(default_factory=dict)
    max_runs: int = Field(default=1000, ge=1)
    breaker_failures: int = Field(default=5, ge=1)
    breaker_window: Duration = Field(default=timedelta(seconds=60), gt=timedelta())
    breaker_open: Duration = Field(default=timedelta(seconds=30), gt=timedelta())
    providers: Providers = Field(default_factory=dict)
    tpm: PerModel = Field(default_factory=dict)
    max_history_events: int | None = Field(default=None, ge=20)
    encryption_key: SecretStr | None = None
    encryption_key_file: Path | None = None
    stream: bool = True
    event_log: str | None = None
    copy_every: Duration = Field(default=timedelta(seconds=10), ge=timedelta())
    redactors: Names = Field(default_factory=list[str])
    otel: bool | None = None
    capture_content: Literal["off", "redacted", "whole"] = "off"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    metrics_host: str = "127.0.0.1"
    notify_url: str | None = Field(default=None, pattern="^https?://.")
    notify_command: str | None = None
    notify_on: Occasions | None = None
    notify_by: Names = Field(default_factory=list[str])
    notify_secret: SecretStr | None = None
    cache_bytes: int = Field(default=64 * 1024 * 1024, ge=0)

    @property
    def notify(self) -> list[Occasion]:
        """Of what runs that are started here tell people."""
        told = bool(self.notify_url or self.notify_command or self.notify_by)
        return list(OCCASIONS if told else ()) if self.notify_on is None else self.notify_on

    @property
    def folder(self) -> Path:
        """`home` as an absolute path: the one nearest to the current folder, itself or above; else, here."""
        here = Path.cwd()
        return next((at / self.home for at in (here, *here.parents) if (at / self.home).is_dir()), here / self.home)
