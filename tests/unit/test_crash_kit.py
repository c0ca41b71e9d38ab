"""What the crash kit counts, and where it has a worker die."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.events import ModelFinished, ToolFinished
from perdure.messages import CallRecord, RunResult, Usage
from perdure.people_events import ApprovalRequested
from perdure.testing.crash import Counts, Judged, Report
from perdure.testing.crash.playing import Course, Played, judge
from perdure.testing.crash.stage import Stage

NOW = datetime(2026, 12, 1, tzinfo=UTC)
COURSE = Course(
    effects=["pay A"],
    done={"1.1": Counter({"pay A": 1})},
    made={"1.1": Counter({"pay A": 1})},
    status="completed",
)


def played(effects=("pay A",), status: Any = "ok", asked=1, turns=1, tokens=7, ended: Any = "completed"):
    said: dict[str, Any] = {"time": NOW, "run_id": "r"}
    request = ApprovalRequested.model_construct(type="approval_requested", call="1.1", **said)
    finished = ToolFinished.model_construct(type="tool_finished", call="1.1", status=status, **said)
    turn = ModelFinished.model_construct(type="model_finished", usage=Usage(input_tokens=7), **said)
    record = CallRecord(position="1.1", name="pay", status=status)
    result = RunResult(run_id="r", status=ended, calls=[record], steps=turns, usage=Usage(input_tokens=tokens))
    return Played("r", result, "", [turn, *[request] * asked, finished], ["1.1"], list(effects))


@pytest.mark.parametrize(
    ("what", "counts"),
    [
        (played(), Counts()),
        (played(effects=["pay A", "pay A"]), Counts(duplicates=1)),
        (played(effects=[]), Counts(lost=1)),
        (played(effects=[], status="error"), Counts()),
        (played(status="open"), Counts(orphans=1, approvals=1)),
        (played(asked=2), Counts(approvals=1)),
        (played(status="denied"), Counts(approvals=1)),
        (played(ended="failed"), Counts(wedged=1)),
        (played(turns=0), Counts(drift=1)),
        (played(tokens=8), Counts(drift=1)),
        (Played("r", None, "TimeoutError: ", effects=["pay A"]), Counts(wedged=1)),
    ],
)
def test_what_went_wrong_is_counted_once_and_what_is_told_honestly_is_not(what, counts):
    assert judge(what, COURSE) == counts


def test_person_says_done_only_where_the_ledger_has_what_the_call_does():
    assert [
        COURSE.outcome(call, effects) for call, effects in [("1.1", ["pay A"]), ("1.1", []), ("9.9", ["pay A"])]
    ] == [
        "done",
        "retry",
        "retry",
    ]


def test_report_fails_with_the_run_and_the_point_where_its_worker_was_killed():
    report = Report(
        (Judged("a", "each", Counts()), Judged("b", "each", Counts(lost=2), "run: timer 1", story=("1-1",)))
    )
    assert report.counts == Counts(lost=2)
    with pytest.raises(AssertionError, match=r"(?s)b \(each, killed at 'run: timer 1'\): lost effects: 2.*1-1"):
        report.assert_sound()


async def test_worker_dies_once_at_its_point_and_executions_are_told_apart():
    async def says(stage, execution, name):
        host, port = stage.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        said = {"workflow": "crash-1/2.1", "execution": execution, "name": name, "call": "", "moment": ""}
        writer.write(json.dumps(said).encode() + b"\n")
        answer = json.loads(await reader.readline())
        writer.close()
        return answer

    async with Stage.open() as stage:
        stage.expect("crash-1", "run/2.1 #2: timer 1 arrives")
        answers = [await says(stage, execution, "timer 1 arrives") for execution in ("x", "y", "y")]
        assert answers == [{}, {"die": True}, {}]
        assert stage.points["crash-1"] == ["run/2.1: timer 1 arrives", "run/2.1 #2: timer 1 arrives"]
        assert stage.kills["crash-1"] == 1
