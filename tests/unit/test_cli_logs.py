"""What a worker logs: one line for what is nothing unusual, and not the same one over and over."""

import logging

from perdure.cli.processes import _Format, _Outages


def record(name, text, created=1000.0, **more):
    made = logging.LogRecord(name, logging.WARNING, "", 0, text, (), None)
    made.created = created
    for key, value in more.items():
        setattr(made, key, value)
    return made


def raised(error):
    try:
        raise error  # noqa: TRY301 - this is what it is for
    except Exception as caught:  # noqa: BLE001 - any
        return (type(caught), caught, caught.__traceback__)


def test_a_server_that_is_away_is_spoken_of_once_in_half_a_minute():
    outages, text = _Outages(), "gRPC call poll retried 6 times Status { code: Unavailable }"
    first = record("temporalio.core", text, 1000.0)
    assert outages.filter(first)
    assert first.getMessage() == "The Temporal server does not answer; trying again until it does."
    assert not outages.filter(record("temporalio.core", text, 1029.0))
    assert outages.filter(record("temporalio.core", "something else", 1029.0))
    assert outages.filter(record("temporalio.core", text, 1031.0))


def test_a_failed_attempt_is_one_line_without_a_traceback():
    info = raised(OSError("refused\nby \x1b[31mthe other side"))
    activity = {"activity_type": "perdure.model", "workflow_id": "r1", "attempt": 3}
    line = _Format().format(record("temporalio.activity", "failed", exc_info=info, temporal_activity=activity))
    assert line.endswith(r"perdure.model of run r1, attempt 3: refused by \x1b[31mthe other side")


def test_a_defect_keeps_its_traceback():
    info = raised(ZeroDivisionError())
    assert "Traceback" in _Format().format(record("perdure.worker", "failed", exc_info=info))
