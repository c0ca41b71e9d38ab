"""Copies of events as logs: flat, structured, redacted records of the logger `perdure.events`.

What becomes of them is up to the application's own logging: the level is INFO, each record has its event as the
attribute `event`, and `JSONLines` is a formatter that writes one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from perdure.errors import PerdureError
from perdure.events import Event, EventBase
from perdure.messages import JSON, Data
from perdure.telemetry import redaction, signals

LOGGER = "perdure.events"

MOST = 10_000
"""Events that wait to be logged; what comes then is dropped."""

_IDS = frozenset({*EventBase.model_fields, "type"})
"""Fields that hold nothing that anybody has said."""

_TEXTS = ("arguments", "content")
"""Fields of any shape: in a flat record they are JSON as a text."""


def shown(event: Event) -> dict[str, JSON]:
    """Return an event as JSON, redacted as all copies of events are."""
    whole: dict[str, JSON] = event.model_dump(mode="json")
    ids = {name: value for name, value in whole.items() if name in _IDS}
    rest = {name: value for name, value in whole.items() if name not in _IDS}
    return {**ids, **cast("dict[str, JSON]", redaction.current().json(rest))}


def flat(event: Event) -> dict[str, JSON]:
    """Return an event, redacted, as a dict without dicts in it: `usage_input_tokens`, `duration_seconds`.

    What is not known is left out. Durations are seconds, costs numbers.
    """
    redacted = shown(event)
    found: dict[str, JSON] = {}
    for name in type(event).model_fields:
        _spread(found, name, getattr(event, name), redacted.get(name))
    return found


def _spread(found: dict[str, JSON], name: str, value: Any, redacted: JSON) -> None:
    match value:
        case None:
            pass
        case timedelta():
            found[f"{name}_seconds"] = value.total_seconds()
        case Decimal():
            found[name] = float(value)
        case _ if name in _TEXTS and not isinstance(redacted, str):
            found[name] = json.dumps(redacted, ensure_ascii=False)
        case Data():
            inner = cast("Mapping[str, JSON]", redacted)
            for field in type(value).model_fields:
                _spread(found, f"{name}_{field}", getattr(value, field), inner.get(field))
        case dict():
            found[name] = json.dumps(redacted, ensure_ascii=False)
        case _:
            found[name] = redacted


class JSONLines(logging.Formatter):
    """Formats any log record as one line of JSON: `time`, `level`, `logger`, `message`, and the fields of an event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told: dict[str, JSON] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info or record.exc_text:
            told["exception"] = record.exc_text or self.formatException(cast("Any", record.exc_info))
        return json.dumps({**told, **getattr(record, "event", {})}, ensure_ascii=False, default=str)


class Lines(logging.Handler):
    """Appends records to a file, each a line. What can't be written, as on a full disk, is dropped and counted.

    Args:
        place: The file. Where somebody moves it away, as those do who rotate logs, it begins anew.

    Raises:
        OSError: If it can't be written.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place
        self._file = _appended(place)
        self._halved = False
        self._lost, self._complained = 0, -_COMPLAIN

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        line = f"{self.format(record)}\n".encode("utf-8", "replace")
        try:
            if not _is(self._file, self._place):
                os.close(self._file)
                self._file = -1
                self._file = _appended(self._place)
            told = b"\n" + line if self._halved else line
            self._halved = os.write(self._file, told) < len(told)  # the disk is full in the middle of it
            if not self._halved:
                return
            reason = "no space is left"
        except OSError as error:
            reason = error.strerror or str(error)
        self._drop(reason)

    def _drop(self, reason: str) -> None:
        self._lost += 1
        signals.current().dropped("events", 1)
        if time.monotonic() - self._complained > _COMPLAIN:
            words = "events can't be written to %s: %s; %d are lost by now"
            logging.getLogger("perdure.telemetry").warning(words, self._place, reason, self._lost)
            self._complained = time.monotonic()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        super().close()


_COMPLAIN = 60.0
"""Seconds between two warnings that something was dropped."""


def _appended(place: str) -> int:
    return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


def _is(file: int, place: str) -> bool:
    """Return whether a file that is open is the one of that name."""
    try:
        found, there = Path(place).stat(), os.fstat(file)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (there.st_dev, there.st_ino)


class EventLog:
    """Logs events in a thread of its own: a handler that hangs delays nothing.

    Attributes:
        dropped: Events that were lost, since too many waited.
    """

    def __init__(self, most: int = MOST) -> None:
        self.dropped = 0
        self._log = logging.getLogger(LOGGER)
        self._most = most
        self._waiting: deque[Event] = deque()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_wanted(self) -> bool:
        """Whether the application's logging takes events at all."""
        return self._log.isEnabledFor(logging.INFO)

    def take(self, events: Iterable[Event]) -> None:
        """Log `events`, in order, soon. Called from one thread."""
        if not self.is_wanted:
            return
        for event in events:
            if len(self._waiting) >= self._most:
                self.dropped += 1
                signals.current().dropped("events", 1)
            else:
                self._waiting.append(event)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="perdure-events", daemon=True)
            self._thread.start()
        self._wanted.set()

    def close(self) -> None:
        """Log what waits, for a second at most, and stop."""
        self._closed = True
        self._wanted.set()
        if self._thread:
            self._thread.join(1)

    def _work(self) -> None:
        while not self._closed:
            self._wanted.wait()
            self._wanted.clear()
            while self._waiting:
                try:
                    log(self._waiting.popleft())
                except Exception:  # noqa: BLE001 - a handler of the application's: those after it are to have theirs
                    self.dropped += 1
                    signals.current().dropped("events", 1)


def log(event: Event) -> None:
    """Log one event."""
    where = getattr(event, "call", "") or event.step
    told = {"event": flat(event)}
    logging.getLogger(LOGGER).info("%s of run %s at %s", event.type, event.run_id, where, extra=told)


@asynccontextmanager
async def serving(place: str | None) -> AsyncGenerator[EventLog]:
    """Yield what logs events; to a file of its own as well, where there is to be one; see `written_to`.

    Raises:
        PerdureError: If that can't be written.
    """
    event_log = EventLog()
    with ExitStack() as stack:
        try:
            stack.enter_context(written_to(place))
        except OSError as error:
            raise PerdureError(f"PERDURE_EVENT_LOG is {place!r}: {error.strerror or error}.") from error
        try:
            yield event_log
        finally:
            await asyncio.to_thread(event_log.close)


@contextmanager
def written_to(place: str | None) -> Generator[None]:
    """Have events logged as lines of JSON to a file, `-` for stderr, while the block runs; None does nothing.

    Where the application's logging does not take them by itself, it gets none of them because of that.

    Raises:
        OSError: If the file can't be written.
    """
    if not place:
        yield
        return
    handler, logger = _handler(place), logging.getLogger(LOGGER)
    before = logger.level, logger.propagate
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        handler.close()


def _handler(place: str) -> logging.Handler:
    if place == "-":
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        handler = Lines(place)
    handler.setFormatter(JSONLines())
    return handler
