"""What people say to a run: whether it takes, and what it does to the state. Pure.

Decisions about calls are in `approvals`; here is the rest, and the way in for all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, assert_never, cast

from pydantic import ValidationError

from perdure import approvals
from perdure.budgets import Additions
from perdure.decisions import Answer, Cancellation, Decision, Pause, Receipt, Saying, Settlement
from perdure.messages import Data
from perdure.outcomes import close
from perdure.parsing import parse_json
from perdure.results import report_of_value, short
from perdure.state import CallStatus, RunState

Via = Literal["update", "signal"]


class Resumption(Data):
    """Let an open run go on, or have more.

    Attributes:
        add: Raises its limits.
        id: As for `Decision`.
    """

    add: Additions = Additions()
    by: str = "unknown"
    reason: str = ""
    id: str = ""


Wanted = Decision | Settlement | Answer | Pause | Resumption | Saying | Cancellation

KINDS: dict[str, type[Wanted]] = {
    "decide": Decision,
    "settle": Settlement,
    "answer": Answer,
    "pause": Pause,
    "resume": Resumption,
    "say": Saying,
    "cancel": Cancellation,
}
"""What each update and signal brings, by its name."""


def name_of(wanted: Wanted) -> str:
    """Return what `wanted` is called where it is told of."""
    if isinstance(wanted, Decision):
        return "approve" if wanted.approve else "deny"
    return next(name for name, kind in KINDS.items() if isinstance(wanted, kind))


def about(wanted: Wanted, call: str) -> Wanted:
    """Return `wanted` with the call that it turned out to mean, if it is about one."""
    return wanted.model_copy(update={"call": call}) if isinstance(wanted, Decision | Settlement | Answer) else wanted


def check(state: RunState, wanted: Wanted) -> Receipt:
    """Return whether `wanted` would take: `accepted`, or the reason why not. Changes nothing.

    Nothing here depends on whether an activity has ended yet: a signal and an activity's end may reach the workflow
    in another order than the history has them.
    """
    if isinstance(wanted, Decision | Settlement):
        return approvals.check(state, wanted)
    if wanted.id and wanted.id in state.taken:
        return Receipt(accepted=True, reason="repeated")
    if isinstance(wanted, Answer):
        return _check_answer(state, wanted)
    reason, message = _why_not(state, wanted)
    if not reason and isinstance(wanted, Saying) and _waits(state, wanted):
        return Receipt(accepted=True, reason=NEXT_TURN, message="It is kept for the next turn of the session.")
    return Receipt(accepted=not reason, reason=reason, message=short(message))


NEXT_TURN = "next_turn"
"""A receipt's reason: what was said is kept for the session's next turn."""


def _waits(state: RunState, saying: Saying) -> bool:
    """Return whether it is kept for the next turn: in its last turn of the model, a run is told nothing any more."""
    return saying.next or state.closing


_LAST_TURN = "The run takes its last turn: resume it with more when it has ended."


def _why_not(state: RunState, wanted: Pause | Resumption | Saying | Cancellation) -> tuple[str, str]:
    match wanted:
        case Pause() if state.paused:
            return "already_paused", f"The run is paused already, by {state.paused.by}."
        case Cancellation() if state.cancelling:
            return "already_cancelled", f"The run is cancelled already, by {state.cancelling.by}."
        case Saying(next=True) if not state.session:
            return "no_session", "The run is no turn of a session: there is no next turn that could begin with it."
        case Saying() if state.closing and not state.session:
            return "closing", _LAST_TURN
        case Saying(content=content) if not content or (isinstance(content, str) and not content.strip()):
            return "empty", "The message is empty."
        case Resumption() if not (state.paused or state.short):
            if state.closing:
                return "closing", _LAST_TURN
            more = wanted.add != Additions()
            return ("", "") if more else ("not_paused", "The run is not paused, and nothing is added to its limits.")
        case _:
            return "", ""


def _check_answer(state: RunState, answer: Answer) -> Receipt:
    call = state.find(answer.call, CallStatus.QUESTION)
    if call is None:
        return approvals.unknown(state, answer.call)
    if call.status is CallStatus.QUESTION and state.shape and not answer.text.strip():
        return Receipt(accepted=False, call=call.position, reason="empty", message="The answer is empty.")
    if call.status is CallStatus.QUESTION:
        return Receipt(accepted=True, call=call.position)
    text = f"Call {call.position} asks nothing: {approvals.standing(call)}."
    return Receipt(accepted=False, call=call.position, reason="not_waiting", message=text)


def apply(state: RunState, wanted: Wanted, via: Via, now: datetime) -> None:
    """Take what `check` accepted into the state. Edited arguments have been judged before."""
    match wanted:
        case Decision():
            approvals.apply_decision(state, wanted, via, now)
            return
        case Settlement():
            approvals.apply_settlement(state, wanted)
            return
        case Answer():
            _answer(state, wanted)
        case Pause():
            state.paused = wanted
        case Resumption():
            _resume(state, wanted.add)
        case Saying() if _waits(state, wanted):
            state.queued.append(wanted)
        case Saying():
            state.said.append(wanted)
            if wanted.now and state.generating:
                state.generating.interrupted = True
        case Cancellation():
            state.cancelling = wanted
        case _:
            assert_never(wanted)
    state.taken.extend([wanted.id] if wanted.id else [])


def cancelled_because(state: RunState, cause: str) -> str:
    """Return why a run was cancelled: as whoever asked for it has said, else as the engine was told.

    The engine keeps what it is told as plain text, and is not told everything.
    """
    asked = state.cancelling
    return (asked.reason or f"cancelled by {asked.by}") if asked else cause


def _answer(state: RunState, answer: Answer) -> None:
    call = state.find(answer.call, CallStatus.QUESTION)
    assert call is not None  # noqa: S101 - `check` found it
    tool = state.tool_of(call)
    assert tool is not None  # noqa: S101 - unknown tools were refused
    given = report_of_value(answer.text, call.call.id, tool.name, tool.result_limit, None).result
    close(state, call, approvals.referring(given, answer))


def _resume(state: RunState, add: Additions) -> None:
    """Lift the pause. At a limit: with more it goes on, without it takes its last turn."""
    more = add != Additions()
    state.limits = add.to(state.limits)
    state.conceded = not more and (state.conceded or bool(state.short))
    state.paused, state.short = None, ""
    if more:
        state.borrowing = state.borrowing.model_copy(update={"unfit": False})
    if more and state.generating:
        state.generating.topped_up = True
    if more and state.outcome and state.outcome.status == "budget_exhausted" and not state.closing:
        state.outcome = None


SHORT = "short"
"""The memo in which a run records that it has paused itself, and at which limit."""


def run_short(state: RunState, limit: str) -> None:
    """Pause at a limit, until a person resumes the run."""
    state.short = limit


# -- plain signals, from anybody's hand --------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """How a signal is written: its kind, what its name says already, and what a text alone stands for."""

    kind: type[Wanted]
    text: str
    given: dict[str, Any] = field(default_factory=dict[str, Any])
    example: str = '{"call": "2.1"}'


_FORMS = {
    "approve": _Form(Decision, "call", {"call": "", "approve": True}),
    "deny": _Form(Decision, "call", {"call": "", "approve": False}),
    "decide": _Form(Decision, "call", {"call": ""}),
    "settle": _Form(Settlement, "call", {"call": ""}),
    "answer": _Form(Answer, "text", {}, '{"text": "Yes."}'),
    "say": _Form(Saying, "content", {}, '{"content": "Hurry."}'),
    "pause": _Form(Pause, "reason", {}, '{"by": "Ann"}'),
    "resume": _Form(Resumption, "reason", {}, '{"add": {"steps": 5}}'),
    "cancel": _Form(Cancellation, "reason", {}, '{"reason": "enough"}'),
}


def read_signal(name: str, arguments: list[bytes]) -> Wanted | str:
    """Return what a signal means, or why it can't be understood.

    Each takes a JSON object of the fields of its kind, a JSON string as its main field, or nothing:
    `approve` and `deny` take `{"call": "2.1", "by": "Ann", "reason": "…", "hash": "…", "arguments": {…}}`, or the
    call as a string, or nothing where one call waits; `settle` takes `{"call": "2.1", "outcome": "done"}`; `say`
    takes a text or `{"content": "…", "now": true}`; `answer` a text or `{"call": "2.1", "text": "…"}`; `resume`
    nothing or `{"add": {"steps": 5}}`; `pause` and `cancel` nothing, or why.
    """
    form = _FORMS.get(name)
    if form is None:
        return short(f"There is no signal {name!r}; known are {', '.join(_FORMS)}.")
    if len(arguments) > 1:
        return f"Signal {name!r} takes one JSON value, not {len(arguments)}."
    try:
        value: Any = parse_json(arguments[0]) if arguments and arguments[0] else {}
    except ValueError:
        return f"Signal {name!r} takes JSON, such as {form.example}; this is not JSON."
    value = {form.text: value} if isinstance(value, str) else {} if value is None else value
    if not isinstance(value, dict):
        return f"Signal {name!r} takes a JSON object such as {form.example}, not {type(value).__name__}."
    wanted = _understood(name, form, cast("dict[str, Any]", value))
    return short(wanted) if isinstance(wanted, str) else wanted


def _understood(name: str, form: _Form, value: dict[str, Any]) -> Wanted | str:
    approve = form.given.get("approve")
    if approve is not None and value.get("approve", approve) != approve:
        return f"Signal {name!r} says {value['approve']!r} for approve, which contradicts its name."
    added = value.get("add")
    for given, known in ((value, form.kind.model_fields), (added, Additions.model_fields)):
        strangers = set(cast("dict[str, Any]", given)) - set(known) if isinstance(given, dict) else ()
        if strangers:
            return f"Signal {name!r} does not know {', '.join(sorted(strangers))}; it knows {', '.join(known)}."
    try:
        return form.kind.model_validate_json(json.dumps({**form.given, **value}), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        return f"Signal {name!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}."
