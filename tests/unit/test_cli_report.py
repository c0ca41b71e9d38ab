"""What `perdure show` says of a run, as a person reads it."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

from perdure.cli import report
from perdure.cli.standing import Attempt, Now
from tests.unit.histories import History


def shown(history: History, *under_way: Attempt) -> str:
    now = Now(list(under_way), None)
    return "\n".join(report.as_lines(history.projection, now, None, io.StringIO(), transcript=False))


async def test_a_model_call_under_way_is_shown_with_its_model_since_when_and_what_failed_before():
    history = History()
    await history.start()
    await history.ask_model()
    since = datetime.now(UTC) - timedelta(seconds=12.5)
    text = shown(history, Attempt("model call", 1, "", None, since))
    assert text.splitlines()[-1].endswith("model m:m asked")
    assert "model call: under way for 12.5 s" in text
    text = shown(history, Attempt("model call", 3, "No answer.", None, since))
    assert "model call: attempt 3, under way for 12.5 s, last failure: No answer." in text
    soon = datetime.now(UTC) + timedelta(minutes=5)
    assert "last failure: No answer; next in" in shown(history, Attempt("model call", 4, "No answer.", soon))
    assert "model call: waits for a worker" in shown(history, Attempt("model call", 1, "", None))


async def test_a_model_call_that_has_ended_is_not_shown_as_under_way():
    history = History()
    await history.start()
    await history.turn("look")
    assert "asked" not in shown(history)
