"""What is recorded: for each kind of thing that can happen to a run, one short run to which it happens."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from temporalio import activity

from perdure import (
    Agent,
    Approval,
    Client,
    ContextPolicy,
    Done,
    Limits,
    MCPServer,
    Memory,
    NotDone,
    Tool,
    ToolContext,
    ToolError,
    ask_user,
    tool,
)
from perdure.client import RunHandle
from perdure.models import ModelRequest
from perdure.notices import OCCASIONS, Occasion
from perdure.strategies.graph import END, START, ApprovalNode, Branch, Edge, Graph, Join, Node
from perdure.strategies.plan import Plan
from perdure.strategies.team import Member, Team
from perdure.times import When

Meanwhile = Callable[[RunHandle, Client], Coroutine[Any, Any, None]]
Start = Callable[[Client, Agent, str], Coroutine[Any, Any, RunHandle]]
BOOKINGS = "replay-bookings"
QUEUE = "replay"
PLAIN = [sys.executable, "-S", str(Path(__file__).parents[1] / "mcp_servers" / "plain.py"), "-"]


async def begin(client: Client, agent: Agent, run_id: str) -> RunHandle:
    """Start the run."""
    return await client.start(agent, "Please do it.", id=run_id, task_queue=QUEUE)


async def fork(client: Client, agent: Agent, run_id: str) -> RunHandle:
    """Let a run come to its end, and start one that goes on from its second step."""
    source = await begin(client, agent, f"{run_id}-source")
    await until(source, "approval_requested")
    await source.approve(by="ann")
    await source.result()
    return await source.fork(2, say="And once more.", instructions="Be brief.", id=run_id)


async def first_turn(client: Client, agent: Agent, run_id: str) -> RunHandle:
    """Begin the first turn of a session, and say something behind it."""
    session = client.session(run_id, agent, task_queue=QUEUE, user="ann")
    run = await (await session.send("Sell what is red.")).run()
    await until(run, "approval_requested")
    await session.send("And what is blue.", when_busy="queue")
    await run.approve(by="ann")
    return run


async def second_turn(client: Client, agent: Agent, run_id: str) -> RunHandle:
    """Let the first turn of a session come to its end, and begin the second."""
    session = client.session(run_id, agent, task_queue=QUEUE, user="ann")
    await session.ask("There are two chairs.")
    return await (await session.send("Sell one of them.")).run()


async def second_of_a_schedule(client: Client, agent: Agent, run_id: str) -> RunHandle:
    """Have a schedule begin two runs, one after the other, and return the second."""
    goal = "Before: {{last.text}} Due: {{scheduled_at}}."
    when = When(cron=("0 8 * * *",))
    given: dict[str, Any] = {"id": run_id, "task_queue": QUEUE, "keep_variables": True, "by": "ann"}
    schedule = await client.schedule(agent, goal, when, paused=True, **given)
    await schedule.backfill(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC))
    while len(begun := (await schedule.show()).recent) < 2:
        await asyncio.sleep(0.05)
    return client.handle(begun[-1].run_id)


async def hand_over(handle: RunHandle, client: Client) -> None:
    """Say something while a call waits, so that others go on; then approve it, by the rules of who asked."""
    del client
    await until(handle, "approval_requested")
    await handle.say("And paint it.", by="ann")
    await until(handle, "handed_off", nth=2)
    await handle.approve("1.1", by="ann")


def asks_its_mate(request: ModelRequest) -> Any:
    """Have another agent look; that one looks itself."""
    if request.instructions == "Mate.":
        return calls(call("look", where="attic"))
    return calls(call("mate", task="Look in the attic."))


def plans_and_looks(request: ModelRequest) -> Any:
    """Plan, as who leads; or else do a step of the plan, by looking."""
    if "keep_plan" in {one.name for one in request.tools}:
        return "All was seen." if request.answer_only else calls(call("keep_plan"))
    if "plan" in {one.name for one in request.tools}:
        return calls(call("plan", steps=[planned("attic")]))
    seen = any(message.role == "tool" for message in request.messages)
    return "Nothing there." if seen else calls(call("look", where="attic"))


def planned(name: str, *needs: str) -> dict[str, Any]:
    """Return a step of a plan."""
    return {"id": name, "goal": f"Look into the {name}.", "depends_on": list(needs), "tools": ["look"]}


class Sighting(BaseModel):
    """What somebody has seen."""

    where: str


def tells_its_team(request: ModelRequest) -> Any:
    """Publish what was seen, as a scout; or else say what was done."""
    if "Scout." in request.instructions:
        return calls(call("publish_sighting", where="attic"))
    return "Sold it."


def in_a_team(request: ModelRequest) -> Any:
    """Say what was done."""
    return "Seen something." if "Scout." in request.instructions else "All done."


@dataclass(frozen=True)
class Scenario:
    """A model's replies, the agent's tools and options, what people do meanwhile, and before; how it is started.

    Where it continues as new when its history has `max_events`, each of its `executions` is recorded. So is, if it is
    `followed`, what follows each of them.
    """

    replies: Sequence[Any]
    tools: Sequence[Tool | MCPServer] = ()
    meanwhile: Meanwhile | None = None
    options: dict[str, Any] = field(default_factory=dict)
    before: Callable[[Client], Coroutine[Any, Any, None]] | None = None
    max_events: int | None = None
    executions: int = 1
    start: Start = begin
    followed: bool = False
    notify: Sequence[Occasion] = ()


# -- tools -------------------------------------------------------------------------------------------------


@tool(effect="read")
async def look(where: str) -> dict[str, str]:
    """Look somewhere."""
    if where == "cellar":
        raise ToolError("The cellar is locked.", suggestion="Look elsewhere.")
    return {"where": where, "seen": "nothing"}


class Stock(BaseModel):
    """What tools write for each other."""

    chairs: int = 0
    seen: list[str] = []


@tool(effect="read")
async def count(chairs: int, ctx: ToolContext) -> str:
    """Count the chairs."""
    ctx.vars.chairs = chairs
    ctx.vars.seen.append(f"{chairs} chairs")
    return "counted"


@tool(effect="read")
async def study(chapter: int) -> str:
    """Study a chapter."""
    return f"Chapter {chapter}: " + "word " * 120


@tool(effect="read", local=True)
async def clock() -> str:
    """Say what time it is."""
    return "noon"


@tool(effect="idempotent")
def tidy(room: str, ctx: ToolContext) -> str:
    """Tidy a room; the first try never works."""
    if ctx.attempt == 1:
        raise OSError("the broom broke")
    return f"{room} is tidy"


@tool
def paint(colour: str) -> str:
    """Paint the room."""
    return f"painted {colour}"


@tool(approval="always")
def sell(what: str, price: int = 1) -> str:
    """Sell something."""
    return f"sold {what} for {price}"


@tool
def send(letter: str, ctx: ToolContext) -> str:
    """Send a letter; nobody learns whether it arrived."""
    del letter, ctx
    raise ConnectionError("no reply")


async def looked_up(ctx: ToolContext, letter: str) -> Done | NotDone:
    """Say whether a letter arrived: some did."""
    del ctx
    return Done("delivered") if letter == "love" else NotDone()


registered = tool(name="send_registered", timeout=0.5, probe=looked_up)(send.function or send)


@tool(effect="read")
async def dream() -> str:
    """Dream for a minute."""
    await asyncio.sleep(60)
    return "of sheep"


@activity.defn(name="Book")
async def book_elsewhere(arguments: dict[str, Any]) -> dict[str, Any]:
    """Book, as another team's worker does."""
    return {"booked": arguments["room"]}


