"""What runs of a schedule know of the one before, and how times are said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import ScheduleCalendarSpec, ScheduleIntervalSpec, ScheduleRange, ScheduleSpec

from perdure import RunResult
from perdure.cli.output import Misuse
from perdure.cli.schedules import read_duration
from perdure.errors import ScheduleError
from perdure.messages import ImagePart, Private, TextPart
from perdure.policies import AgentSpec, VariablesSpec
from perdure.recurring import NOTHING, Recurring, filled, is_of, rendered, wrong
from perdure.state import RunState
from perdure.times import Rules, When, check_id, when_of
from perdure.wire import RunRequest, opening_state

AT = datetime(2026, 12, 1, 8, tzinfo=UTC)
LAST = RunResult(
    run_id="daily-1",
    status="completed",
    text="All quiet.",
    output={"alarms": [{"level": 2}], "note": None},
    variables={"seen": 7, "gone": 1},
    private=[Private(kind="phone", value="138")],
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Go on from: {{last.text}}", "Go on from: All quiet."),
        ("{{ last.run_id }}/{{last.status}}", "daily-1/completed"),
        ("{{last.output}}", '{"alarms":[{"level":2}],"note":null}'),
        ("{{last.output.alarms.0.level}}{{last.output.note}}{{last.output.alarms.5}}", "2"),
        ("{{last.variables.seen}} at {{scheduled_at}}", "7 at 2026-12-01T08:00:00+00:00"),
        ("{{other}} {last.text} {{last .text}}", "{{other}} {last.text} {{last .text}}"),
    ],
)
def test_marks_stand_for_what_the_last_run_gave(text, said):
    assert filled(text, LAST, AT) == said
    assert wrong(text) == ""


def test_what_a_mark_stands_for_is_no_mark_itself():
    assert filled("{{last.text}}", LAST.model_copy(update={"text": "{{last.run_id}}"}), AT) == "{{last.run_id}}"


def test_the_first_run_is_told_that_there_was_none():
    parts: Any = [TextPart(kind="text", text="So far: {{last.text}}"), ImagePart(kind="image", url="data:x")]
    assert filled(parts, None, None) == [TextPart(kind="text", text=f"So far: {NOTHING}"), parts[1]]


@pytest.mark.parametrize("text", ["{{last}}", "{{last.words}}", "{{last.text.0}}", "{{last.}}"])
def test_a_mark_that_means_nothing_is_refused(text):
    assert wrong(text).startswith(f"{text} says nothing of the last run; known are {{{{last.text}}}}, ")


def request(**more: Any) -> RunRequest:
    declared = VariablesSpec(json_schema={"properties": {"seen": {}, "new": {}}})
    spec = AgentSpec(name="a", model="m:m", variables=declared)
    return RunRequest(spec=spec, input="{{last.text}}", variables={"seen": 0, "new": 2}, **more)


def test_variables_are_kept_where_the_schedule_says_so_and_the_agent_still_has_them():
    kept = rendered(request(recurring=Recurring(schedule="daily", keep_variables=True)), LAST, AT)
    assert (kept.input, kept.variables) == ("All quiet.", {"seen": 7, "new": 2})
    assert kept.private == LAST.private, "the model is shown handles of it, as that of the last run was"
    assert rendered(request(recurring=Recurring(schedule="daily")), LAST, AT).variables == {"seen": 0, "new": 2}


def test_runs_of_no_schedule_and_those_that_go_on_are_left_alone():
    plain = request()
    assert rendered(plain, LAST, AT) is plain
    state = RunState(run_id="r", spec=plain.spec, limits=plain.spec.limits)
    resumed = request(recurring=Recurring(schedule="daily"), carried=state)
    assert rendered(resumed, LAST, AT) is resumed


def test_the_state_says_which_schedule_has_begun_it():
    assert opening_state(request(recurring=Recurring(schedule="daily")), "r", "e").schedule == "daily"
    assert opening_state(request(), "r", "e").schedule == ""


def test_the_runs_of_a_schedule_are_known_by_their_ids():
    assert is_of("daily", "daily-2026-12-01T08:00:00Z")
    assert not is_of("daily", "daily-report-2026-12-01T08:00:00Z")
    assert not is_of("daily", "daily-2026")


# -- times -------------------------------------------------------------------------------------------------


def ranges(*numbers: Any) -> list[ScheduleRange]:
    return [ScheduleRange(*(one if isinstance(one, tuple) else (one, one))) for one in numbers]


def test_a_calendar_is_told_as_the_cron_expression_that_it_is():
    calendar = ScheduleCalendarSpec(
        minute=ranges(0, 30),
        hour=ranges((8, 18, 2)),
        day_of_month=ranges((1, 31)),
        month=ranges((1, 12)),
        day_of_week=ranges((1, 5)),
    )
    when = when_of(ScheduleSpec(calendars=[calendar], time_zone_name="Europe/Oslo"))
    assert when.cron == ("0,30 8-18/2 * * 1-5",)
    assert str(when) == "cron 0,30 8-18/2 * * 1-5 (Europe/Oslo)"
    assert str(when_of(ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=2))]))) == "every 2:00:00"


def test_a_schedule_needs_times_rules_and_an_id_that_can_be():
    with pytest.raises(ScheduleError, match=r"needs times"):
        When()
    with pytest.raises(ScheduleError, match=r"at least 1 s"):
        When(every=timedelta())
    odd: Any = "sometimes"
    with pytest.raises(ScheduleError, match=r"overlap='sometimes' can't be; known are skip, "):
        Rules(odd).policy()
    with pytest.raises(ScheduleError, match=r"'a b' can't be a schedule"):
        check_id("a b")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("1d", 86_400), ("2w", 1_209_600)]
)
def test_durations_are_read(text, seconds):
    assert read_duration(text, "--every").total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "2x", "h", "1.5h", "-1h", "9" * 30 + "w"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(Misuse, match=r"--every takes a duration such as 15m, 2h, 1h30m or 1d"):
        read_duration(text, "--every")
