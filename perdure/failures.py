"""What a lost or failed activity or run means, in words for a person. Pure; shared by workflow and projection."""

from __future__ import annotations

from datetime import datetime

from temporalio import exceptions
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimeoutType,
    WorkflowAlreadyStartedError,
)

from perdure import budgets, outcomes, pressure, turns
from perdure import state as states
from perdure.messages import RunResult, Usage
from perdure.policies import ToolSpec
from perdure.results import short

_KNOWN = {"NotFoundError", "ToolError", "KeyMissing"}
"""Types of errors after which nothing was done: no such activity, the tool says so, or its input can't be decrypted."""


WORKER_LOST = "The worker that executed it was lost."


def explain(error: BaseException) -> str:
    """Return one sentence about `error`, the failure of an activity."""
    cause = error.cause if isinstance(error, ActivityError) and error.cause else error
    if isinstance(cause, exceptions.TimeoutError):
        if cause.type == TimeoutType.HEARTBEAT:
            return WORKER_LOST
        if cause.type == TimeoutType.SCHEDULE_TO_CLOSE:
            return "The time of the run was up before it ended."
        return "It did not end in time."
    if isinstance(cause, CancelledError):
        return "It was cancelled."
    if isinstance(cause, ApplicationError):
        return cause.message
    return f"{type(cause).__name__}: {cause}"


def error_type(error: BaseException) -> str:
    """Return a short word for `error`, such as `timeout` or an application error's own type."""
    cause = error.cause if isinstance(error, ActivityError) and error.cause else error
    if isinstance(cause, ApplicationError):
        return cause.type or "error"
    if isinstance(cause, exceptions.TimeoutError):
        return turns.BUDGET if cause.type == TimeoutType.SCHEDULE_TO_CLOSE else "timeout"
    return "cancelled" if isinstance(cause, CancelledError) else "error"


def _may_have_begun(call: states.CallState, tool: ToolSpec) -> bool:
    """Return whether a cancelled call may have had an effect: our wrapper reports, except between two attempts."""
    return bool(tool.remote) or call.again or tool.tries > 1


def fold_model_failure(state: states.RunState, error: BaseException) -> None:
    """Take the final failure of a model call into the state, with the tokens that it has cost."""
    cause = error.cause if isinstance(error, ActivityError) and error.cause else error
    if isinstance(cause, CancelledError):
        turns.interrupt(state)
        return
    details = cause.details if isinstance(cause, ApplicationError) else ()
    budgets.waste(state, wasted(error))
    window = next((detail for detail in details[1:] if isinstance(detail, int)), None)
    turns.fail(state, error_type(error), explain(error), window)


def wasted(error: BaseException) -> Usage:
    """Return the tokens that a failed model call has cost."""
    cause = error.cause if isinstance(error, ActivityError) and error.cause else error
    if isinstance(cause, CancelledError):
        return Usage(estimated=True)
    details = cause.details if isinstance(cause, ApplicationError) else ()
    return Usage.model_validate(details[0]) if details else Usage()


def fold_compaction_failure(state: states.RunState, error: BaseException) -> None:
    """Take in that the context could not be compacted, and what that has cost."""
    cause = error.cause if isinstance(error, ActivityError) and error.cause else error
    if isinstance(cause, ApplicationError) and cause.details:
        budgets.waste(state, Usage.model_validate(cause.details[0]))
    elif isinstance(cause, CancelledError):
        state.unpriced = True
        budgets.waste(state, Usage(estimated=True))
    pressure.give_up(state)


def fold_failure(
    state: states.RunState, call: states.CallState, tool: ToolSpec, error: BaseException, now: datetime
) -> None:
    """Take the failure of a tool's activity into the state: the wrapper itself could not report."""
    cause = error.cause if isinstance(error, ActivityError) and error.cause else error
    if isinstance(cause, CancelledError) and (tool.effect == "read" or not _may_have_begun(call, tool)):
        outcomes.fold_cancelled(state, call)
    elif isinstance(cause, ApplicationError) and cause.type in _KNOWN:
        result = outcomes.result_of(call, "error", cause.message, error_type=error_type(cause))
        outcomes.close(state, call, result)
    else:
        outcomes.lost(state, call, explain(cause), now, tool.timeout)


# -- runs that are calls of another one --------------------------------------------------------------------


def partial_result(error: BaseException) -> RunResult | None:
    """Return what a run gave that has failed, as far as it says so itself."""
    cause = error.cause if isinstance(error, ChildWorkflowError) else error
    details = cause.details if isinstance(cause, ApplicationError) else ()
    try:
        return RunResult.model_validate(details[0]) if details else None
    except ValueError:
        return None


def end_of_run(error: BaseException) -> tuple[str, str]:
    """Return in a word, and as the rest of a sentence, how a run ended that says nothing itself."""
    cause = error.cause if isinstance(error, ChildWorkflowError) and error.cause else error
    match cause:
        case CancelledError():
            return "cancelled", "was cancelled."
        case TerminatedError():
            return "terminated", "was terminated."
        case WorkflowAlreadyStartedError():
            return "already_there", "is another one, which is there already."
        case _:
            return "failed", f"failed: {short(explain(cause))}"