book = Tool.remote(
    activity="Book",
    task_queue=BOOKINGS,
    name="book",
    description="Book a room.",
    parameters={"type": "object", "properties": {"room": {"type": "integer"}}, "required": ["room"]},
)


def unpaint(ctx: ToolContext, result: str, colour: str) -> str:
    """Paint it white again; blue shines through."""
    del ctx, result
    if colour == "blue":
        raise ToolError("Blue shines through.")
    return "white"


coat = tool(name="coat", compensate=unpaint)(paint.function or paint)
wire = tool(name="wire", defer=True)(sell.function or sell)
post = tool(name="post", compensate=lambda ctx, result, letter: None)(send.function or send)


# -- what people do ----------------------------------------------------------------------------------------


async def until(handle: RunHandle, kind: str, nth: int = 1) -> Any:
    """Return the `nth` event of that type."""
    async for event in handle.events():
        nth -= event.type == kind
        if not nth:
            return event
    raise AssertionError(kind)


async def approve_first(handle: RunHandle, client: Client) -> None:
    """Approve the first call that waits."""
    del client
    await until(handle, "approval_requested")
    await handle.approve(by="ann", reason="it is old")


async def approve_with_a_message_behind_it(handle: RunHandle, client: Client) -> None:
    """Queue a message for the session's next turn, and approve the first call that waits."""
    await until(handle, "approval_requested")
    await handle.say("How many are left?", next=True, by="ann")
    await approve_first(handle, client)


