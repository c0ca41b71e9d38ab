"""Tools: described functions that a model may call."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, overload, runtime_checkable

from perdure.errors import ToolDefinitionError
from perdure.messages import JSON
from perdure.policies import Effect, Remote, SubAgent, ToolSpec
from perdure.schemas import (
    Arguments,
    arguments_model,
    docstring_summary,
    parameters_schema,
    returned_outline,
    secret_parameters,
    sentence,
)
from perdure.tool_checks import (
    check,
    check_compensation,
    check_fallback,
    check_shape,
    checked_schema,
    exception_types,
    shaping_of,
)

if TYPE_CHECKING:
    from perdure.agents import Agent

Resource = TypeVar("Resource")

# -- what a probe answers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """The effect happened; `result` is what the tool would have returned."""

    result: JSON = None


@dataclass(frozen=True, slots=True)
class NotDone:
    """The effect did not happen. Believed only after the attempt's hard deadline."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe can't tell."""


ProbeOutcome = Done | NotDone | Unknown
Probe = Callable[..., Awaitable[ProbeOutcome] | ProbeOutcome]
"""Called as `probe(ctx, **arguments)`; `ctx.idempotency_key` is the key that the tool was given."""
Compensation = Callable[..., Any]
"""Called as `compensate(ctx, result, **arguments)`: what the tool returned, as JSON, and what it was called with.

`ctx.idempotency_key` is the same on every attempt to undo this call; `ctx.undoes` is the key that the tool was given.
It has to be safe to repeat. What it returns is recorded as text; `ToolError` means that it can't be undone.
"""


Shape = Callable[[Any], Any]
"""Called with what the tool returned; what it returns is shown to the model. Sync or async, within 5 s."""


@runtime_checkable
class ToolContext(Protocol):
    """What a tool is handed if one of its parameters is annotated with `ToolContext`.

    Attributes:
        run_id: The run, which is the Temporal workflow's id.
        agent: The agent's name.
        step: Model turn that asked for the call, from 1.
        call: The call's position, such as `2.1`.
        call_id: The provider's id of the call.
        attempt: From 1.
        idempotency_key: The same on every attempt, replay, resume and settlement of this call.
        undoes: For a compensation: the idempotency key of the call to undo. "" for a tool.
        deadline: When this attempt is abandoned (UTC).
        shared: What the agent's lifespan function yielded, or None.
        traceparent: The header of that name for requests that the tool makes of others, so that they are part of its
            span; "" where OpenTelemetry is off. Instrumented clients set it by themselves.
        secrets: Those that the run was given, by name (`perdure run --secret`, `Task(secrets=…)`). They never show
            their values by themselves; what the tool says with one of them in it is recorded without.
        vars: The run's variables: an instance of the class in `Agent(variables=…)`. What is assigned is checked at
            once (`VariableError`), and kept if the tool succeeds; changes in place, such as `append`, are kept as well.
    """

    run_id: str
    agent: str
    step: int
    call: str
    call_id: str
    attempt: int
    idempotency_key: str
    undoes: str
    deadline: datetime
    shared: Any
    secrets: Mapping[str, str]

    @property
    def traceparent(self) -> str:
        """The header `traceparent`, or ""."""
        ...

    @property
    def vars(self) -> Any:
        """The run's variables."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled or its deadline has passed; a sync tool should look at times."""
        ...

    def progress(self, text: str, fraction: float | None = None) -> None:
        """Tell those who watch the run how far the call is: `ctx.progress("found 12 hotels, filtering", 0.4)`.

        The same in async and sync tools. It never waits and never fails; of words that come within a tenth of a
        second, the last one is told. What is told is redacted, and not recorded.

        Args:
            fraction: From 0 to 1; None where nobody can say.
        """
        ...

    async def open(self, key: str, factory: Callable[[], AbstractAsyncContextManager[Resource]]) -> Resource:
        """Return the resource named `key`, opened once per run and worker, closed when the run ends."""
        ...


