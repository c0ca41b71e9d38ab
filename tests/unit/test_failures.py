"""What a failed activity means for a call, by its effect."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState, TimeoutType

from perdure.failures import error_type, explain, fold_failure
from perdure.messages import AssistantMessage, ToolCall
from perdure.outcomes import start
from perdure.policies import AgentSpec, Remote, ToolSpec
from perdure.reports import ModelTurn
from perdure.state import CallState, CallStatus, RunState, begin
from perdure.turns import fold_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT = timedelta(seconds=7)
LOST = exceptions.TimeoutError("heartbeat", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[])
LATE = exceptions.TimeoutError("late", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[])
ABSENT = ApplicationError("Activity 'x' is not registered", type="NotFoundError")


def of_activity(cause: BaseException) -> ActivityError:
    """Return the error as a workflow sees it."""
    error = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="w",
        activity_type="t",
        activity_id="1.1",
        retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )
    error.__cause__ = cause
    return error


def fold(effect: str, error: BaseException, *, again: bool = False, **options) -> tuple[RunState, CallState]:
    tool = ToolSpec.model_validate(
        {"name": "x", "description": "X.", "parameters": {}, "effect": effect, "timeout": TIMEOUT, **options}
    )
    state = begin("run", AgentSpec(name="a", model="m:m", tools=[tool]), "go", None, "e")
    turn = ModelTurn(message=AssistantMessage(role="assistant", calls=[ToolCall(id="c", name="x")]))
    fold_turn(state, turn, NOW)
    call = state.calls[0]
    call.again = again
    start(state, call)
    fold_failure(state, call, tool, error, NOW)
    return state, call


@pytest.mark.parametrize(
    ("error", "said", "kind"),
    [
        (LOST, "The worker that executed it was lost.", "timeout"),
        (LATE, "It did not end in time.", "timeout"),
        (CancelledError(), "It was cancelled.", "cancelled"),
        (ApplicationError("No seats.", type="sold_out"), "No seats.", "sold_out"),
        (ApplicationError("No seats."), "No seats.", "error"),
        (ValueError("odd"), "ValueError: odd", "error"),
    ],
)
def test_failure_is_explained_in_a_sentence_and_a_word(error, said, kind):
    assert (explain(error), error_type(error)) == (said, kind)
    assert (explain(of_activity(error)), error_type(of_activity(error))) == (said, kind)


@pytest.mark.parametrize("error", [LOST, LATE, ApplicationError("boom", type="OSError"), of_activity(LOST)])
def test_lost_read_is_an_error_that_may_be_tried_again(error):
    _, call = fold("read", error)
    assert call.result
    assert (call.result.status, call.result.error_type) == ("error", "unavailable")
    assert "tried again" in (call.result.suggestion or "")


@pytest.mark.parametrize("effect", ["unsafe", "idempotent"])
@pytest.mark.parametrize("error", [LOST, LATE, ApplicationError("boom", type="OSError"), of_activity(LATE)])
@pytest.mark.reported(43)
def test_lost_effect_is_in_doubt_and_a_probe_believed_only_after_its_deadline(effect, error):
    _, call = fold(effect, error)
    assert call.status is CallStatus.IN_DOUBT
    assert call.doubt
    assert call.doubt.believed_from == NOW + TIMEOUT
    assert fold(effect, error, probe=True)[1].status is CallStatus.DOUBTED


@pytest.mark.parametrize("effect", ["read", "unsafe", "idempotent"])
def test_activity_that_nobody_knows_did_nothing(effect):
    state, call = fold(effect, of_activity(ABSENT))
    assert call.result
    assert (call.result.status, call.result.error_type) == ("error", "NotFoundError")
    assert not state.open_calls


def test_tool_elsewhere_says_by_its_errors_type_that_nothing_was_done():
    _, call = fold(
        "unsafe", ApplicationError("Sold out.", type="ToolError"), remote=Remote(activity="x", task_queue="q")
    )
    assert call.result
    assert (call.result.status, call.result.message) == ("error", "Sold out.")


@pytest.mark.parametrize("effect", ["read", "unsafe"])
def test_call_that_was_cancelled_before_it_began_did_nothing(effect):
    _, call = fold(effect, of_activity(CancelledError()))
    assert call.result
    assert call.result.status == "cancelled"


@pytest.mark.parametrize(
    ("effect", "options"),
    [
        ("unsafe", {"again": True}),
        ("idempotent", {}),
        ("unsafe", {"remote": Remote(activity="x", task_queue="q")}),
        ("idempotent", {"remote": Remote(activity="x", task_queue="q")}),
    ],
)
def test_cancelled_call_of_which_an_earlier_attempt_may_have_begun_is_in_doubt(effect, options):
    _, call = fold(effect, of_activity(CancelledError()), **options)
    assert call.status is CallStatus.IN_DOUBT
