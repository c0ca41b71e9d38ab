"""Ids of traces and spans. They follow from what they stand for, so that every process knows them without asking.

A run is one trace, over all processes, restarts and resumptions; what is told twice by mistake has the same ids.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime


def trace_id(namespace: str, run_id: str) -> int:
    """Return the id of a run's trace, of 128 bits, never 0. The runs that its calls are have the same."""
    return int.from_bytes(_digest("trace", namespace, _CALLED.sub("", run_id))[:16]) or 1


_CALLED = re.compile(r"(?:/\d+\.\d+(?:~[0-9a-f]+)?)*(?:/afterwards/[^/]+)?$")
"""What has the id of a run that is a call of another, and of what follows a run, behind that of the run itself."""


def span_id(*parts: str | int) -> int:
    """Return the id of the span that `parts` name, of 64 bits, never 0."""
    return int.from_bytes(_digest("span", *map(str, parts))[:8]) or 1


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\x00".join(("perdure", *parts)).encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class SpanRef:
    """A span, named.

    Attributes:
        trace: The id of its trace.
        span: Its own.
    """

    trace: int
    span: int

    def traceparent(self, *, sampled: bool) -> str:
        """Return it as W3C's header `traceparent`."""
        return f"00-{self.trace:032x}-{self.span:016x}-{int(sampled):02x}"


def of_run(namespace: str, run_id: str, chain: str) -> SpanRef:
    """Return the span of a run; `chain` is what its first execution is known by: one that is resumed has another."""
    return SpanRef(trace_id(namespace, run_id), span_id(namespace, run_id, "run", chain))


def of_call(namespace: str, run_id: str, child: str) -> SpanRef:
    """Return the span of a call that is the run `child`."""
    return SpanRef(trace_id(namespace, run_id), span_id(namespace, run_id, "call", child))


def of_attempt(
    namespace: str, run_id: str, execution: str, activity: str, number: int, scheduled: datetime | None = None
) -> SpanRef:
    """Return the span of an attempt.

    Args:
        execution: Temporal's id of the execution that made it.
        activity: Temporal's id of the activity.
        number: Which of its attempts; of a model call, which of the requests made for it.
        scheduled: When the activity was handed to the workers: there may be several of one id, such as of a call that a
            person has had done again. None of a local one, and of what follows a run.
    """
    when = [] if scheduled is None else [scheduled.isoformat(timespec="milliseconds")]
    return SpanRef(trace_id(namespace, run_id), span_id(namespace, run_id, execution, activity, number, *when))
