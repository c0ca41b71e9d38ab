"""Events as logs: flat, redacted, once each, and whatever an application has set up for its logs goes on working."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import events as ev
from perdure.messages import ContextHealth, Usage
from perdure.telemetry import event_log, signals
from perdure.telemetry.event_log import LOGGER, EventLog, JSONLines, flat, shown

COMMON: dict[str, Any] = {"run_id": "r1", "position": "5.0", "time": datetime(2026, 1, 1, tzinfo=UTC), "agent": "a"}
REPLY = ev.ModelFinished(
    type="model_finished",
    model="openai:small",
    text="Call 13800138000.",
    usage=Usage(input_tokens=7, output_tokens=2),
    cost_usd=Decimal("0.0012"),
    context=ContextHealth(tokens=7, window=100),
    duration=timedelta(seconds=1.5),
    **COMMON,
)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The events' logger, as it was before afterwards."""
    logger = logging.getLogger(LOGGER)
    level, handlers = logger.level, list(logger.handlers)
    yield logger
    logger.setLevel(level)
    logger.handlers = handlers


def test_event_is_flat_its_units_are_in_the_names_and_what_anybody_said_is_redacted():
    told = flat(REPLY)
    assert not any(isinstance(value, dict) for value in told.values())
    assert (told["usage_input_tokens"], told["cost_usd"], told["duration_seconds"]) == (7, 0.0012, 1.5)
    assert (told["context_tokens"], told["agent"], told["position"]) == (7, "a", "5.0")
    assert told["text"] == "Call 138****8000."
    json.dumps(told)


def test_arguments_are_redacted_by_the_names_of_their_fields_and_are_one_text():
    started = ev.ToolStarted(
        type="tool_started",
        call="1.1",
        name="book",
        effect="unsafe",
        arguments={"passenger_name": "John Smith", "seat": "12A"},
        **COMMON,
    )
    arguments = flat(started)["arguments"]
    assert json.loads(arguments)["seat"] == "12A"
    assert "Smith" not in arguments


def test_what_is_not_known_is_left_out_and_positions_and_ids_stay_whole():
    given: dict[str, Any] = {**COMMON, "run_id": "13800138000"}
    told = flat(ev.ModelFinished(type="model_finished", model="m", **given))
    assert "cost_usd" not in told
    assert "duration_seconds" not in told
    assert told["run_id"] == "13800138000"


@pytest.mark.parametrize("kind", ev.EventBase.__subclasses__())
def test_copy_of_an_event_has_the_fields_of_the_event(kind):
    assert set(shown(REPLY)) == set(ev.ModelFinished.model_fields)
    assert kind.model_fields.keys() >= ev.EventBase.model_fields.keys()


def test_events_are_records_of_a_logger_that_the_application_sets_up(logger, caplog):
    log = EventLog()
    with caplog.at_level(logging.INFO, LOGGER):
        log.take([REPLY])
        log.close()
    (record,) = caplog.records
    assert record.getMessage() == "model_finished of run r1 at 0"
    assert record.event["type"] == "model_finished"
    line = json.loads(JSONLines().format(record))
    assert (line["logger"], line["level"], line["type"], line["text"]) == (
        *(LOGGER, "INFO", "model_finished"),
        "Call 138****8000.",
    )


def test_formatter_writes_other_records_too():
    record = logging.makeLogRecord({"name": "my.app", "levelname": "ERROR", "msg": "It %s.", "args": ("broke",)})
    try:
        raise ValueError("why")  # noqa: TRY301 - this is what it is for
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = json.loads(JSONLines().format(record))
    assert (line["message"], line["logger"]) == ("It broke.", "my.app")
    assert "ValueError: why" in line["exception"]


def test_nothing_happens_where_nobody_wants_events(logger):
    logger.setLevel(logging.WARNING)
    threads, log = threading.active_count(), EventLog()
    log.take([REPLY])
    assert threading.active_count() == threads
    log.close()


def test_handler_that_hangs_delays_nothing_and_what_is_dropped_is_counted(logger):
    gate, given = threading.Event(), list[str]()

    class Hanging(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gate.wait(20)
            given.append(record.getMessage())

    logger.addHandler(Hanging())
    logger.setLevel(logging.INFO)
    log = EventLog(most=5)
    log.take([REPLY] * 50)
    assert log.dropped >= 44
    gate.set()
    log.close()
    assert 5 <= len(given) <= 6


def test_file_gets_one_line_for_each_event_and_handlers_that_want_none_get_none(logger, tmp_path, caplog):
    path, log = tmp_path / "logs" / "events.jsonl", EventLog()
    with caplog.at_level(logging.WARNING), event_log.written_to(str(path)):
        log.take([REPLY, REPLY])
        log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["position"] for line in lines] == ["5.0", "5.0"]
    assert "13800138000" not in path.read_text()
    assert not caplog.records
    assert not logger.isEnabledFor(logging.INFO)
    assert logger.propagate


def test_disk_that_is_full_costs_events_and_one_warning(logger, caplog):
    dropped = Dropped()
    log = EventLog()
    with signals.using(dropped), caplog.at_level(logging.WARNING), event_log.written_to("/dev/full"):
        log.take([REPLY] * 5)
        log.close()
    assert dropped.events == 5
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "events can't be written to /dev/full: No space left on device; 1 are lost by now"


class Dropped(signals.Signals):
    """Counts what was dropped."""

    events = 0

    def dropped(self, what: str, number: int) -> None:
        self.events += number


def test_half_a_line_costs_no_other_and_a_file_that_was_moved_away_begins_anew(logger, tmp_path, monkeypatch):
    path, whole = tmp_path / "events.jsonl", os.write
    halves = [5, None, None, None]
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[: halves.pop(0)]))
    lines = event_log.Lines(str(path))
    for _ in range(3):
        lines.emit(logging.makeLogRecord({"msg": "a word or two"}))
    assert path.read_text().splitlines() == ["a wor", "a word or two", "a word or two"]
    path.rename(tmp_path / "old.jsonl")
    lines.emit(logging.makeLogRecord({"msg": "after"}))
    lines.close()
    assert path.read_text() == "after\n"


def test_handler_that_raises_costs_its_event_alone(logger):
    given: list[str] = []

    class Raising(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            given.append(record.getMessage())
            raise ValueError("no")

    logger.addHandler(Raising())
    logger.setLevel(logging.INFO)
    log = EventLog()
    log.take([REPLY] * 3)
    log.close()
    assert (len(given), log.dropped) == (3, 3)


def test_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(OSError, match="directory"), event_log.written_to(str(tmp_path)):
        pass
