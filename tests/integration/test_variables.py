"""Variables through the engine: tools read and write them, the model is shown them, and the run keeps them."""

from dataclasses import replace

import pytest
from pydantic import BaseModel

from perdure.agents import Task
from perdure.errors import ToolError, VariableError
from perdure.messages import UserMessage
from perdure.policies import Limits
from perdure.tools import Done, ToolContext, tool


class Trip(BaseModel):
    flight: str | None = None
    seats: int = 1
    seen: list[str] = []


def calling(*names):
    return {"calls": [{"name": name} for name in names]}


@tool(effect="read")
async def choose(ctx: ToolContext) -> str:
    """Choose."""
    ctx.vars.flight = "MU5101"
    return "chosen"


@tool
def book(ctx: ToolContext) -> str:
    """Book."""
    ctx.vars.seen.append(f"booked {ctx.vars.flight}")
    return "booked"


@tool(effect="read", local=True)
def quick(ctx: ToolContext) -> int:
    """Be quick."""
    ctx.vars.seats += 1
    return int(ctx.vars.seats)


@tool(effect="read")
def fail(ctx: ToolContext) -> str:
    """Fail."""
    ctx.vars.flight = "never"
    raise ToolError("sold out")


async def run(stage, replies, tools, **options):
    return await stage.run(replies, tools, variables=Trip, **options)


def notes(request):
    """What a request says of the variables, and where."""
    said = [one.content if isinstance(one, UserMessage) else "" for one in request.messages]
    return [n for n, content in enumerate(said) if "Variables of this conversation" in str(content)]


async def test_tools_write_variables_that_later_calls_read_and_the_model_is_shown(stage):
    done = await run(stage, [calling("choose"), calling("book", "quick"), "done"], [choose, book, quick])
    assert done.result.variables == {"flight": "MU5101", "seats": 2, "seen": ["booked MU5101"]}
    first, second, third = stage.model.requests
    assert '"flight": null' in str(first.messages[-1].content)
    assert '"flight": "MU5101"' in str(second.messages[-1].content)
    assert third.messages[-1] == UserMessage(role="user", source="runtime", content=third.messages[-1].content)
    assert all(notes(request) == [len(request.messages) - 1] for request in (first, second, third))
    assert not any("Variables of" in note for note in done.notes)  # in the request alone
    assert {event.name: event.wrote for event in done.told("tool_finished")} == {
        "choose": ["flight"],
        "book": ["seen"],
        "quick": ["seats"],
    }
    assert [call.wrote for call in done.result.calls] == [["flight"], ["seen"], ["seats"]]


async def test_a_tool_that_says_it_failed_has_written_nothing(stage):
    done = await run(stage, [calling("choose"), calling("fail"), "done"], [choose, fail])
    assert done.result.variables["flight"] == "MU5101"


async def test_what_an_attempt_wrote_that_was_tried_again_is_dropped(stage):
    @tool(effect="read")
    def flaky(ctx: ToolContext) -> str:
        """Be flaky."""
        ctx.vars.seen.append(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise OSError("reset")
        return "done"

    done = await run(stage, [calling("flaky"), "done"], [flaky])
    assert done.result.variables["seen"] == ["attempt 2"]


async def test_a_call_in_doubt_writes_only_what_its_probe_says(stage):
    def probe(ctx):
        ctx.vars.seen.append("probed")
        return Done("booked")

    @tool(probe=probe)
    def doubtful(ctx: ToolContext) -> str:
        """Be doubtful."""
        ctx.vars.seen.append("never")
        raise OSError("reset")

    done = await run(stage, [calling("doubtful"), "done"], [doubtful])
    assert done.result.variables["seen"] == ["probed"]
    assert [event.wrote for event in done.told("tool_finished")] == [["seen"]]


async def test_a_compensation_may_write(stage):
    def undo(ctx, result):
        ctx.vars.seen.append(f"undid {result}")

    @tool(compensate=undo)
    def put(ctx: ToolContext) -> str:
        """Put."""
        ctx.vars.seen.append("put")
        return "it"

    @tool(approval="always")
    def wait() -> str:
        """Wait."""
        return ""

    options = {"variables": Trip, "compensate_on": ["cancelled"]}
    handle = await stage.start([calling("put"), calling("wait"), "done"], [put, wait], **options)
    await stage.until(handle, "approval_requested")
    await handle.cancel()
    done = await stage.end(handle)
    assert done.result.status == "cancelled"
    assert done.result.variables["seen"] == ["put", "undid it"]


async def test_a_wrong_value_raises_in_the_tool_and_the_model_is_told(stage):
    caught = []

    @tool(effect="read")
    def wrong(ctx: ToolContext) -> str:
        """Be wrong."""
        try:
            ctx.vars.seats = "two"
        except VariableError as error:
            caught.append(str(error))
            raise ToolError(str(error)) from error
        return "done"

    done = await run(stage, [calling("wrong"), "done"], [wrong])
    [result] = done.results
    assert caught == [result.message]
    assert "'seats'" in result.message
    assert "'two'" in result.message


async def test_what_can_not_be_kept_does_not_undo_what_the_tool_did(stage):
    booked = []

    @tool
    def greedy(ctx: ToolContext) -> str:
        """Be greedy."""
        booked.append(ctx.idempotency_key)
        ctx.vars.seen.append("x" * 70_000)
        return "booked"

    done = await run(stage, [calling("greedy"), "done"], [greedy])
    [result] = done.results
    assert (result.status, result.content, len(booked)) == ("ok", "booked", 1)
    assert "is lost" in result.note
    assert done.result.variables["seen"] == []


async def test_a_class_that_has_changed_since_lets_no_tool_begin(stage):
    class Newer(BaseModel):
        seats: dict[str, int] = {}

    @tool(approval="always")
    def act(ctx: ToolContext) -> str:
        """Act."""
        ctx.vars.seats["A"] = 1
        return "done"

    handle = await stage.start([calling("act"), "done"], [act], variables=Trip)
    await stage.until(handle, "approval_requested")
    model = stage.model
    await stage.serve(replace(stage.agents[0], variables=Newer))
    await handle.approve()
    done = await stage.end(handle)
    [result] = done.results
    assert (result.status, result.error_type) == ("error", "invalid_variables")
    assert "'seats'" in result.message
    assert len(model.requests) == 2


async def test_variables_are_given_at_the_start_and_survive_a_resumption(stage):
    handle = await stage.start(
        [calling("quick"), calling("quick"), calling("quick"), "done"],
        [quick],
        task=Task(input="go", variables={"seats": 5}),
        variables=Trip,
        limits=Limits(steps=2),
    )
    with pytest.raises(VariableError, match="no variable 'seat'"):
        await stage.start_again(stage.agents[0], Task(input="go", variables={"seat": 5}))
    first = await stage.end(handle)
    assert (first.result.status, first.result.variables["seats"]) == ("budget_exhausted", 6)
    await handle.resume(add_steps=5)
    assert (await stage.end(handle)).result.variables["seats"] == 7  # the second call, at the limit, was skipped


async def test_an_agent_without_variables_has_none(stage):
    @tool(effect="read")
    def ask(ctx: ToolContext) -> str:
        """Ask."""
        return str(ctx.vars)

    done = await stage.run([calling("ask"), "done"], [ask])
    [result] = done.results
    assert "declares no variables" in result.message
    assert not notes(stage.model.requests[0])
    assert done.result.variables == {}
