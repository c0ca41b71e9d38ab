"""Sessions: one run a turn, in order, whoever sends; and the store alone is enough to go on."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from pydantic import BaseModel

from perdure.activities.sessions import Sessions
from perdure.activities.stores import store_of, store_url
from perdure.agents import Task
from perdure.client import Client
from perdure.engine.server import DevServer
from perdure.errors import (
    ConnectionFailed,
    DecisionRejected,
    ModelError,
    PerdureError,
    SessionError,
    SessionNameError,
    SessionNotFound,
    VariableError,
)
from perdure.messages import AssistantMessage, ToolMessage, UserMessage
from perdure.policies import Limits
from perdure.settings import Settings
from perdure.tools import ToolContext, tool
from perdure.worker import serving


class Trip(BaseModel):
    flight: str | None = None
    seats: int = 1


@tool(effect="read")
async def choose(flight: str, ctx: ToolContext) -> str:
    """Choose."""
    ctx.vars.flight = flight
    return f"{flight} chosen"


@tool(approval="always")
async def book(ctx: ToolContext) -> str:
    """Book."""
    return f"booked {ctx.vars.flight}"


def calling(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


def name():
    return f"s-{uuid4().hex[:8]}"


def said(messages):
    """What was said by people and by the model, in order."""
    return [
        str(one.content) if isinstance(one, UserMessage) else one.text
        for one in messages
        if isinstance(one, UserMessage | AssistantMessage)
    ]


class Talk:
    """A session with an agent that is served."""

    def __init__(self, stage, agent, **options):
        self.name = name()
        self.stage = stage
        self.agent = agent
        self.options = options

    def handle(self, **options):
        return self.stage.client.session(
            self.name, self.agent, task_queue=self.stage.queue, **{**self.options, **options}
        )


@pytest.fixture
def talking(stage):
    async def begin(replies, tools=(), *, agent=None, options=None, **rules):
        agent = agent or stage.agent(replies, tools, **rules)
        await stage.serve(agent)
        return Talk(stage, agent, **(options or {}))

    return begin


async def test_each_turn_is_a_run_that_goes_on_from_what_the_last_one_left(stage, talking):
    talk = await talking([calling("choose", flight="MU1"), "Chosen.", "It is MU1."], [choose], variables=Trip)
    async with talk.handle() as session:
        first = await session.ask("Choose MU1.")
        second = await session.ask("Which one?")
        assert (first.run_id, second.run_id) == (f"{talk.name}.1", f"{talk.name}.2")
        assert (first.text, second.text) == ("Chosen.", "It is MU1.")
        assert second.variables == {"flight": "MU1", "seats": 1}
        assert said(await session.history()) == ["Choose MU1.", "", "Chosen.", "Which one?", "It is MU1."]
        assert [(turn.number, turn.status, turn.input, turn.text) for turn in await session.turns()] == [
            (1, "completed", "Choose MU1.", "Chosen."),
            (2, "completed", "Which one?", "It is MU1."),
        ]
    last = stage.model.requests[-1]
    assert said(last.messages)[:-1] == ["Choose MU1.", "", "Chosen.", "Which one?"]


async def test_a_task_may_name_its_session(stage, talking):
    talk = await talking(["Hello.", "Again."])
    for number, text in enumerate(["Hello.", "Again."], 1):
        task = Task(input="Hi.", session=talk.name)
        run = await stage.client.start(talk.agent, task, task_queue=stage.queue)
        assert (run.id, (await run.result()).text) == (f"{talk.name}.{number}", text)
    with pytest.raises(PerdureError, match="an id or a session"):
        await stage.client.start(talk.agent, Task(input="Hi.", session="s"), id="own", task_queue=stage.queue)


async def test_variables_that_do_not_fit_a_new_version_of_the_agent_are_named_and_can_be_given_anew(stage, talking):
    class Newer(BaseModel):
        flight: int = 0
        meals: int = 0

    talk = await talking([calling("choose", flight="MU1"), "Chosen.", "Hello."], [choose], variables=Trip)
    await talk.handle().ask("Choose MU1.")
    talk.agent = replace(talk.agent, variables=Newer)
    await stage.serve(talk.agent)
    with pytest.raises(VariableError, match=r"'flight' .*'MU1' is not of type 'integer'"):
        await talk.handle().send("Hello.")
    result = await talk.handle().ask(Task(input="Hello.", variables={"flight": 1}))
    assert result.variables == {"flight": 1, "meals": 0}  # what is not there any more is left out


# -- several at once ---------------------------------------------------------------------------------------


@pytest.mark.long
async def test_two_who_send_at_once_begin_one_turn_in_every_one_of_twenty_rounds(stage, talking):
    talk = await talking([*(f"reply {n}" for n in range(60)), "more"])
    async with talk.handle() as ann, talk.handle() as bob:
        for number in range(20):
            sent = await asyncio.gather(ann.send(f"ann {number}"), bob.send(f"bob {number}"))
            assert "started" in [one.how for one in sent]
            await asyncio.gather(*(one.result() for one in sent))
        history, turns = said(await ann.history()), await ann.turns()
    people = [text for text in history if text.startswith(("ann", "bob"))]
    assert sorted(people) == sorted(f"{who} {number}" for number in range(20) for who in ("ann", "bob"))
    for who in ("ann", "bob"):
        assert [text for text in people if text.startswith(who)] == [f"{who} {number}" for number in range(20)]
    assert [turn.number for turn in turns] == list(range(1, len(turns) + 1))


async def test_what_is_said_while_a_turn_waits_reaches_it_at_its_next_step(stage, talking):
    talk = await talking([calling("book"), "Noted.", "Booked."], [book], variables=Trip)
    async with talk.handle() as session:
        first = await session.send("Book.")
        run = await first.run()
        await stage.until(run, "approval_requested")
        second = await session.send("By the window, please.")
        assert (first.how, second.how, second.turn) == ("started", "said", 1)
        await stage.until(run, lambda event: event.type == "model_finished" and event.text == "Noted.")
        await run.approve()
        assert (await second.result()).text == "Booked."
        assert [turn.number for turn in await session.turns()] == [1]


async def test_what_is_queued_begins_the_next_turns_in_order_though_nobody_waits_for_it(stage, talking):
    talk = await talking([calling("book"), "Booked.", "one", "two", "three"], [book], variables=Trip)
    async with talk.handle(when_busy="queue") as session, talk.handle(when_busy="queue") as other:
        first = await session.send("Book.")
        await stage.until(await first.run(), "approval_requested")
        queued = [await session.send("A1"), await other.send("B1"), await session.send("A2")]
        assert [one.how for one in queued] == ["queued"] * 3
        assert said((await stage.state(await first.run())).messages) == ["Book.", ""]
        await (await first.run()).approve()
        results = await asyncio.gather(*(one.result() for one in queued))
        assert [one.run_id for one in results] == [f"{talk.name}.{number}" for number in (2, 3, 4)]
        assert [one.text for one in results] == ["one", "two", "three"]
        assert [turn.input for turn in await session.turns()] == ["Book.", "A1", "B1", "A2"]


async def test_what_is_queued_behind_a_turn_that_is_terminated_waits_for_the_next_who_comes(stage, talking):
    talk = await talking([calling("book"), "one", "two"], [book], variables=Trip)
    async with talk.handle(when_busy="queue") as session:
        run = await (await session.send("Book.")).run()
        await stage.until(run, "approval_requested")
        await session.send("first")
        await stage.client.temporal.get_workflow_handle(run.id).terminate()
        second = await session.send("second")
        await second.result()
        assert [(turn.input, turn.status) for turn in await session.turns()] == [
            ("Book.", "failed"),
            ("first", "completed"),
            ("second", "completed"),
        ]


# -- however a turn ends -----------------------------------------------------------------------------------


async def deny(stage, run):
    await stage.until(run, "approval_requested")
    await run.deny(reason="too expensive")


async def cancel(stage, run):
    await stage.until(run, "approval_requested")
    await run.cancel("enough")


async def terminate(stage, run):
    await stage.until(run, "approval_requested")
    await stage.client.temporal.get_workflow_handle(run.id).terminate("gone")


@pytest.mark.parametrize(("end", "status"), [(deny, "completed"), (cancel, "cancelled"), (terminate, "failed")])
async def test_a_turn_that_ends_otherwise_leaves_a_whole_conversation(stage, talking, end, status):
    talk = await talking([calling("book"), "Then not.", "Hello."], [book], variables=Trip)
    async with talk.handle() as session:
        sent = await session.send("Book.")
        await end(stage, await sent.run())
        await stage.end(await sent.run())
        assert (await session.ask("Are you there?")).status == "completed"
        history = await session.history()
        assert (await session.turns())[0].status == status
    asked = [call.id for one in history if isinstance(one, AssistantMessage) for call in one.calls]
    assert [one.result.call_id for one in history if isinstance(one, ToolMessage)] == asked
    if status != "completed":
        [note] = [one for one in history if isinstance(one, UserMessage) and one.source == "runtime"]
        assert f"ended as {status}" in str(note.content)


async def test_after_a_turn_that_failed_the_next_one_goes_on_and_the_model_knows(stage, talking):
    def fail(request):
        if said(request.messages)[-1] == "Fail.":
            raise ModelError("authentication", "No such key.")
        return "Better."

    talk = await talking([fail])
    async with talk.handle() as session:
        failed = await session.send("Fail.")
        assert (await stage.end(await failed.run())).result.failure == "authentication"
        assert (await session.ask("And now?")).text == "Better."
        assert [turn.status for turn in await session.turns()] == ["failed", "completed"]
        note = said(await session.history())[1]
    assert note == "That turn ended as failed: No such key."


async def test_a_resumed_turn_is_under_way_again_and_replaces_how_it_ended(stage, talking):
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    talk = await talking([calling("look"), calling("look"), "All seen.", "Yes."], [look])
    async with talk.handle() as session:
        first = await session.ask(Task(input="Look twice.", limits=talk.agent.limits.model_copy(update={"steps": 1})))
        assert first.status == "budget_exhausted"
        assert (await session.turns())[0].status == "budget_exhausted"
        run = await session.handle(1).resume(add_steps=5)
        again = await run.result()
        assert again.status == "completed"
        await session.ask("Sure?")
        assert [(turn.status, turn.number) for turn in await session.turns()] == [("completed", 1), ("completed", 2)]


async def test_a_turn_after_which_the_session_went_on_is_not_resumed(stage, talking):
    talk = await talking([calling("book"), "Yes."], [book], variables=Trip)
    async with talk.handle() as session:
        run = await (await session.send("Book.")).run()
        await cancel(stage, run)
        await stage.end(run)
        await session.ask("Are you there?")
        with pytest.raises(PerdureError, match=r"turn 1 of session .* has gone on"):
            await run.resume(add_steps=1)


# -- looking, deleting, and what can't be ------------------------------------------------------------------


async def test_a_session_goes_on_at_another_engine_with_the_same_store(stage, talking, tmp_path):
    talk = await talking([calling("choose", flight="MU1"), "Chosen.", "Still MU1."], [choose], variables=Trip)
    async with talk.handle() as session:
        await session.ask("Choose MU1.")
        await session.standing()
    elsewhere = Settings(home=tmp_path, store=store_url(stage.client.settings))
    async with await DevServer.start(elsewhere):
        client = await Client.connect(elsewhere)
        async with serving(client.temporal, [talk.agent], "elsewhere", elsewhere):
            session = client.session(talk.name, talk.agent, task_queue="elsewhere")
            result = await session.ask("Which one?")
            assert (result.run_id, result.text) == (f"{talk.name}.2", "Still MU1.")
            assert result.variables["flight"] == "MU1"
            assert said(await session.history()) == ["Choose MU1.", "", "Chosen.", "Which one?", "Still MU1."]


async def test_a_turn_that_continued_as_new_leaves_its_session_all_that_was_said(stage, talking):
    calls, settings = 30, stage.client.settings
    replies = [*([calling("choose", flight=f"MU{n}") for n in range(calls)]), "Chosen.", "MU29."]
    client = Client(stage.client.temporal, settings.model_copy(update={"max_history_events": 80}))
    talk = await talking(replies, [choose], variables=Trip, limits=Limits(steps=100))
    async with client.session(talk.name, talk.agent, task_queue=stage.queue) as session:
        await session.ask("Choose them all.")
        assert (await session.handle(1).projection()).executions > 1
        assert (await session.ask("Which one was the last?")).variables["flight"] == "MU29"
        history = await session.history()
    assert [one.result.content for one in history if isinstance(one, ToolMessage)] == [
        f"MU{n} chosen" for n in range(calls)
    ]
    store = store_of(settings)
    await store.drop_runs("default", [f"{talk.name}.1", f"{talk.name}.2"])  # the session has to own it by itself
    await store.sweep(datetime.now(UTC) + timedelta(hours=1))
    await store.aclose()
    async with talk.handle() as session:
        assert len(await session.history()) == len(history)


async def test_a_deleted_session_is_gone_with_its_runs_and_its_name_can_be_used_again(stage, talking):
    def replies(request):
        return calling("book") if said(request.messages)[-1] == "Book." else "Hello."

    talk = await talking([replies], [book])
    async with talk.handle() as session:
        run = await (await session.send("Book.")).run()
        await stage.until(run, "approval_requested")
        with pytest.raises(SessionError, match=r"Turn 1 of session .* is under way"):
            await session.delete()
        await run.deny()
        await run.result()
        await session.delete()
        for look in (session.turns, session.history, session.delete):
            with pytest.raises(SessionNotFound):
                await look()
        again = await session.ask("Who are you?")
        assert again.run_id == f"{talk.name}.2"
        assert said(await session.history()) == ["Who are you?", "Hello."]


async def test_a_session_is_with_one_agent_and_for_one_user(stage, talking):
    talk = await talking([calling("book"), "Booked."], [book], variables=Trip)
    other = stage.agent(["I am another."], name="other")
    async with talk.handle(user="ann") as session:
        run = await (await session.send("Book.")).run()
        await stage.until(run, "approval_requested")
        for _ in range(2):  # while its first turn is under way, and after that
            with pytest.raises(SessionError, match="is with agent 'subject', not with 'other'"):
                await stage.client.session(talk.name, other, task_queue=stage.queue).send("Hello.")
            with pytest.raises(SessionError, match="is for user 'ann', not for 'bob'"):
                await talk.handle(user="bob").send("Hello.")
            await (run.deny() if not (await session.standing()).session else asyncio.sleep(0))
            await run.result()
        assert (await session.session()).user == "ann"
        assert (await talk.handle().ask("And I?")).status == "completed"


@pytest.mark.parametrize("odd", ["", "a b", "a/b", "x" * 101, "a\nb", "../up"])
async def test_a_name_that_no_session_can_have_is_refused(client, odd):
    with pytest.raises(SessionNameError, match="letters, digits"):
        client.session(odd)


async def test_an_empty_message_and_an_unknown_session_are_refused(client, talking):
    talk = await talking(["Hello."])
    empty: list[Any] = ["", " \n", []]
    for text in empty:
        with pytest.raises(PerdureError, match="message is empty"):
            await talk.handle().send(text)
    with pytest.raises(SessionNotFound, match="no session 'nobody'"):
        await client.session("nobody").history()


async def test_a_run_of_somebody_else_with_the_id_of_a_turn_is_no_turn(stage, talking):
    talk = await talking(["Hello."])
    run = await stage.client.start(talk.agent, "go", id=f"{talk.name}.1", task_queue=stage.queue)
    await run.result()
    with pytest.raises(SessionError, match="is no turn of session"):
        await talk.handle().send("Hello.")


async def test_nothing_can_be_queued_behind_a_run_that_is_no_turn(stage):
    handle = await stage.start([calling("book"), "Booked."], [book], variables=Trip)
    await stage.until(handle, "approval_requested")
    with pytest.raises(DecisionRejected, match="no turn of a session"):
        await handle.say("Later.", next=True)
    await handle.deny()
    await handle.result()


async def test_a_turn_that_nobody_recorded_is_recorded_by_who_begins_the_next_one(stage, talking, monkeypatch):
    monkeypatch.setattr(Sessions, "advance", AsyncMock(side_effect=ConnectionFailed("the store is down")))
    talk = await talking([calling("choose", flight="MU1"), "Chosen.", "MU1."], [choose], variables=Trip)
    async with talk.handle() as session:
        await session.ask("Choose MU1.")
        store = store_of(stage.client.settings)
        kept = await store.session("default", talk.name)
        assert kept
        assert kept.begun, "its turn was recorded by somebody else"
        await store.aclose()
        assert (await session.ask("Which one?")).variables["flight"] == "MU1"
