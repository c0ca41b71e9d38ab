"""Spans and metrics, in OpenTelemetry's own terms. Imported only where it is on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from perdure.reports import Spent
from perdure.telemetry.ids import SpanRef
from perdure.telemetry.signals import Signals
from perdure.telemetry.spans import Span, name_of, provider_of

SCOPE = "perdure"
_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_LONG = [0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600]
_TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]


@dataclass(frozen=True)
class Meters:
    """Where metrics are kept, and what ends that."""

    provider: Any
    close: Callable[[], object]


def meter_provider(*, push: str, pull: bool) -> Meters:
    """Return where metrics are kept.

    Args:
        push: Where they are sent, by the standard environment variables; "" nowhere.
        pull: Whether they are to be had in Prometheus's form.
    """
    if push == "the application's own provider" and not pull:
        return Meters(metrics.get_meter_provider(), lambda: None)
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

    from perdure.telemetry.otel import resource

    readers = list[MetricReader]([PrometheusMetricReader()] if pull else [])
    if push and push != "the application's own provider":
        readers.append(_pushing(push))
    provider = MeterProvider(readers, resource=resource(), shutdown_on_exit=False)
    return Meters(provider, provider.shutdown)


def _pushing(where: str) -> Any:
    import os
    import sys

    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

    if where == "the console":
        return PeriodicExportingMetricReader(ConsoleMetricExporter(out=sys.stderr))
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    own = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    exporter = OTLPMetricExporter() if own else OTLPMetricExporter(endpoint=f"{where}/v1/metrics")
    return PeriodicExportingMetricReader(exporter)


class _Chosen:
    """Gives the span that is made next the id that was chosen for it. Each thread chooses for itself."""

    def __init__(self) -> None:
        self._next = threading.local()

    def choose(self, ref: SpanRef) -> None:
        self._next.ref = ref

    def generate_span_id(self) -> int:
        return int(self._next.ref.span)

    def generate_trace_id(self) -> int:
        return int(self._next.ref.trace)

    def is_trace_id_random(self) -> bool:
        return False


class Instruments(Signals):
    """Tells OpenTelemetry.

    Args:
        meters: Where metrics are kept.
        traces: What spans are handed to; None where they go nowhere.
    """

    def __init__(self, meters: Any, traces: Any) -> None:
        self._tracer: Any = traces.get_tracer(SCOPE) if traces is not None else None
        self._ids = _Chosen()
        if self._tracer is not None:
            self._tracer.id_generator = self._ids
        meter = meters.get_meter(SCOPE)
        histogram, counter = meter.create_histogram, meter.create_counter
        seconds = {"unit": "s", "explicit_bucket_boundaries_advisory": _SECONDS}
        long = {"unit": "s", "explicit_bucket_boundaries_advisory": _LONG}
        tokens = {"unit": "{token}", "explicit_bucket_boundaries_advisory": _TOKENS}
        self._tokens = histogram("gen_ai.client.token.usage", description="Tokens used.", **tokens)
        told = "Requests to models."
        self._requests = histogram("gen_ai.client.operation.duration", description=told, **seconds)
        self._calls = histogram("gen_ai.execute_tool.duration", description="Attempts of tool calls.", **seconds)
        self._runs_took = histogram("gen_ai.invoke_agent.duration", description="Runs.", **long)
        self._errors = counter("perdure.tool.errors", description="Attempts of tool calls that gave no result.")
        self._runs = counter("perdure.runs", description="Runs that have ended.")
        told = "How long approvals were waited for."
        self._approvals = histogram("perdure.approval.wait", description=told, **long)
        told = "How long activities waited for a worker."
        self._queue = histogram("perdure.queue.time", description=told, **seconds)
        self._dropped = counter("perdure.telemetry.dropped", description="What nobody has got of what was to be told.")

    # -- the current span --------------------------------------------------------------------------------------

    def _context(self, ref: SpanRef) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED if self._is_sampled(ref) else TraceFlags.DEFAULT)
        return SpanContext(ref.trace, ref.span, is_remote=True, trace_flags=flags)

    def _is_sampled(self, ref: SpanRef) -> bool:
        """Return what the sampler says of the run's trace: it goes by the trace's id, so all processes say the same."""
        sampler = getattr(self._tracer, "sampler", None)
        return sampler is None or bool(sampler.should_sample(None, ref.trace, "invoke_agent").decision.is_sampled())

    def traceparent(self, ref: SpanRef) -> str:
        """See base class."""
        return ref.traceparent(sampled=self._is_sampled(ref)) if self._tracer is not None else ""

    def within(self, ref: SpanRef) -> AbstractContextManager[object]:
        """See base class."""
        if self._tracer is None:
            return super().within(ref)
        return trace.use_span(NonRecordingSpan(self._context(ref)))

    def headers(self) -> dict[str, str]:
        """See base class."""
        carrier: dict[str, str] = {}
        if self._tracer is not None:
            propagate.inject(carrier)
        return carrier

    # -- spans -------------------------------------------------------------------------------------------------

    def emit(self, spans: Iterable[Span]) -> None:
        """Hand spans over to be sent."""
        for span in spans:
            self._ids.choose(span.ref)
            parent = NonRecordingSpan(self._context(span.parent)) if span.parent else None
            made = self._tracer.start_span(
                span.name,
                trace.set_span_in_context(parent, context.Context()) if parent else context.Context(),
                SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
                span.attributes,
                start_time=_ns(span.began),
            )
            if span.error is not None:
                made.set_status(Status(StatusCode.ERROR, span.error))
            made.end(_ns(span.ended))

    # -- metrics -----------------------------------------------------------------------------------------------

    def asked(self, spent: Spent) -> None:
        """See base class."""
        common = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_of(spent.model),
            "gen_ai.request.model": name_of(spent.model),
        }
        error = {} if spent.status == "ok" else {"error.type": spent.why or spent.status}
        if spent.took is not None:
            self._requests.record(spent.took.total_seconds(), {**common, **error})
        for kind, tokens in (("input", spent.usage.input_tokens), ("output", spent.usage.output_tokens)):
            if tokens:
                self._tokens.record(tokens, {**common, "gen_ai.token.type": kind})

    def called(self, tool: str, agent: str, seconds: float, error_type: str) -> None:
        """See base class."""
        common = {"gen_ai.tool.name": tool, "gen_ai.agent.name": agent}
        error = {"error.type": error_type} if error_type else {}
        self._calls.record(seconds, {"gen_ai.operation.name": "execute_tool", **common, **error})
        if error_type:
            self._errors.add(1, {**common, **error})

    def queued(self, what: str, wait: timedelta) -> None:
        """See base class."""
        self._queue.record(max(wait.total_seconds(), 0), {"perdure.activity": what})

    def approval(self, tool: str, agent: str, decision: str, wait: timedelta) -> None:
        """See base class."""
        told = {"gen_ai.tool.name": tool, "gen_ai.agent.name": agent, "perdure.approval.decision": decision}
        self._approvals.record(wait.total_seconds(), told)

    def ended(self, agent: str, status: str, error_type: str, duration: timedelta) -> None:
        """See base class."""
        told = {"gen_ai.agent.name": agent, "perdure.run.status": status}
        error = {"error.type": error_type} if error_type else {}
        self._runs.add(1, {**told, **error})
        self._runs_took.record(duration.total_seconds(), {"gen_ai.operation.name": "invoke_agent", **told, **error})

    def dropped(self, what: str, number: int) -> None:
        """Count what nobody has got."""
        self._dropped.add(number, {"perdure.telemetry.what": what})


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