async def decide(handle: RunHandle, client: Client) -> None:
    """Approve two sales, both with another price: one in Perdure's way, one by a plain signal."""
    request = await until(handle, "approval_requested")
    await handle.approve("1.1", arguments={"what": "a chair", "price": 5}, hash=request.hash, by="ann")
    signal = {"call": "1.2", "arguments": {"what": "a table", "price": 7}, "by": "ben", "reason": "worth more"}
    await client.temporal.get_workflow_handle(handle.id).signal("approve", signal)


async def decide_after_it_continued(handle: RunHandle, client: Client) -> None:
    """Approve a sale in another execution than the one that asked for it."""
    await until(handle, "approval_requested")
    workflow = client.temporal.get_workflow_handle(handle.id)
    before = (await workflow.describe()).run_id
    for _ in range(25):
        await workflow.signal("aprove", "1.1")
    while (await workflow.describe()).run_id == before:
        await asyncio.sleep(0.05)
    await handle.approve("1.1", by="ann")


async def deny(handle: RunHandle, client: Client) -> None:
    """Deny one sale, approve the other, and send a signal that nobody understands."""
    await until(handle, "approval_requested", 2)
    await client.temporal.get_workflow_handle(handle.id).signal("aprove", "1.1")
    await handle.deny("1.1", by="ann", reason="it is mine")
    await handle.approve("1.2", by="ann")


async def deny_one(handle: RunHandle, client: Client) -> None:
    """Deny one sale of two."""
    del client
    await until(handle, "approval_requested", 2)
    await handle.deny("1.1", by="ann", reason="it is mine")


async def settle(handle: RunHandle, client: Client) -> None:
    """Have a letter sent again, then say that it arrived; of the other, that it did not."""
    del client
    await until(handle, "in_doubt")
    await handle.settle("1.1", "retry", by="ann")
    await until(handle, "in_doubt", 2)
    await handle.settle("1.1", "done", result="it is there", by="ann", reason="I asked")
    await until(handle, "in_doubt", 3)
    await handle.settle("1.2", "not-done", by="ben")


async def cancel_asleep(handle: RunHandle, client: Client) -> None:
    """Cancel while one call runs and another waits for approval."""
    del client
    await until(handle, "tool_started")
    await handle.cancel("enough")


async def cancel_waiting(handle: RunHandle, client: Client) -> None:
    """Cancel while a call waits for approval."""
    del client
    await until(handle, "approval_requested")
    await handle.cancel("enough")


