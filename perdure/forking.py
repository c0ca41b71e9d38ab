"""From the state of a run after one of its steps to that of a new run, which goes on from there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.errors import ForkError
from perdure.messages import AssistantMessage, Content, Undone, UserMessage
from perdure.policies import AgentSpec, ModelSettings
from perdure.resuming import AFRESH, GO_ON
from perdure.state import SHAPE, Borrowing, Fork, RunState

_ANEW = (
    *("usage", "last", "cost", "last_cost", "unpriced", "ran", "executed"),  # what is spent is counted from there on
    *("resets", "execution", "leases", "effects"),  # others' epochs, children and effects: not this run's to undo
    *("session", "queued", "taken", "schedule"),
    "secrets",  # they go when the run ends that they were given
)
"""Fields of a state that a fork begins with as any run does."""


def changed(spec: AgentSpec, model: str | None, instructions: str | None) -> AgentSpec:
    """Return `spec` with another first model, or other instructions, where they are not None.

    What was set for the first model does not hold for another one: its price; with another provider, its address, key
    and request fields as well.

    Raises:
        ForkError: If `model` is not PROVIDER:NAME.
    """
    if instructions is not None:
        spec = spec.model_copy(update={"instructions": instructions})
    if model is None or model == spec.model:
        return spec
    provider, _, name = model.partition(":")
    if not provider or not name:
        raise ForkError(f"Model {model!r} has to be PROVIDER:NAME, such as openai:gpt-5.")
    own = ("price",) if provider == spec.model.partition(":")[0] else ("price", "base_url", "api_key_env", "extra_body")
    blank = ModelSettings()
    settings = spec.settings.model_copy(update={field: getattr(blank, field) for field in own})
    return spec.model_copy(update={"model": model, "settings": settings})


def forked(state: RunState, run_id: str, spec: AgentSpec, say: Content | None, gone: Iterable[Undone] = ()) -> RunState:
    """Return the state of a new run `run_id` that goes on from `state` with the rules of `spec`.

    Its steps count on, so that positions stay unique, and its limits are raised by those behind it: it may spend as
    much as any run. What the run that it comes from did is part of its transcript, and never undone by it.

    Args:
        say: What the user says next.
        gone: What that run undid afterwards: the model has to know.

    Raises:
        ForkError: If a call has no result yet, or nothing is left to do.
    """
    source, step = state.run_id, state.steps
    state = _without_request(state)
    if state.open_calls:
        call = state.open_calls[0]
        text = f"After step {step} of run {source}, call {call.position} ({call.call.name}) has no result yet"
        raise ForkError(f"{text}: fork the run at an earlier step, or once that call has one.")
    blank = RunState(run_id=run_id, spec=spec, limits=state.limits)
    afresh = {**{name: getattr(blank, name) for name in _ANEW}, **AFRESH}
    limits = state.limits.model_copy(update={"steps": state.limits.steps + step})
    own = {"run_id": run_id, "spec": spec, "limits": limits, "shape": SHAPE, "borrowing": Borrowing()}
    new = state.model_copy(deep=True, update={**afresh, **own, "forked_from": Fork(run_id=source, step=step)})
    new.messages.extend(UserMessage(role="user", content=said.content) for said in new.said)
    new.said = []
    for call in new.staged:
        call.key, call.decision = "", None  # see `keyed`
    told = [GO_ON] if state.closing else []
    done = [f"{one.name} (call {one.position})" for one in gone]
    told += [f"Since then this was undone, or was to be: {', '.join(done)}."] if done else []
    new.messages.extend(UserMessage(role="user", content=text, source="runtime") for text in told)
    if say is not None:
        new.messages.append(UserMessage(role="user", content=say))
    last = new.messages[-1]
    if isinstance(last, AssistantMessage) and not last.calls:
        text = f"After step {step} of run {source} nothing is left to do"
        raise ForkError(f"{text}: say something that is to be done (--say), or fork the run at an earlier step.")
    return new


def _without_request(state: RunState) -> RunState:
    """Return `state` without the request to approve all that is staged: it comes again after the next answer."""
    if any(call.asks_for_all for call in state.calls):
        return state.model_copy(update={"calls": []})
    return state