# -- the tool itself ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tool:
    """A described function with a JSON Schema. Made by `@tool`, `Tool.from_schema`, `Tool.remote` or `Agent.as_tool`.

    Attributes:
        spec: All that the model and the workflow need, as data.
        function: What is called; None for a tool served elsewhere.
        arguments: Turns validated JSON into the function's types; None where it takes plain JSON.
        probe: Looks up whether an effect happened.
        compensate: Undoes an effect that was done.
        fallback: What is asked instead where this one is not available.
        shape: Makes of what it returned what the model is shown.
        not_done: Exception types that mean that nothing was done.
        ask: Approval predicate, called with the arguments; True asks a person.
        secrets: Parameters that a secret fills in, and the name of each one's secret.
        agent: The agent that it is, if it is one.
        check: Called with arguments that a person has edited, as keywords; says in a sentence what the schema can't say
            against them, or None. They are refused then, and the call goes on waiting.
    """

    spec: ToolSpec
    function: Callable[..., Any] | None = None
    arguments: type[Arguments] | None = None
    context_parameter: str | None = None
    probe: Probe | None = None
    not_done: tuple[type[BaseException], ...] = ()
    ask: Callable[..., bool | Awaitable[bool]] | None = field(default=None, repr=False)
    compensate: Compensation | None = None
    fallback: Tool | None = field(default=None, repr=False)
    shape: Shape | None = field(default=None, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    agent: Agent | None = field(default=None, repr=False)
    check: Callable[..., str | None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The tool's own name."""
        return self.spec.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it had never been a tool."""
        if self.function is None:
            why = "an agent" if self.agent else "served elsewhere"
            raise TypeError(f"Tool {self.name!r} is {why} and can't be called directly.")
        return self.function(*args, **kwargs)

    @classmethod
    def from_schema(
        cls,
        function: Callable[..., Any],
        parameters: Mapping[str, Any],
        *,
        name: str,
        description: str,
        **options: Any,
    ) -> Tool:
        """Return a tool with a JSON Schema of your own; `function` gets the arguments as keywords.

        Args:
            function: Sync or async.
            parameters: JSON Schema of the arguments object; `$ref`s into itself are inlined.
            name: As the model should see it; sanitised for each API and mapped back.
            description: What it does, for the model.
            options: As for `tool`.

        Raises:
            ToolDefinitionError: If the schema is not a valid one for an object.
        """
        return _build(
            function, name, description, checked_schema(parameters, name), None, _context_name(function), options
        )

    @classmethod
    def remote(
        cls,
        *,
        activity: str,
        task_queue: str,
        parameters: Mapping[str, Any],
        description: str,
        name: str | None = None,
        **options: Any,
    ) -> Tool:
        """Return a tool that is an activity of another worker, in any language.

        The activity gets the arguments object as its one argument and returns JSON. It has to heartbeat if
        it wants to see cancellation.

        Args:
            activity: Its activity type.
            task_queue: Where its worker listens.
            name: For the model; default: the activity type.
            options: As for `tool`; `timeout` is its start-to-close timeout.
        """
        where = Remote(activity=activity, task_queue=task_queue)
        name = name or activity
        return _build(
            None, name, description, checked_schema(parameters, name), None, None, {**options, "remote": where}
        )


_TASK = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "minLength": 1,
            "description": "What it is to do, with all that it needs to know: it sees nothing of this conversation.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


def agent_tool(agent: Agent, name: str, description: str, share: float, options: dict[str, Any]) -> Tool:
    """Return the tool that an agent is; see `Agent.as_tool`."""
    try:
        below = SubAgent(spec=agent.spec, share=share)
    except ValueError as error:
        raise ToolDefinitionError(f"Tool {name!r}: {sentence(error)}") from error
    made = _build(None, name, description, dict(_TASK), None, None, {**options, "agent": below})
    return replace(made, agent=agent)


Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "unsafe",
    timeout: timedelta | float = 10,
    attempts: int = 3,
    approval: Literal["never", "always"] | Callable[..., bool | Awaitable[bool]] | None = None,
    parallel: bool = False,
    local: bool = False,
    probe: Probe | None = None,
    not_done: Sequence[type[BaseException]] = (),
    in_doubt: Literal["ask", "tell_model"] = "ask",
    fallback: Tool | None = None,
    defer: bool = False,
    compensate: Compensation | None = None,
    undo_attempts: int = 10,
    result_limit: int = 65_536,
    fields: Sequence[str] = (),
    limit: int | None = None,
    max_chars: int | None = None,
    shape: Shape | None = None,
    polling: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, sync or async; sync ones run in threads.

    The JSON Schema comes from the signature, the description from the docstring.

    Args:
        name: For the model. Default: the function's name.
        description: Default: the docstring up to its `Args:`.
        effect: `read`, `idempotent` (safe to repeat with the same key) or `unsafe` (performed at most once;
            the default).
        timeout: Hard deadline of one attempt, in seconds or as a timedelta. Default 10 s.
        attempts: For `idempotent`: tries with the same key before the outcome is in doubt. Default 3.
        approval: `never`, `always`, or a function of the arguments that returns True to ask a person.
            Default: what the agent says.
        parallel: An effect that may run beside others of its turn. Reads always may.
        local: A quick `read` that runs inside the workflow's worker, without a round trip to the server.
        probe: `probe(ctx, **arguments)` → `Done(result) | NotDone() | Unknown()`, to settle a doubt.
        not_done: Exception types that mean that nothing was done, besides `ToolError`.
        in_doubt: `ask` waits for a person; `tell_model` tells the model and goes on.
        fallback: For `read`: another such tool, asked with the same arguments and the same `timeout` where this one has
            failed at its last attempt (an exception or the deadline, not `ToolError`), or so often in a minute that it
            is left alone for a while. The result's note says who answered.
        defer: Only record the call, and tell the model so: it is executed after the final answer, once a person has
            approved all such actions of the run together (`perdure approve RUN staged`), whatever `approval` says.
        compensate: `compensate(ctx, result, **arguments)` undoes what was done, where the agent says when
            (`Agent(compensate_on=…)`).
        undo_attempts: Tries of it, 1 s apart and doubling up to 30 s, each within `timeout`. Default 10.
        result_limit: Bytes of the result that reach the model at once, at most 200,000; it reads on with `read_result`.
            Default 64 KiB; of a local tool, never more than 32 KiB.
        fields: Of an object, or of each object of a list, the model is shown these alone. A path goes on in what is
            below, also where that is a list: `["flights.id", "flights.price"]`. Default: all.
        limit: Items that it is shown of each list. It is told how many more there are, and may read them. Default: all.
        max_chars: Characters that it is shown of the text. It may read on. Default: as many as `result_limit` allows.
        shape: A function of what the tool returned, which returns what the model is shown in its place, within 5 s.
            Where it fails, a note says so, and the result is shown as it is. Default: none.
        polling: It is called over and over for good reason, as a look whether something has ended: it is never
            told or refused for repeating itself. Default False.

    Raises:
        ToolDefinitionError: If the function or an option can't make a tool; the text says why.
    """
    if function is None:
        return functools.partial(tool_from_function, options=options)
    return tool_from_function(function, options)


def tool_from_function(function: Callable[..., Any], options: Mapping[str, Any]) -> Tool:
    """Return the tool that `@tool(**options)` makes of `function`."""
    options = dict(options)
    if not inspect.isroutine(function):
        raise ToolDefinitionError(f"A tool is made of a function, and {function!r} is not a function; wrap it in one.")
    if inspect.isasyncgenfunction(function):
        raise ToolDefinitionError(f"Tool {function.__name__!r} is an async generator; return one value instead.")
    name = options.pop("name", None) or function.__name__
    described = options.pop("description", None) or docstring_summary(inspect.getdoc(function) or "")
    if not described:
        raise ToolDefinitionError(f"Tool {name!r} needs a docstring or description=: the model has only that to go by.")
    context = _context_name(function)
    secrets = secret_parameters(function)
    model = arguments_model(function, context, secrets)
    if returns := returned_outline(function):
        options.setdefault("returns", returns)
    made = _build(function, name, described, parameters_schema(model), model, context, options)
    return replace(made, secrets=secrets) if secrets else made


def _build(
    function: Callable[..., Any] | None,
    name: str,
    description: str,
    parameters: dict[str, Any],
    model: type[Arguments] | None,
    context: str | None,
    options: dict[str, Any],
) -> Tool:
    probe: Any = options.pop("probe", None)
    approval: Any = options.pop("approval", None)
    compensate: Any = options.pop("compensate", None)
    fallback: Any = options.pop("fallback", None)
    if fallback is not None and not isinstance(fallback, Tool):
        raise ToolDefinitionError(f"Tool {name!r}: fallback has to be another tool, not {fallback!r}.")
    shape: Any = options.pop("shape", None)
    not_done = exception_types(name, options.pop("not_done", ()))
    timeout = options.pop("timeout", 10)
    ask: Any = approval if callable(approval) else None
    try:
        spec = ToolSpec(
            name=name,
            description=description,
            parameters=parameters,
            timeout=timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout),
            approval=f"predicate:{name}" if ask else cast("str | None", approval),
            probe=probe is not None,
            compensate=compensate is not None,
            fallback=fallback.name if fallback else None,
            shaping=shaping_of(options),
            **options,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise ToolDefinitionError(f"Tool {name!r}: {sentence(error)}") from error
    check(spec, options)
    if probe is not None and not callable(probe):
        raise ToolDefinitionError(f"Tool {name!r}: probe has to be a function, not {probe!r}.")
    if compensate is not None:
        check_compensation(compensate, spec)
    if fallback is not None:
        check_fallback(spec, fallback.spec)
    if shape is not None:
        check_shape(shape, spec)
    return Tool(spec, function, model, context, cast("Probe | None", probe), not_done, ask, compensate, fallback, shape)


def _context_name(function: Callable[..., Any]) -> str | None:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - whoever makes the schema says what is wrong with them
        return None
    return next((name for name, hint in hints.items() if hint is ToolContext), None)


ask_user = Tool(
    ToolSpec(
        name="ask_user",
        description="Ask the user a question and get their answer. Use it when only the user can tell.",
        parameters={
            "type": "object",
            "properties": {"question": {"type": "string", "description": "The whole question, for a person to read."}},
            "required": ["question"],
            "additionalProperties": False,
        },
        effect="read",
        approval="never",
        asks_user=True,
    )
)
"""Lets the model put a question: the run is `waiting_input` until somebody answers, which costs none of its time."""