async def cancel_in_doubt(handle: RunHandle, client: Client) -> None:
    """Cancel while a call is in doubt."""
    del client
    await until(handle, "in_doubt")
    await handle.cancel("enough")


async def approve_staged(handle: RunHandle, client: Client) -> None:
    """Approve all that is staged, by a plain signal."""
    request = await until(handle, "approval_requested")
    signal = {"call": "staged", "hash": request.hash, "by": "ann"}
    await client.temporal.get_workflow_handle(handle.id).signal("approve", signal)


async def approve_all(handle: RunHandle, client: Client) -> None:
    """Approve an effect that a run before may have had, and all that it had staged."""
    del client
    for nth in (1, 2):
        request = await until(handle, "approval_requested", nth)
        await handle.approve(request.call, by="ann")


async def speak_too_early(handle: RunHandle, client: Client) -> None:
    """Approve a call that the model has yet to ask for, and one that never comes."""
    workflow = client.temporal.get_workflow_handle(handle.id)
    await workflow.signal("approve", {"call": "1.1", "by": "ann"})
    await workflow.signal("approve", {"call": "9.9", "by": "ann"})


async def resume_too_early(handle: RunHandle, client: Client) -> None:
    """Resume a run that is not paused: recorded when that was still kept for a moment."""
    await client.temporal.get_workflow_handle(handle.id).signal("resume", {"by": "ann"})


async def resume(handle: RunHandle, client: Client) -> None:
    """Go on with a run that has used up its steps."""
    del client
    await handle.result()
    await handle.resume(add_steps=3)


async def pause(handle: RunHandle, client: Client) -> None:
    """Pause while a call waits for approval, approve it, and go on: by an update and by a plain signal."""
    await until(handle, "approval_requested")
    await handle.pause(by="ann", reason="lunch")
    await handle.approve(by="ann")
    await client.temporal.get_workflow_handle(handle.id).signal("resume", {"by": "ben", "add": {"steps": 2}})


async def edit_plan(handle: RunHandle, client: Client) -> None:
    """Approve a plan with one step more, and a third one that needs both."""
    del client
    await until(handle, "approval_requested")
    steps = [planned("attic"), planned("cellar"), planned("hall", "attic", "cellar")]
    await handle.approve(by="ann", arguments={"steps": steps})


async def top_up(handle: RunHandle, client: Client) -> None:
    """Give a run more that asks for it, and then nothing."""
    del client
    await until(handle, "paused")
    await handle.resume(add_steps=1, by="ann")
    await until(handle, "paused", 2)
    await handle.resume(by="ann")


async def speak(handle: RunHandle, client: Client) -> None:
    """Say something while two calls wait for approval; then approve one and deny the other."""
    workflow = client.temporal.get_workflow_handle(handle.id)
    await until(handle, "approval_requested", 2)
    await handle.say("How is it going?", by="ann")
    await workflow.signal("say", "Hurry.")
    await until(handle, "model_finished", 2)
    await handle.approve("1.1", by="ann")
    await handle.deny("1.2", by="ben", reason="it is mine")


async def answer(handle: RunHandle, client: Client) -> None:
    """Answer one question of two, and say something instead of the other answer."""
    del client
    await until(handle, "asked")
    await handle.answer("Red.", by="ann")
    await until(handle, "asked", 2)
    await handle.say("You choose.", by="ann")


async def interrupt(handle: RunHandle, client: Client) -> None:
    """Break off a model call."""
    workflow = client.temporal.get_workflow_handle(handle.id)
    held = False
    while not held:
        described = (await workflow.describe()).raw_description
        held = any(activity.last_worker_identity for activity in described.pending_activities)
    await handle.say("Stop.", now=True, by="ann")


async def cancel_by_signal(handle: RunHandle, client: Client) -> None:
    """Cancel by a plain signal."""
    await until(handle, "approval_requested")
    await client.temporal.get_workflow_handle(handle.id).signal("cancel", "enough")


