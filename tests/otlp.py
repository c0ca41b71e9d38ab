"""An OTLP/HTTP endpoint: keeps the spans and metrics that it is sent."""

import gzip
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """A span as it came in; ids in hex, `parent` is "" for a root."""

    name: str
    trace: str
    span: str
    parent: str
    began: datetime
    ended: datetime
    failed: bool
    kind: int
    attributes: dict[str, Any]
    service: str

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.began).total_seconds()


class Endpoint:
    """What has come in. Serve it with `Endpoint.open()`."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.metrics: set[str] = set()
        self.bodies: list[bytes] = []
        self.address = ""
        self._changed = threading.Condition()

    @classmethod
    @contextmanager
    def open(cls):
        """Serve one while the block runs."""
        endpoint = cls()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.take(self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        endpoint.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield endpoint
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def take(self, path: str, body: bytes) -> None:
        """Keep what has come in."""
        with self._changed:
            self.bodies.append(body)
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    service = _values(resource.resource.attributes).get("service.name", "")
                    for scope in resource.scope_spans:
                        self.spans += [_received(span, service) for span in scope.spans]
            else:
                for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for group in measured.scope_metrics:
                        self.metrics |= {metric.name for metric in group.metrics}
            self._changed.notify_all()

    def of_run(self, run_id: str, patience: float = 30) -> list[Received]:
        """Return the spans of a run once that of the run itself has come; they are told together."""

        def ended() -> bool:
            return any(span.name.startswith("invoke_agent") for span in self._of(run_id))

        with self._changed:
            assert self._changed.wait_for(ended, patience), f"nothing came of run {run_id}: {self.spans}"
            return sorted(self._of(run_id), key=lambda span: span.began)

    def all_of_run(self, run_id: str, number: int, patience: float = 30) -> list[Received]:
        """Return the spans of a run once so many have come: parts of it are told for themselves."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._of(run_id)) >= number, patience), self._of(run_id)
            return sorted(self._of(run_id), key=lambda span: span.began)

    def _of(self, run_id: str) -> list[Received]:
        return [span for span in self.spans if span.attributes.get("perdure.run.id") == run_id]


def _received(span: Any, service: str) -> Received:
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    began, ended = (datetime.fromtimestamp(at / 1e9, UTC) for at in times)
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    failed = span.status.code == span.status.STATUS_CODE_ERROR
    return Received(span.name, *ids, began, ended, failed, span.kind, _values(span.attributes), service)


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
