"""What `perdure show` says of a run, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from perdure import asking, outputs
from perdure import events as ev
from perdure.cli import graph, plans, standing, story, teams
from perdure.cli.output import as_json, moment, one_line, paint, safe, span
from perdure.context import summary_of
from perdure.errors import PerdureError
from perdure.messages import (
    JSON,
    AssistantMessage,
    CallRecord,
    Compaction,
    Content,
    Entry,
    RunResult,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.state import RunState
from perdure.strategies.graph_drawing import graph_of
from perdure.strategies.plan_views import plan_of
from perdure.strategies.team import standing_of

if TYPE_CHECKING:
    from perdure.cli.standing import Now
    from perdure.client import Client
    from perdure.telemetry.projection import Projection


def as_data(projection: Projection, now: Now, page: str | None, *, transcript: bool) -> dict[str, Any]:
    """Return all that is known of a run, as data."""
    state, result = _state(projection), projection.result()
    results = results_of(projection.entries, result.calls)
    led = graph_of(state)
    calls = [{**call.model_dump(), "result": _result(call, results)} for call in result.calls]
    told = {
        **result.model_dump(exclude={"calls", "status"}),
        "status": standing.status(projection),
        "agent": state.spec.name,
        "model": state.spec.model,
        "forked_from": state.forked_from,
        "limits": state.limits,
        "started_at": projection.started_at,
        "waiting": [*standing.requests(projection), *now.below],
        "under_way": now.under_way,
        "retrying": [one for one in now.under_way if one.last_failure],
        "served": now.absence is None,
        "context": {**state.context.model_dump(), "share": round(state.context.share, 4)} if state.context else None,
        "plan": plan_of(state),
        "team": standing_of(state.spec, state.progress),
        "graph": {"visits": led[1].visits, "taken": led[1].taken, "now": led[1].now} if led else None,
        "priority": now.priority,
        "tenant": now.tenant or None,
        "calls": calls,
        "events": projection.events,
        "workers": projection.workers,
        "archived": now.forgotten,
        "web_ui": page,
    }
    return {**told, "messages": projection.entries} if transcript else told


def as_lines(projection: Projection, now: Now, page: str | None, stream: TextIO, *, transcript: bool) -> Iterator[str]:
    """Yield the lines for a person."""
    state, result = _state(projection), projection.result()
    yield from _head(projection, state, result, page, stream)
    if now.forgotten:
        yield f"{'Archive':<9}the engine has forgotten it; this is what the store has kept"
    if now.priority or now.tenant:
        given = [f"priority {now.priority}" if now.priority else "", f"tenant {safe(now.tenant)}" if now.tenant else ""]
        yield f"{'Queued':<9}{', '.join(part for part in given if part)}"
    if now.absence:
        yield paint(f"{'Worker':<9}{safe(now.absence)}", "yellow", stream)
    requests = [*standing.requests(projection), *now.below]
    if requests:
        yield from ("", paint("Waits for", "bold", stream))
        for request in requests:
            yield from story.request_lines(request, stream)
    if now.under_way:
        yield from ("", paint("Under way", "bold", stream))
        yield from (f"  {story.attempt_line(attempt, datetime.now(UTC))}" for attempt in now.under_way)
    yield from _led(state, stream)
    yield from ("", paint("Timeline", "bold", stream))
    begun = projection.started_at or datetime.now(UTC)
    last = None if projection.ended else _asked(projection.events)
    aside = (ev.ModelStarted, ev.PhaseChanged)
    shown = [event for event in projection.events if event is last or not isinstance(event, aside)]
    yield from (story.line(event, begun, stream) for event in shown)
    yield from _work(projection, result, stream)
    if transcript:
        yield from ("", paint("Transcript", "bold", stream))
        yield from transcript_lines(projection.entries, stream)
    if result.text:
        title = "Answer" if standing.status(projection) in ("completed", "budget_exhausted") else "Last words"
        yield from ("", paint(title, "bold", stream), safe(outputs.answer(result)))


def _led(state: RunState, stream: TextIO) -> Iterator[str]:
    """Yield how far a run is in what leads it."""
    if plan := plan_of(state):
        yield from ("", paint("Plan", "bold", stream), *plans.lines(plan, stream))
    yield from teams.lines(state, stream)
    if led := graph_of(state):
        yield from ("", paint("Graph", "bold", stream), f"  {graph.line(*led, stream)}")


def _work(projection: Projection, result: RunResult, stream: TextIO) -> Iterator[str]:
    """Yield what the calls did, to the world and to the variables."""
    if result.calls:
        yield from ("", paint("Calls", "bold", stream))
        yield from _calls(projection, result, stream)
    if result.variables:
        yield from ("", paint("Variables", "bold", stream))
        yield from variable_lines(result.variables)
    if result.undone:
        yield from ("", paint("Undone", "bold", stream))
        yield from _undone(result, stream)


def _state(projection: Projection) -> RunState:
    assert projection.state is not None  # noqa: S101 - a history begins with the start
    return projection.state


def _head(
    projection: Projection, state: RunState, result: RunResult, page: str | None, stream: TextIO
) -> Iterator[str]:
    source = state.forked_from
    started = projection.started_at or datetime.now(UTC)
    took = result.duration if projection.ended else datetime.now(UTC) - started
    failure = f" ({safe(result.failure)})" if result.failure else ""
    cost = story.money(result.cost_usd) or ", cost not known"
    rows = [
        ("Run", paint(safe(projection.run_id), "bold", stream)),
        ("Agent", f"{safe(state.spec.name)}{_entry(state)}, model {safe(state.spec.model)}"),
        ("Task", one_line(story.words(projection.task or _first(state)), 300)),
        ("Forked", f"from {safe(source.run_id)} at step {source.step}" if source else ""),
        ("Schedule", safe(state.schedule)),
        ("Status", f"{story.status_word(standing.status(projection), stream)}{failure}"),
        ("Reason", one_line(result.reason or asking.held(state), 1000)),
        ("Started", f"{moment(started)}, {'took' if projection.ended else 'so far'} {span(took)}"),
        (
            "Used",
            f"{result.steps} of {state.limits.steps} steps, {story.tokens(result.usage)}{cost}",
        ),
        ("Context", _context(state)),
        ("Web UI", page or ""),
    ]
    yield from (f"{name:<9}{text}" for name, text in rows if text)


def _context(state: RunState) -> str:
    """Return how full the model's context was at the last turn, and how often it was compacted."""
    if state.context is None:
        return ""
    times = sum(isinstance(entry, Compaction) for entry in state.messages)
    compacted = f", compacted {times} time{'' if times == 1 else 's'}" if times else ""
    return f"{story.fullness(state.context)}{compacted}"