async def enter_notes(client: Client) -> None:
    """Have the agent remember two things."""
    await client.memory.add("Chairs are sold before tables.", agent="subject", by="ann")
    await client.memory.add("The attic is empty.", agent="subject", by="ben")


FACT = json.dumps({"facts": [{"text": "Red things go first.", "scope": "agent", "quote": "what is red"}]})
"""What the agent says in its turn, and again when it is asked what is to be remembered of that."""


# -- the scenarios -----------------------------------------------------------------------------------------


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a call as scripts have it."""
    return {"name": name, "arguments": arguments}


def calls(*chosen: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a reply with calls."""
    return {"calls": list(chosen), **more}


def unless_told(request: ModelRequest) -> dict[str, Any]:
    """Take a minute for the answer, unless somebody else than the runtime spoke last."""
    told = len(request.messages) > 1
    return {"text": "As you say." if told else "…", "delay": 0 if told else 60}


def first_study(request: ModelRequest) -> Any:
    """Study the first chapter, or sum up what was studied: a request for that shows no reply either."""
    return "Some chapters were studied." if not request.tools else calls(call("study", chapter=1))


class Walked(BaseModel):
    """State of a graph."""

    places: list[str] = []
    rounds: int = 0
    far: bool = False


def again(rounds: int) -> int:
    """Count a round."""
    return rounds + 1


def is_far(rounds: int) -> bool:
    """Tell whether it was far."""
    return rounds > 1


GRAPH = Graph(
    Walked,
    nodes=[
        Node("attic", look, given={"where": "attic"}),
        Node("again", again, writes="rounds", at_most=3, instead=END),
        Node("is_far", is_far, writes="far"),
        ApprovalNode("home", "Go home after {rounds} rounds?", shows=["rounds"]),
    ],
    edges=[
        Edge(START, "attic", "again"),
        Join(["attic", "again"], "is_far"),
        Branch("is_far", lambda state: state.far, {True: "home"}, otherwise="again"),
        Edge("home", END),
    ],
)


async def approve_the_walk(handle: RunHandle, client: Client) -> None:
    """Approve what the graph asks, with another value."""
    del client
    asked = await until(handle, "approval_requested")
    await handle.approve(asked.call, arguments={**asked.arguments, "rounds": 7}, by="ann")


