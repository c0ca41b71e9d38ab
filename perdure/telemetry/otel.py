"""OpenTelemetry: whether it is on and where it goes, by the standard environment variables; spans and metrics.

The libraries are imported only where it is on: the extra `perdure[otel]` brings them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError
from perdure.settings import Settings
from perdure.telemetry import signals

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from perdure.telemetry.instruments import Instruments
    from perdure.telemetry.spans import Capture, Span

_log = logging.getLogger("perdure.telemetry")

LACKING = "OpenTelemetry needs libraries that are not installed: pip install 'perdure[otel]'."
_DEFAULT_ENDPOINT = "http://localhost:4318"
_PATIENCE = 3.0
"""Seconds that whoever wants to know that spans have arrived waits for that, at most."""


_AWAY = 30.0
"""Seconds in which nobody waits for an endpoint that did not answer."""


@dataclass(frozen=True)
class Wanted:
    """What is to be told, and where to.

    Attributes:
        traces: Where spans go: an address, `the application's own provider`, or "" where they go nowhere.
        metrics: The same of metrics that are sent; those that are fetched are another matter.
    """

    traces: str = ""
    metrics: str = ""


def wanted(settings: Settings) -> Wanted:
    """Return what the settings and the environment ask for. Imports nothing."""
    if settings.otel is False or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Wanted()
    return Wanted(_where(settings, "TRACES", "trace"), _where(settings, "METRICS", "metrics"))


def _where(settings: Settings, signal: str, api: str) -> str:
    exporters = os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower()
    if exporters == "none":
        return ""
    if _is_set_up(api):
        return "the application's own provider"
    endpoint = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint or exporters in ("otlp", "console") or settings.otel:
        return "the console" if exporters == "console" else endpoint or _DEFAULT_ENDPOINT
    return ""


def _is_set_up(api: str) -> bool:
    """Return whether the application has a provider of its own, without importing anything."""
    module: Any = sys.modules.get(f"opentelemetry.{api}")
    if module is None:
        return False
    provider = module.get_tracer_provider() if api == "trace" else module.get_meter_provider()
    return "Proxy" not in type(provider).__name__ and "NoOp" not in type(provider).__name__


def installed() -> bool:
    """Return whether the extra is there."""
    names = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.prometheus")
    with contextlib.suppress(ModuleNotFoundError):
        return all(importlib.util.find_spec(name) for name in names)
    return False


def shown(where: str) -> str:
    """Return an address without what gives access to it."""
    scheme, mark, rest = where.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else where


class Telemetry:
    """What this process tells, while it is on.

    Args:
        settings: `capture_content`, and whether metrics are to be fetched.
        asked: Where it goes.
    """

    def __init__(self, settings: Settings, asked: Wanted) -> None:
        from perdure.telemetry.instruments import Instruments, meter_provider

        self.wanted = asked
        self.capture: Capture = settings.capture_content
        self._flushing: asyncio.Future[bool] | None = None
        self._away_until = 0.0
        self._meters = meter_provider(push=asked.metrics, pull=settings.metrics_port is not None)
        traces: tuple[Any, bool] = _tracer_provider(asked.traces, self) if asked.traces else (None, False)
        self._traces, self._own = traces
        self.signals: Instruments = Instruments(self._meters.provider, self._traces)

    def emit(self, spans: Iterable[Span]) -> None:
        """Hand spans over to be sent; takes no time."""
        if self._traces is not None:
            self.signals.emit(spans)

    async def delivered(self) -> None:
        """Wait until what was handed over has been sent, or given up; for a few seconds at most.

        Who waits meanwhile waits for the same; where nothing answers, nobody waits for long.
        """
        if self._traces is None or time.monotonic() < self._away_until:
            return
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.ensure_future(asyncio.to_thread(self._traces.force_flush, int(_PATIENCE * 1_000)))
        if not (await asyncio.wait({self._flushing}, timeout=_PATIENCE))[0]:
            self._away_until = time.monotonic() + _AWAY

    def dropped(self, what: str, number: int) -> None:
        """Count what nobody has got."""
        if what == "spans":
            self._away_until = time.monotonic() + _AWAY
        self.signals.dropped(what, number)

    async def aclose(self) -> None:
        """Send what is left, for a few seconds at most. A provider of the application's own is only flushed."""
        closing = [self._meters.close]
        if self._traces is not None:
            closing.append(self._traces.shutdown if self._own else self._traces.force_flush)
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            for one in closing:
                one()
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=close, daemon=True).start()  # what does not end does not hold up the process
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _PATIENCE)


def _tracer_provider(where: str, telemetry: Telemetry) -> tuple[Any, bool]:
    """Return what spans are handed to, and whether it is ours."""
    from opentelemetry import trace

    if where == "the application's own provider":
        return trace.get_tracer_provider(), False
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(where, telemetry)))
    return provider, True


def resource() -> Any:
    """Return what tells this process: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else `perdure`."""
    from opentelemetry.sdk.resources import Resource

    made = Resource.create()
    if str(made.attributes.get("service.name", "")).startswith("unknown_service"):
        made = made.merge(Resource({"service.name": "perdure"}))
    return made


def _exporter(where: str, telemetry: Telemetry) -> SpanExporter:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

    if where == "the console":
        inner: SpanExporter = ConsoleSpanExporter(out=sys.stderr)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        own = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        inner = OTLPSpanExporter() if own else OTLPSpanExporter(endpoint=f"{where}/v1/traces")

    class Counting(SpanExporter):
        """Counts what its exporter could not deliver."""

        def export(self, spans: Any) -> SpanExportResult:
            result = inner.export(spans)
            if result is not SpanExportResult.SUCCESS:
                telemetry.dropped("spans", len(spans))
            return result

        def shutdown(self) -> None:
            inner.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return inner.force_flush(timeout_millis)

    return Counting()


# -- one for the process -----------------------------------------------------------------------------------------------

_lock = threading.Lock()
_users = 0
_telemetry: Telemetry | None = None


def current() -> Telemetry | None:
    """Return what is on in this process."""
    return _telemetry


@asynccontextmanager
async def on(settings: Settings) -> AsyncGenerator[Telemetry | None]:
    """Have it on while the block runs, if it is wanted; workers of one process share it.

    Raises:
        PerdureError: If it is asked for by name, and the extra is not installed.
    """
    global _users, _telemetry  # noqa: PLW0603 - one per process, as OpenTelemetry itself
    asked = wanted(settings)
    if not (asked.traces or asked.metrics or settings.metrics_port is not None):
        yield None
        return
    if not installed():
        if settings.otel or settings.metrics_port is not None:
            raise PerdureError(LACKING)
        _log.warning("the environment asks for OpenTelemetry, and nothing is told. %s", LACKING)
        yield None
        return
    with _lock:
        _telemetry = _telemetry or Telemetry(settings, asked)
        _users += 1
    try:
        with signals.using(_telemetry.signals):
            yield _telemetry
    finally:
        await _leave()


async def _leave() -> None:
    """End it with the last of its users."""
    global _users, _telemetry  # noqa: PLW0603
    with _lock:
        _users -= 1
        last = None if _users else _telemetry
        _telemetry = _telemetry if _users else None
    if last is not None:
        await last.aclose()