def _asked(events: Sequence[ev.Event]) -> ev.Event | None:
    """Return the start of the model call that has not ended yet."""
    kinds = ev.ModelStarted | ev.ModelFinished | ev.Moved | ev.ModelFailed | ev.ContextCompacted
    calls = [event for event in events if isinstance(event, kinds)]
    return calls[-1] if calls and isinstance(calls[-1], ev.ModelStarted) else None


def _first(state: RunState) -> Content:
    said = (entry for entry in state.messages if isinstance(entry, UserMessage) and entry.source == "user")
    first = next(said, None)
    return first.content if first else ""


def results_of(entries: Sequence[Entry], records: Sequence[CallRecord]) -> dict[str, ToolResult]:
    """Return the results of closed turns, by the call's position.

    A call that was executed is known by its place in the order of execution; where it stands says which step its turn
    was, and thereby which those beside it are: a transcript may begin before the run, or later.
    """
    given = list(_given(entries))
    positions = {record.execution_order: record.position for record in records if record.execution_order}
    executed = [(turn, positions.get(result.execution_order or 0)) for turn, _, result in given]
    steps = {turn: int(position.partition(".")[0]) for turn, position in executed if position and turn}
    results: dict[str, ToolResult] = {}
    for turn, index, result in given:
        position = positions.get(result.execution_order or 0) or f"{_step(turn, steps)}.{index}"
        results[position] = result
    return results


def _given(entries: Sequence[Entry]) -> Iterator[tuple[int, int, ToolResult]]:
    """Yield each result, after its turn's and its call's number; both are 0 where the call is not there."""
    asked: dict[str, tuple[int, int]] = {}
    turn = 0
    for entry in entries:
        match entry:
            case AssistantMessage():
                turn += 1
                asked |= {call.id: (turn, index) for index, call in enumerate(entry.calls, 1)}
            case ToolMessage() | UserMessage(result=ToolResult()):  # the latter: of a call that was parked
                assert entry.result is not None  # noqa: S101 - the pattern says so
                yield (*asked.get(entry.result.call_id, (0, 0)), entry.result)
            case UserMessage() | Compaction():
                pass


