"""Hooks: called before and after each phase of a run; what they decide is in its history."""

import asyncio
from typing import Any

import pytest

from perdure import Agent, ContextPolicy, Hook, tool
from perdure.errors import AgentError
from perdure.hooks import Add, Deny, Note, Stop

LOOKING = {"calls": [{"name": "look", "arguments": {"place": "Rome"}}]}
BOOKING = {"calls": [{"name": "book", "arguments": {"seat": "1A"}}]}


@pytest.fixture
def done():
    return []


@pytest.fixture
def tools(done):
    @tool(effect="read")
    def look(place: str) -> str:
        """Look at a place."""
        done.append(place)
        return f"{place} is fine"

    def unbook(ctx, result, seat):
        done.append(f"not {seat}")

    @tool(compensate=unbook)
    def book(seat: str) -> str:
        """Book a seat."""
        done.append(seat)
        return f"booked {seat}"

    @tool(approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    return [look, book, pay]


class Recorder(Hook):
    """Remembers where it was called."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.ended = asyncio.Event()
        self.waits = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    async def on_run_start(self, at):
        self.told.append("start")

    def before_model(self, at, messages):
        self.told.append(f"model {at.step} of {len(messages)}")

    async def after_model(self, at, message):
        self.told.append(f"replied {at.step}: {[call.name for call in message.calls]}")

    def before_tool(self, at, call):
        self.told.append(f"tool {call.position} {call.tool} {call.arguments} of {at.agent}")

    async def after_tool(self, at, call, result):
        self.told.append(f"result {call.position} {result.status}")

    def before_undo(self, at, call):
        self.told.append(f"undo {call.tool} {call.position}")

    def after_undo(self, at, call, undone):
        self.told.append(f"undone {undone}")

    async def before_compaction(self, at, why):
        self.told.append(f"compact {why}")

    async def after_compaction(self, at, compaction):
        self.told.append(f"compacted {compaction is not None}")

    def on_waiting(self, at, told):
        self.told.append(f"waits at {at.step} for {told['wants']} of {told['tool']}")
        self.loop.call_soon_threadsafe(self.waits.set)

    def on_run_end(self, at, result):
        self.told.append(f"end {result.status} after {at.step}")
        self.loop.call_soon_threadsafe(self.ended.set)


async def test_hooks_are_called_before_and_after_each_phase_in_order(stage, tools):
    recorder = Recorder()
    await stage.run([LOOKING, "done"], tools, hooks=[recorder])
    await asyncio.wait_for(recorder.ended.wait(), 60)
    assert recorder.told == [
        "start",
        "model 1 of 1",
        "replied 1: ['look']",
        "tool 1.1 look {'place': 'Rome'} of subject",
        "result 1.1 ok",
        "model 2 of 3",
        "replied 2: []",
        "end completed after 2",
    ]


async def test_hooks_are_told_of_waiting_and_undoing(stage, tools):
    recorder = Recorder()
    script = [BOOKING, {"calls": [{"name": "pay"}]}, "done"]
    handle = await stage.start(script, tools, hooks=[recorder], compensate_on=["cancelled"])
    await asyncio.wait_for(recorder.waits.wait(), 60)
    await handle.cancel()
    await stage.end(handle)
    await asyncio.wait_for(recorder.ended.wait(), 60)
    assert "waits at 2 for approval of pay" in recorder.told
    assert recorder.told[-3:] == ["undo book 1.1", "undone True", "end cancelled after 2"]


async def test_hooks_are_told_of_compaction(stage):
    @tool(effect="read")
    def read(page: int) -> str:
        """Read."""
        return f"page {page} " * 400

    recorder = Recorder()
    script = [*({"calls": [{"name": "read", "arguments": {"page": page}}]} for page in range(6)), "done"]
    context = ContextPolicy(window=4_000, keep_turns=1, long_result=400)
    ended = await stage.run(script, [read], hooks=[recorder], context=context)
    assert ended.result.status == "completed"
    assert {"compact full", "compacted True"} <= set(recorder.told)


async def test_a_hook_denies_a_call_and_the_model_is_told_why(stage, tools, done):
    class Guard(Hook):
        def before_tool(self, at, call):
            return Deny("Seat 1A is taken by the crew.") if call.arguments == {"seat": "1A"} else None

    ended = await stage.run([BOOKING, LOOKING, "well"], tools, hooks=[Guard()])
    denied, looked = ended.results
    assert (denied.status, denied.error_type) == ("denied", "denied_by_hook")
    assert denied.message == "Seat 1A is taken by the crew. Nothing was executed."
    assert looked.status == "ok"
    assert done == ["Rome"]


async def test_what_a_hook_has_decided_stays_so_whatever_is_deployed_meanwhile(stage, tools, done):
    class Guard(Hook):
        asked = 0

        def before_tool(self, at, call):
            Guard.asked += 1
            return Deny("No.") if call.tool == "book" else None

    agent = stage.agent([BOOKING, {"calls": [{"name": "pay"}]}, "well"], tools, hooks=[Guard()])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    await stage.until(handle, "approval_requested")
    await stage.serve(Agent("subject", agent.model, tools=tools))  # its worker has nothing of the run in memory
    await handle.approve("2.1")
    ended = await stage.end(handle)
    assert [one.status for one in ended.results] == ["denied", "ok"]
    assert (Guard.asked, done) == (1, [])


async def test_a_reply_s_calls_are_denied_of_tools_that_run_elsewhere_too(stage, tools, done):
    class NoAgents(Hook):
        async def after_model(self, at, message):
            return Deny("Nobody is to be asked", tools=["scout"])

    scout = stage.agent(["here"], name="scout")
    asked: dict[str, Any] = {"calls": [{"name": "scout", "arguments": {"task": "go"}}, *LOOKING["calls"]]}
    ended = await stage.run([asked, "well"], [*tools, scout.as_tool("Finds.")], hooks=[NoAgents()])
    assert [(one.status, one.error_type) for one in ended.results] == [("denied", "denied_by_hook"), ("ok", None)]
    assert done == ["Rome"]


async def test_calls_that_are_denied_over_and_over_are_no_malformed_output(stage, tools):
    class Never(Hook):
        def after_model(self, at, message):
            return Deny("Not today.")

    ended = await stage.run([*[BOOKING] * 4, "well"], tools, hooks=[Never()])
    assert (ended.result.status, ended.result.text) == ("completed", "well")


async def test_a_hook_adds_to_each_request_and_nothing_to_the_transcript(stage, tools):
    class Clock(Hook):
        def before_model(self, at, messages):
            return Add(f"It is day {at.step}.")

    ended = await stage.run([LOOKING, "done"], tools, hooks=[Clock()])
    assert [request.messages[-1].content for request in stage.model.requests] == ["It is day 1.", "It is day 2."]
    assert ended.notes == []


async def test_a_hook_adds_a_note_to_a_result(stage, tools):
    class Source(Hook):
        def after_tool(self, at, call, result):
            return Note("As of 2020.")

    ended = await stage.run([LOOKING, "done"], tools, hooks=[Source()])
    assert ended.results[0].note == "As of 2020."


async def test_a_hook_stops_a_run_which_can_be_resumed_without_it(stage, tools):
    class Brake(Hook):
        def before_model(self, at, messages):
            return Stop("The shop is closed.") if at.step == 2 else None

    agent = stage.agent([LOOKING, "done"], tools, hooks=[Brake()])
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    ended = await stage.end(handle)
    assert (ended.result.status, ended.result.steps) == ("failed", 1)
    assert ended.result.reason == "Stopped by hook 'Brake': The shop is closed."
    await stage.serve(Agent("subject", agent.model, tools=tools))
    await handle.resume()
    assert (await stage.end(handle)).result.text == "done"


@pytest.mark.parametrize("edge", ["before_model", "after_model"])
async def test_a_hook_that_can_not_decide_about_a_turn_fails_the_run(stage, tools, edge):
    def fail(self, *given):
        raise LookupError("no list of rules")

    ended = await stage.run(["done"], tools, hooks=[type("Guard", (Hook,), {edge: fail})()])
    assert ended.result.reason == f"Hook 'Guard' failed at {edge}: LookupError: no list of rules"


async def test_a_hook_that_can_not_decide_about_a_call_denies_it(stage, tools, done):
    class Guard(Hook):
        def before_tool(self, at, call):
            raise LookupError("no list of rules")

    ended = await stage.run([BOOKING, "well"], tools, hooks=[Guard()])
    assert (ended.results[0].status, done) == ("denied", [])
    told = "Hook 'Guard' failed at before_tool: LookupError: no list of rules. Nothing was executed."
    assert ended.results[0].message == told


async def test_a_hook_that_is_only_told_never_hinders_a_run(stage, tools):
    class Broken(Hook):
        def on_run_start(self, at):
            raise SystemExit

        def after_tool(self, at, call, result):
            raise ValueError

    ended = await stage.run([LOOKING, "done"], tools, hooks=[Broken()])
    assert ended.result.text == "done"
    assert ended.results[0].status == "ok"


def test_what_is_no_hook_is_refused_when_an_agent_is_declared():
    class Odd(Hook):
        def before_tools(self, at):
            """Never called."""

    with pytest.raises(AgentError, match=r"hook 'Odd' has 'before_tools'; known are on_run_start, before_model"):
        Agent("a", "openai:x", hooks=[Odd()])
    with pytest.raises(AgentError, match="a hook is an instance of a class derived from Hook"):
        Agent("a", "openai:x", hooks=[Hook])  # type: ignore[list-item]
    with pytest.raises(AgentError, match="two hooks named 'Hook'"):
        Agent("a", "openai:x", hooks=[Hook(), Hook()])


def test_an_agent_without_hooks_has_the_hash_that_it_had():
    assert Agent("a", "openai:x").hash == Agent("a", "openai:x", hooks=[]).hash
    assert Agent("a", "openai:x").spec.hooks == {}
