"""Variables: typed state of a run and its session, for what must not be left to the model's memory. Pure.

An agent declares them as a pydantic model; tools read and write `ctx.vars`. What a call has written is folded when
its result enters the transcript, in call order: so parallel calls give the same values whoever ends first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, RootModel, ValidationError

from perdure.errors import AgentError, VariableError
from perdure.messages import JSON, UserMessage, canonical_json
from perdure.policies import AgentSpec, VariablesSpec
from perdure.schemas import sentence
from perdure.state import CallState, RunState

LARGEST = 65_536
"""Bytes of all variables of a run together, as JSON."""

_LONGEST_SHOWN, _MOST_SHOWN = 2_000, 8_000
"""Characters of JSON that the model is shown of one variable, and of all: it is told where there is more."""

NOTE = "Variables of this conversation, kept by the runtime, as they are now:"

# -- declared ----------------------------------------------------------------------------------------------


def declared(agent: str, model: Any, show: Any) -> VariablesSpec:
    """Return what `Agent(variables=model, show_variables=show)` of `agent` means, as data.

    Raises:
        AgentError: If the class can't hold variables, or a name to be shown is not one of them.
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or issubclass(model, RootModel):
        raise AgentError(f"Agent {agent!r}: variables has to be a pydantic model class, not {model!r}.")
    if model.model_config.get("frozen") or any(field.frozen for field in model.model_fields.values()):
        raise AgentError(f"Agent {agent!r}: {model.__name__} is frozen, so that no tool could write its variables.")
    try:
        initial = defaults(model)
        schema = model.model_json_schema(by_alias=False)
        again = defaults(model)
    except Exception as error:
        text = f"Agent {agent!r}: {model.__name__} can't be kept as JSON: {sentence(error)}"
        raise AgentError(text) from error
    if restless := [name for name, value in initial.items() if canonical_json(value) != canonical_json(again[name])]:
        text = f"default of {restless[0]!r} is another one each time; set it in a tool, or when a run is started"
        raise AgentError(f"Agent {agent!r}: {model.__name__}: the {text}.")
    return VariablesSpec(json_schema=schema, initial=initial, show=_shown_names(agent, model, show))


def defaults(model: type[BaseModel]) -> dict[str, JSON]:
    """Return the defaults of the fields that have one, as JSON."""
    optional = {name for name, field in model.model_fields.items() if not field.is_required()}
    values: dict[str, JSON] = json.loads(model.model_construct().model_dump_json(include=optional, by_alias=False))
    return values


def _shown_names(agent: str, model: type[BaseModel], show: Any) -> bool | list[str]:
    if isinstance(show, bool):
        return show
    if isinstance(show, str) or not isinstance(show, Iterable):
        raise AgentError(f"Agent {agent!r}: show_variables has to be True, False or a list of names, not {show!r}.")
    names = [str(name) for name in cast("Iterable[Any]", show)]
    if strangers := [name for name in names if name not in model.model_fields]:
        known = ", ".join(model.model_fields)
        raise AgentError(f"Agent {agent!r}: show_variables names {strangers[0]!r}; the variables are {known}.")
    return names


# -- the values with which a run starts ----------------------------------------------------------------------


def starting(spec: AgentSpec, given: Mapping[str, JSON], kept: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
    """Return the variables with which a run of `spec` starts.

    Args:
        given: By whoever starts it; they beat the others.
        kept: By its session. Those that the agent does not have any more are left out.

    Raises:
        VariableError: If one is unknown or missing, does not fit its type, or all are too large.
    """
    if spec.variables is None:
        if given:
            raise VariableError(f"Agent {spec.name!r} declares no variables, so {_listed(given)} can't be given.")
        return {}
    schema = spec.variables.json_schema
    known: Mapping[str, JSON] = schema.get("properties", {})
    if strangers := [name for name in given if name not in known]:
        raise VariableError(f"Agent {spec.name!r} has no variable {strangers[0]!r}; it has {', '.join(known)}.")
    values = {**spec.variables.initial, **{k: v for k, v in (kept or {}).items() if k in known}, **given}
    if missing := [name for name in schema.get("required", ()) if name not in values]:
        raise VariableError(f"Agent {spec.name!r} needs {_listed(missing)} to be given when a run is started.")
    _check(spec.name, schema, values)
    check_size(values)
    return {name: values[name] for name in known if name in values}


def _listed(names: Iterable[str]) -> str:
    found = [repr(name) for name in names]
    return f"variable{'s' if len(found) > 1 else ''} {', '.join(found)}"


def _check(agent: str, schema: Mapping[str, Any], values: Mapping[str, JSON]) -> None:
    from jsonschema import Draft202012Validator, exceptions

    validator: Any = Draft202012Validator(schema)
    found: Any = cast("Any", exceptions).best_match(validator.iter_errors(values))
    if found is not None:
        where = ".".join(map(str, found.absolute_path))
        raise VariableError(f"Variable {where!r} of agent {agent!r} can't be that: {found.message[:500]}.")


def check_size(values: Mapping[str, JSON]) -> None:
    """Raise `VariableError` if `values` are too large together."""
    size = len(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))
    if size > LARGEST:
        largest = max(values, key=lambda name: len(json.dumps(values[name], ensure_ascii=False)))
        text = f"{size:,}, most of them in {largest!r}. Keep what is large elsewhere, and a reference to it here"
        raise VariableError(f"All variables together may have {LARGEST:,} bytes as JSON, and these have {text}.")


def complaint(name: str, error: ValidationError) -> str:
    """Return what is wrong with a value, in one sentence that names the variable."""
    one = error.errors(include_url=False)[0]
    where = ".".join(map(str, one["loc"])) or name
    given = repr(one["input"])
    return f"Variable {where!r}: {one['msg']}, not {given if len(given) <= 200 else given[:200] + '…'}."  # noqa: PLR2004


# -- folded --------------------------------------------------------------------------------------------------


def current(state: RunState) -> dict[str, JSON]:
    """Return the variables as the next call sees them: with what those calls have written that are not folded yet."""
    return {**state.variables, **{name: value for call in _in_order(state) for name, value in call.wrote.items()}}


def _in_order(state: RunState) -> Sequence[CallState]:
    """Return the calls in the order in which they are folded: those of the turn, then the parked ones."""
    return [*state.calls, *state.parked]


def fold(state: RunState, call: CallState) -> None:
    """Take what `call` has written into the state, as its result enters the transcript."""
    state.variables.update(call.wrote)


# -- shown to the model --------------------------------------------------------------------------------------


def shown(state: RunState) -> dict[str, JSON] | None:
    """Return what the model is to be shown of the variables, long ones cut; None if nothing."""
    spec = state.spec.variables
    if spec is None or spec.show is False:
        return None
    values = current(state)
    names = list(values) if spec.show is True else [name for name in spec.show if name in values]
    left, told = _MOST_SHOWN, dict[str, JSON]()
    for name in names:
        text = json.dumps(values[name], ensure_ascii=False)
        limit = min(_LONGEST_SHOWN, left)
        told[name] = values[name] if len(text) <= limit else f"{text[:limit]}… [cut: {limit} of {len(text)} characters]"
        left -= min(len(text), limit)
    return told or None


def note(told: Mapping[str, JSON] | None) -> list[UserMessage]:
    """Return the message at the end of a request that tells the model of the variables; it enters no transcript."""
    if not told:
        return []
    return [UserMessage(role="user", content=f"{NOTE}\n{json.dumps(told, ensure_ascii=False)}", source="runtime")]