TOO_LONG = {"kind": "context_too_long", "message": "The prompt is too long."}
STUDIES = [calls(call("study", chapter=chapter)) for chapter in range(2, 7)]
SALES = calls(call("sell", what="a chair"), call("sell", what="a table"))
LOOKS = [calls(call("look", where=where)) for where in ("attic", "garden", "roof")]
SCENARIOS = {
    "plain_answer": Scenario(["Here you are."]),
    "tools": Scenario(
        [
            calls(*(call("look", where=where) for where in ("attic", "cellar", "garden"))),
            calls(
                call("tidy", room="attic"),
                call("paint", colour="red"),
                call("look", where="roof"),
                call("paint", color="blue"),
                call("fly"),
                call("paint", colour="green"),
                text="Now I work.",
            ),
            "Done.",
        ],
        [look, tidy, paint],
    ),
    "approved_with_edits": Scenario([SALES, "Sold."], [sell], decide),
    "denied": Scenario([SALES, "Sold one."], [sell], deny),
    "listed": Scenario([SALES, "Sold one."], [sell], deny),
    "noticed": Scenario(
        [SALES, *LOOKS[:3], "Sold one."], [sell, look], deny, {"limits": Limits(steps=5)}, notify=OCCASIONS
    ),
    "denied_to_stop": Scenario([SALES, "Sold one."], [sell], deny_one, {"approval": Approval(on_denial="stop")}),
    "approval_expired": Scenario(
        [SALES, "Nobody wanted to sell."],
        [sell],
        options={"approval": Approval(expires=timedelta(seconds=1), remind_every=timedelta(seconds=0.4))},
    ),
    "doubt_settled_by_probe": Scenario(
        [calls(call("send_registered", letter="love"), call("send_registered", letter="bill")), "One arrived."],
        [registered],
    ),
    "doubt_settled_by_person": Scenario(
        [calls(call("send", letter="love"), call("send", letter="bill")), "One arrived."], [send], settle
    ),
    "doubt_told_to_model": Scenario(
        [calls(call("mail", letter="love")), "Nobody knows."],
        [tool(name="mail", in_doubt="tell_model")(send.function or send)],
    ),
    "local_tool": Scenario([calls(call("clock"), call("clock")), calls(call("clock")), "Noon."], [clock]),
    "remote_tool": Scenario([calls(call("book", room=7)), "Booked."], [book]),
    "cancelled_while_running": Scenario(
        [calls(call("dream"), call("sell", what="a chair"))], [dream, sell], cancel_asleep
    ),
    "cancelled_while_waiting": Scenario([SALES], [sell], cancel_waiting),
    "compensated_after_cancel": Scenario(
        [
            calls(call("coat", colour="red")),
            calls(call("coat", colour="blue"), call("coat", colour="green")),
            calls(call("sell", what="a chair"), call("post", letter="love")),
        ],
        [coat, sell, post],
        cancel_in_doubt,
        {"compensate_on": ["cancelled"]},
    ),
    "staged_and_approved": Scenario(
        [
            calls(call("wire", what="a chair"), call("look", where="attic")),
            calls(call("wire", what="a table", price=7)),
            "I will sell both.",
        ],
        [wire, look],
        approve_staged,
    ),
    "compacted": Scenario(
        [
            first_study,
            *STUDIES[:2],
            calls(call("sell", what="a chair")),
            *STUDIES[2:],
            calls(call("study", chapter=7), error=TOO_LONG, times=1),
            "Learnt.",
        ],
        [study, sell],
        approve_first,
        {"context": ContextPolicy(window=1_000, keep_turns=2)},
    ),
    "continued": Scenario(
        [calls(call("sell", what="a chair")), *LOOKS[:2], calls(call("tidy", room="kitchen")), "Sold."],
        [sell, look, tidy],
        decide_after_it_continued,
        max_events=45,
        executions=3,
    ),
    "budget_exhausted": Scenario([*LOOKS[:2], "Not everywhere."], [look], options={"limits": Limits(steps=3)}),
    "resumed": Scenario([LOOKS[0], "Not yet.", LOOKS[1], "Now."], [look], resume, {"limits": Limits(steps=2)}),
    "signalled_too_early": Scenario(
        [calls(call("sell", what="a chair"), delay=0.3), {"text": "Sold.", "delay": 1.2}], [sell], speak_too_early
    ),
    "resumed_too_early": Scenario([{"text": "Done.", "delay": 1.5}], meanwhile=resume_too_early),
    "paused_and_resumed": Scenario([calls(call("sell", what="a chair")), "Sold."], [sell], pause),
    "asked_for_more": Scenario(
        [LOOKS[0], LOOKS[1], "Not everywhere."], [look], top_up, {"limits": Limits(steps=2, on_exhausted="ask")}
    ),
    "said_while_waiting_for_approval": Scenario([SALES, "It waits.", "Sold one.", "Sold one."], [sell], speak),
    "question_answered": Scenario(
        [calls(call("ask_user", question="Which colour?")), calls(call("ask_user", question="Sure?")), "Red, then."],
        [ask_user],
        answer,
    ),
    "interrupted_now": Scenario([unless_told], meanwhile=interrupt),
    "cancelled_by_signal": Scenario([SALES], [sell], cancel_by_signal),
    "repeated_calls": Scenario([LOOKS[0]] * 6 + ["Nothing there."], [look]),
    "no_progress": Scenario(LOOKS[:2] * 9, [look], options={"limits": Limits(steps=30)}),
    "remembered": Scenario(
        [calls(call("search_memory", query="attic"), call("look", where="cellar")), "It is empty."],
        [look],
        before=enter_notes,
        options={"memory": Memory(scopes=["agent"], recall=1, remember=False)},
    ),
    "forked": Scenario(
        [
            calls(call("look", where="attic")),
            calls(call("paint", colour="red"), call("wire", what="a chair")),
            calls(call("paint", colour="blue")),
            "Painted.",
        ],
        [look, paint, wire],
        approve_all,
        start=fork,
    ),
    "tools_of_a_server": Scenario(
        [calls(call("echo", text="hi"), call("fail")), calls(call("break")), calls(call("gone")), "Told."],
        [MCPServer("desk", command=PLAIN, approval={"echo": "always"}, in_doubt="tell_model")],
        approve_first,
    ),
    "tools_not_listed": Scenario(
        ["Never asked."],
        [MCPServer("broken", command=[sys.executable, "-c", "raise SystemExit('no licence')"], list_attempts=2)],
    ),
    "structured_output": Scenario(
        ['{"chairs": "two"}', LOOKS[0], "Nothing there.", 'So: {"chairs": 2, "seen": ["attic"]}'],
        [look],
        options={"output_type": Stock},
    ),
    "scheduled": Scenario(
        [calls(call("count", chairs=2)), "Two chairs."],
        [count],
        options={"variables": Stock},
        start=second_of_a_schedule,
    ),
    "turn_of_a_session": Scenario(
        [
            calls(call("count", chairs=2)),
            "Counted.",
            calls(call("sell", what="a chair"), call("count", chairs=1)),
            "Sold.",
            "One is left.",
        ],
        [count, sell],
        approve_with_a_message_behind_it,
        options={"variables": Stock},
        start=second_turn,
    ),
    "followed": Scenario(
        [calls(call("sell", what="a chair"), text=FACT), FACT, "No more."],
        [sell],
        options={"memory": Memory(scopes=["agent"])},
        start=first_turn,
        followed=True,
    ),
    "followed_on": Scenario([LOOKS[0], *LOOKS[:2], "Nothing."], [look], max_events=30, executions=2, followed=True),
    "handed_off": Scenario(
        [
            calls(call("sell", what="a chair")),
            calls(call("transfer_to_mate", reason="paint"), call("look", where="attic")),
            calls(call("paint", colour="red")),
            calls(call("transfer_to_subject")),
            "Painted.",
            "Sold.",
        ],
        [sell, look],
        hand_over,
        {"handoffs": [Agent("mate", "script:handed_off", tools=[paint], handoffs=["subject"])]},
    ),
    "planned": Scenario(
        [plans_and_looks, plans_and_looks, plans_and_looks],
        [look],
        edit_plan,
        {"limits": Limits(steps=30), "strategy": Plan(approve=True)},
    ),
    "team": Scenario(
        [tells_its_team, in_a_team, "All done."],
        options={
            "limits": Limits(steps=30),
            "strategy": Team(
                {"sighting": Sighting},
                [
                    Member(Agent("scout", "script:team", "Scout.", tools=[look]), ["request"], ["sighting"]),
                    Member(Agent("seller", "script:team", "Seller.", tools=[sell]), ["sighting"], approval="always"),
                ],
            ),
        },
        meanwhile=approve_first,
    ),
    "delegated": Scenario(
        [asks_its_mate, "Done."],
        [Agent("mate", "script:delegated", "Mate.", tools=[look]).as_tool("Looks around.")],
    ),
    "walked": Scenario(["Looked."], meanwhile=approve_the_walk, options={"variables": Walked, "strategy": GRAPH}),
    "model_fails": Scenario([{"error": {"kind": "authentication", "message": "bad key"}}]),
    "malformed_output": Scenario([""]),
}
