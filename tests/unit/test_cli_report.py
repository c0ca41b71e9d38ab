"""What `perdure show` says of a run, as a person reads it."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.api.failure.v1 import Failure

from perdure import events as ev
from perdure.budgets import Additions
from perdure.cli import report, story
from perdure.cli.standing import Attempt, Now
from perdure.messages import CallRecord
from perdure.policies import ToolSpec
from perdure.resuming import carried_on
from perdure.state import DoneEffect, Outcome
from perdure.wire import RunRequest, opening_state
from tests.unit.histories import NOW, History, own_failure


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


async def test_what_was_undone_before_a_run_was_resumed_is_shown_as_undone():
    history = History()
    state = opening_state(RunRequest(spec=history.spec, input="go"), "run", "e")
    state.records = [CallRecord(position="1.1", name="pay", arguments={}, status="ok")]
    state.effects = [DoneEffect(position="1.1", name="pay", key="k", order=1, status="undone", message="Paid back.")]
    state.outcome = Outcome(status="cancelled")
    await history.start(carried=carried_on(state, Additions()))
    text = shown(history)
    assert "  1.1   pay()\n        ok, undone\n" in text
    assert text.endswith("Undone\n  1.1   pay undone: Paid back.")


async def test_a_run_that_the_engine_has_forgotten_is_shown_as_one_of_the_archive():
    history = History()
    await history.start()
    now = Now([], None, forgotten=True)
    text = "\n".join(report.as_lines(history.projection, now, None, io.StringIO(), transcript=False))
    assert "Archive  the engine has forgotten it" in text
    assert report.as_data(history.projection, now, None, transcript=False)["archived"] is True
    assert "Archive" not in shown(history)


async def test_a_model_call_that_has_ended_is_not_shown_as_under_way():
    history = History()
    await history.start()
    await history.turn("look")
    assert "asked" not in shown(history)


@pytest.mark.parametrize(
    ("kind", "line", "status"),
    [
        ("budget", "model not asked: too little is left of the run's budget", "budget_exhausted"),
        ("price_unknown", "model not asked: its price is not known", "failed"),
        ("unauthorized", "model call failed (unauthorized)", "failed"),
    ],
)
async def test_why_the_model_gave_nothing_is_said_once_in_the_timeline(kind, line, status):
    history = History()
    await history.start()
    failed = {"scheduled_event_id": await history.ask_model(), "failure": own_failure("Why it is.", kind)}
    await history.add("activity_task_failed", failed)
    result = history.projection.result()
    assert (result.status, result.reason) == (status, "Why it is.")
    failure = Failure(message="Why it is.")
    failure.application_failure_info.details.CopyFrom(await history.payloads(result))
    await history.add("workflow_execution_failed", {"failure": failure})
    timeline = shown(history).partition("Timeline")[2]
    assert line in timeline
    assert timeline.count("Why it is.") == 1


async def test_what_is_meant_for_the_model_about_a_staged_call_is_not_told_to_people():
    history = History()
    history.spec = history.spec.model_copy(
        update={"tools": [ToolSpec(name="wire", description="Wire.", parameters={}, defer=True)]}
    )
    await history.start()
    await history.turn("wire")
    assert "to be executed once approved, after the answer" in shown(history)
    await history.add("workflow_execution_canceled")
    text = shown(history)
    assert "  1.1   wire()\n        staged\n        never executed" in text
    assert "Do not ask for it again" not in text


def test_what_is_added_reads_as_one_or_as_several():
    resumed = ev.Resumed(type="resumed", position="1.1", run_id="r", time=NOW, by="ann", via="update", add=Additions())
    said = [
        story.what(resumed.model_copy(update={"add": Additions(steps=steps)}), io.StringIO()) for steps in (0, 1, 2)
    ]
    assert said == [
        "resumed by ann (update)",
        "resumed by ann (update) with 1 step added",
        "resumed by ann (update) with 2 steps added",
    ]