def _step(turn: int, steps: Mapping[int, int]) -> int:
    nearest = min(steps, key=lambda one: abs(one - turn), default=0)
    return steps.get(nearest, 0) + turn - nearest


def _result(call: CallRecord, results: dict[str, ToolResult]) -> ToolResult | None:
    """Return what the transcript has of a call; a staged one was executed after that."""
    given = results.get(call.position)
    return given if given and given.status == call.status else None


def _calls(projection: Projection, result: RunResult, stream: TextIO) -> Iterator[str]:
    state = _state(projection)
    results = results_of(projection.entries, result.calls) | {
        call.position: call.result for call in state.all_calls if call.result
    }
    undone = [one for one in result.undone if one.status == "undone"]
    for call in result.calls:
        yield f"  {call.position:<5} {story.signature(call.name, call.arguments, 500)}"
        gone = next(
            (f", {story.undone_word(one.status, stream)}" for one in undone if one.position == call.position), ""
        )
        given = _result(call, results)
        yield f"        {story.status_word(call.status, stream)}{gone}{_part(call, given)}"
        if call.status == "staged":  # its message is for the model
            yield f"        {'never executed' if state.outcome else 'to be executed once approved, after the answer'}"
            continue
        text = (given.content or given.message or "") if given else call.message or ""
        if text:
            yield f"        {one_line(text, 500)}"
        if given and given.note:
            yield f"        {one_line(given.note, 500)}"


def _part(call: CallRecord, given: ToolResult | None) -> str:
    """Return how much of a result the model was shown, and how to read all of it; "" where that was all of it."""
    if given is None or given.size is None:
        return ""
    rest = f"; --result {call.position} prints all of it" if given.ref else ""
    return f", {len(given.content.encode('utf-8', 'surrogatepass')):,} of {given.size:,} bytes were shown{rest}"


async def whole_result(client: Client, projection: Projection, position: str) -> str:
    """Return the result of the call at `position`: all of it, where the store has more than the model was shown.

    Raises:
        PerdureError: If there is no such call, it has no result, or the store does not have it any more.
    """
    calls = projection.result().calls
    found = next((call for call in calls if call.position == position), None)
    if found is None:
        known = ", ".join(call.position for call in calls[-10:]) or "none"
        raise PerdureError(f"Run {projection.run_id} has no call {position!r}; its last ones are: {known}.")
    given = _result(found, results_of(projection.entries, calls))
    if given is None:
        raise PerdureError(f"Call {position} has no result yet: it is {found.status}.")
    if given.ref is None:
        return given.content or given.message or ""
    try:
        async with client.store() as store:
            return (await store.get(given.ref)).decode("utf-8", "replace")
    except LookupError as error:
        raise PerdureError(f"The rest of the result of call {position} is gone: {error}") from error


def variable_lines(variables: Mapping[str, JSON]) -> Iterator[str]:
    """Yield a line for each variable."""
    width = max(map(len, variables), default=0)
    yield from (f"  {safe(name):<{width}}  {one_line(as_json(value), 500)}" for name, value in variables.items())


def _entry(state: RunState) -> str:
    """Return with which agent the conversation began, where another one has it now."""
    return f" (began with {safe(state.spec.entry)})" if state.spec.entry else ""


def _undone(result: RunResult, stream: TextIO) -> Iterator[str]:
    for one in result.undone:
        said = f": {one_line(one.message, 500)}" if one.message else ""
        yield f"  {one.position:<5} {safe(one.name)} {story.undone_word(one.status, stream)}{said}"


def transcript_lines(messages: Sequence[Entry], stream: TextIO) -> Iterator[str]:
    """Yield the lines of a conversation."""
    for message in messages:
        match message:
            case UserMessage():
                yield f"  {paint(message.source, 'cyan', stream)}  {safe(story.words(message.content))}"
            case AssistantMessage():
                calls = [story.signature(call.name, call.arguments, 2000) for call in message.calls]
                whose = safe(message.agent) or "model"
                yield f"  {paint(whose, 'green', stream)}  " + "\n         ".join([safe(message.text), *calls]).strip()
            case ToolMessage():
                given = message.result
                text = safe(given.content or given.message or "")
                yield f"  {paint('tool', 'yellow', stream)}   {safe(given.name)} {given.status}: {text}"
            case Compaction() as compaction:
                said = summary_of(compaction)
                mark = paint("compacted: from here on, the model is shown less of what is above", "cyan", stream)
                yield f"  {mark}" + (f"\n  {safe(story.words(said.content))}" if said else "")
