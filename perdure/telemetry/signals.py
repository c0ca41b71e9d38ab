"""What activities tell OpenTelemetry while they work: nothing, until it is turned on. Imports nothing of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.telemetry.ids import SpanRef

if TYPE_CHECKING:
    from perdure.reports import Spent


class Signals:
    """Tells nobody: what there is while OpenTelemetry is off, at no cost."""

    def traceparent(self, ref: SpanRef) -> str:
        """Return what makes requests of others part of a span, or "" where nobody is told of it."""
        del ref
        return ""

    def within(self, ref: SpanRef) -> AbstractContextManager[object]:
        """Make a span the current one: what is done within is done for it."""
        del ref
        return nullcontext()

    def headers(self) -> dict[str, str]:
        """Return the headers by which whoever is asked learns of the current span."""
        return {}

    def asked(self, spent: Spent) -> None:
        """Count a request to a model."""

    def called(self, tool: str, agent: str, seconds: float, error_type: str) -> None:
        """Count an attempt of a call; `error_type` is "" where it gave a result."""

    def queued(self, what: str, wait: timedelta) -> None:
        """Count how long an activity waited for a worker."""

    def approval(self, tool: str, agent: str, decision: str, wait: timedelta) -> None:
        """Count an approval that was waited for."""

    def ended(self, agent: str, status: str, error_type: str, duration: timedelta) -> None:
        """Count a run that has ended."""

    def dropped(self, what: str, number: int) -> None:
        """Count what nobody has got of what was to be told."""


_OFF = Signals()
_current: Signals = _OFF


def current() -> Signals:
    """Return who is told in this process."""
    return _current


@contextmanager
def using(signals: Signals) -> Generator[None]:
    """Tell `signals` while the block runs."""
    global _current  # noqa: PLW0603 - one per process, as OpenTelemetry itself
    before, _current = _current, signals
    try:
        yield
    finally:
        _current = before
