"""Hand-offs: another agent goes on with the conversation, in the same run."""

from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Approval, Handoff, Limits, Plan, tool
from perdure.errors import AgentError
from perdure.messages import AssistantMessage
from perdure.strategies.graph import END, START, Edge, Graph, Node
from perdure.strategies.team import Member, Team
from perdure.testing import ScriptedModel


def over(to, why="it is about money", **also):
    return {"calls": [{"name": f"transfer_to_{to}", "arguments": {"reason": why}}, *also.get("calls", [])]}


PAYING = {"calls": [{"name": "pay", "arguments": {"order": "A1"}}]}


@pytest.fixture
def paid():
    return []


@pytest.fixture
def pay(paid):
    @tool(approval="always")
    def pay(order: str) -> str:
        """Pay an order back."""
        paid.append(order)
        return f"paid {order}"

    return pay


@tool(effect="read")
def look(order: str) -> str:
    """Look up an order."""
    return f"{order} is broken"


class Heard(ScriptedModel):
    """A scripted model that keeps what it was asked."""

    def __init__(self, replies: list[Any]) -> None:
        super().__init__(replies)
        self.heard: list[Any] = []

    async def generate(self, request: Any, *given: Any, **options: Any) -> Any:
        self.heard.append(request)
        return await super().generate(request, *given, **options)


def desk(stage, replies, *, first=(), second=(), limits=None, **options):
    """Return a desk whose agent `refunds` may hand back, and the model that all of them ask."""
    model = Heard(replies)
    refunds = stage.agent(model, second, name="refunds", instructions="Refund.", handoffs=["triage"], **options)
    given: dict[str, Any] = {"limits": limits} if limits else {}
    return stage.agent(model, first, name="triage", instructions="Sort.", handoffs=[refunds], **given), model


async def test_another_agent_goes_on_with_the_whole_conversation_in_the_same_run(stage, pay, paid):
    triage, model = desk(stage, [over("refunds"), PAYING, "You have it back."], first=[look], second=[pay])
    await stage.serve(triage)
    handle = await stage.start_again(triage, "My A1 is broken.")
    asked = await stage.until(handle, "approval_requested")
    assert (asked.agent, asked.name) == ("refunds", "pay")
    await handle.approve("2.1")
    done = await stage.end(handle)
    assert (done.result.status, done.result.text, paid) == ("completed", "You have it back.", ["A1"])
    assert done.results[0].content.startswith("refunds goes on with the conversation from here, in place of triage")
    assert [(one.instructions, [tool.name for tool in one.tools]) for one in model.heard] == [
        ("Sort.", ["look", "transfer_to_refunds"]),
        ("Refund.", ["pay", "transfer_to_triage"]),
        ("Refund.", ["pay", "transfer_to_triage"]),
    ]
    assert model.heard[1].messages[0].content == "My A1 is broken."
    [handed] = done.told("handed_off")
    assert (handed.agent, handed.to, handed.times) == ("triage", "refunds", 1)
    asked = [(event.agent, event.step) for event in done.told("model_started")]
    assert asked == [("triage", 1), ("refunds", 2), ("refunds", 3)]
    assert len({event.spec_hash for event in done.told("model_started")}) == 2
    said = [entry.agent for entry in done.projection.entries if isinstance(entry, AssistantMessage)]
    assert said == ["triage", "refunds", "refunds"]


async def test_calls_beside_a_hand_off_are_done_and_the_first_of_two_hand_offs_counts(stage):
    both = over("refunds", calls=[{"name": "look", "arguments": {"order": "A1"}}, {"name": "transfer_to_refunds"}])
    triage, _ = desk(stage, [both, "done"], first=[look])
    await stage.serve(triage)
    done = await stage.end(await stage.start_again(triage))
    assert [result.status for result in done.results] == ["ok", "ok", "skipped"]
    assert "handed over to another agent in this turn already" in done.results[2].message
    assert (done.state.spec.name, done.state.handed) == ("refunds", 1)


async def test_it_is_handed_back_by_name_and_not_for_ever(stage):
    turns = [over("refunds"), over("triage"), over("refunds"), over("triage"), "So be it."]
    triage, model = desk(stage, turns, limits=Limits(handoffs=3))
    await stage.serve(triage)
    done = await stage.end(await stage.start_again(triage))
    assert done.result.text == "So be it."
    assert [event.to for event in done.told("handed_off")] == ["refunds", "triage", "refunds"]
    assert (done.results[3].status, done.results[3].message) == (
        "skipped",
        "Not executed: at most 3 hand-offs are allowed in one run.",
    )
    assert model.heard[2].instructions == "Sort."


async def test_what_waits_for_a_person_keeps_the_rules_of_the_agent_that_asked(stage, pay, paid):
    model = Heard([PAYING, over("refunds"), "I have taken over.", "And it is paid."])
    refunds = stage.agent(model, [], name="refunds")
    approval = Approval(on_denial="continue")
    triage = stage.agent(model, [pay], name="triage", handoffs=[refunds], approval=approval)
    await stage.serve(triage)
    handle = await stage.start_again(triage)
    await stage.until(handle, "approval_requested")
    await handle.say("Let somebody else do it.")
    await stage.until(handle, "handed_off")
    await stage.until_status(handle, "waiting_approval")
    await stage.serve(triage)  # whoever takes over knows by the history alone
    receipt = await handle.approve("1.1", arguments={"order": "B2"})
    assert receipt.accepted
    done = await stage.end(handle)
    assert (done.result.text, paid) == ("And it is paid.", ["B2"])


async def test_a_deploy_changes_nothing_of_whom_a_waiting_run_may_be_handed_to(stage, pay, paid):
    model = Heard([PAYING, over("refunds"), "Done."])
    refunds = stage.agent(model, name="refunds", instructions="As it was.")
    triage = stage.agent(model, [pay], name="triage", handoffs=[refunds])
    await stage.serve(triage)
    handle = await stage.start_again(triage)
    await stage.until(handle, "approval_requested")
    other = stage.agent(model, name="refunds", instructions="As it is now.")
    await stage.serve(stage.agent(model, [pay], name="triage"), other)
    await handle.approve("1.1")
    done = await stage.end(handle)
    assert (done.result.text, paid, model.heard[-1].instructions) == ("Done.", ["A1"], "As it was.")


async def test_a_hand_off_can_need_a_person_and_is_not_done_where_that_denies_it(stage):
    model = Heard([over("refunds"), "Then not.", "x"])
    refunds = stage.agent(model, name="refunds")
    asks = Approval(tools={"transfer_to_refunds": "always"})
    triage = stage.agent(model, name="triage", handoffs=[refunds], approval=asks)
    await stage.serve(triage)
    handle = await stage.start_again(triage)
    await stage.until(handle, "approval_requested")
    await handle.deny("1.1", reason="not yet")
    done = await stage.end(handle)
    assert (done.result.text, done.state.spec.name, done.told("handed_off")) == ("Then not.", "triage", [])
    again = await stage.start_again(triage)
    await stage.until(again, "approval_requested")
    await again.approve("1.1")
    done = await stage.end(again)
    assert (done.result.text, done.state.spec.name) == ("Then not.", "refunds")


async def test_what_was_done_before_a_hand_off_is_undone_by_the_rules_of_who_did_it(stage):
    undone = []

    def unhold(ctx, result, seat):
        undone.append(seat)

    @tool(compensate=unhold)
    def hold(seat: str) -> str:
        """Hold a seat."""
        return f"held {seat}"

    @tool(compensate=unhold)
    def keep(seat: str) -> str:
        """Keep a seat."""
        return f"kept {seat}"

    turns = [
        {"calls": [{"name": "hold", "arguments": {"seat": "1A"}}]},
        over("refunds"),
        {"calls": [{"name": "keep", "arguments": {"seat": "2B"}}]},
        {"error": {"kind": "authentication", "message": "no key"}},
    ]
    model = Heard(turns)
    refunds = stage.agent(model, [keep], name="refunds")
    triage = stage.agent(model, [hold], name="triage", handoffs=[refunds], compensate_on=["failed"])
    await stage.serve(triage)
    done = await stage.end(await stage.start_again(triage))
    assert (done.result.status, undone) == ("failed", ["1A"])
    assert [(one.name, one.status) for one in done.result.undone] == [("hold", "undone")]


async def test_a_session_goes_on_with_the_agent_that_has_it_and_a_fork_and_a_resumed_run_too(stage, pay):
    triage, model = desk(stage, [over("refunds"), "One.", "Two.", over("triage"), "Three.", "Four."], second=[pay])
    await stage.serve(triage)
    async with stage.client.session("desk", triage, task_queue=stage.queue) as session:
        first = await session.ask("It is broken.")
        assert first.text == "One."
        second = await session.ask("And now?")
        assert second.text == "Two."
        kept = await session.session()
        assert (kept.agent, kept.active) == ("triage", "refunds")
        assert model.heard[-1].instructions == "Refund."
        assert (await session.ask("Something else.")).text == "Three."
        kept = await session.session()
        assert (kept.agent, kept.active) == ("triage", "")
        await session.ask("Bye.")
        assert model.heard[-1].instructions == "Sort."
    turn = stage.client.handle("desk.1")
    fork = await turn.fork(1, say="Once more.")
    done = await stage.end(fork)
    assert done.told("model_started")[-1].agent == "refunds"


async def test_a_run_that_continues_as_new_stays_with_the_agent_that_has_it(stage):
    looking = [{"calls": [{"name": "look", "arguments": {"order": f"A{n}"}}]} for n in range(8)]
    settings = stage.client.settings
    stage.client.settings = settings.model_copy(update={"max_history_events": 30})
    try:
        triage, model = desk(stage, [over("refunds"), *looking, over("triage"), "done"], second=[look])
        await stage.serve(triage)
        done = await stage.end(await stage.start_again(triage))
    finally:
        stage.client.settings = settings
    assert (done.result.text, done.projection.executions > 0) == ("done", True)
    assert [event.agent for event in done.told("model_started")] == ["triage", *["refunds"] * 9, "triage"]
    assert model.heard[-1].instructions == "Sort."


async def test_a_reset_to_before_a_hand_off_begins_there_with_the_agent_of_then(stage):
    triage, model = desk(stage, [over("refunds"), "done"])
    await stage.serve(triage)
    handle = await stage.start_again(triage)
    await stage.end(handle)
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    events = [event async for event in workflow.fetch_history_events()]
    tasks = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

    run_id = (await workflow.describe()).run_id
    request = ResetWorkflowExecutionRequest(
        namespace=stage.client.temporal.namespace,
        workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=run_id),
        workflow_task_finish_event_id=tasks[0],
        request_id="again",
    )
    await stage.client.temporal.workflow_service.reset_workflow_execution(request)
    done = await stage.end(handle)
    assert (done.result.text, done.state.spec.name) == ("done", "refunds")
    assert [one.instructions for one in model.heard] == ["Sort.", "Refund."] * 2


def test_what_can_not_be_handed_over_to_is_refused():
    one, other = Agent("one", "scripted:x.json"), Agent("one", "scripted:y.json")
    between = Agent("between", "scripted:x.json", handoffs=[other])
    given: list[tuple[Any, str]] = [
        ("one", "has to be a list"),
        ([7], "handoffs are agents"),
        (["top"], "can't hand over to itself"),
        ([one, "one"], "in two ways"),
        ([one, between], "two of the agents"),
        ([Handoff(one, name="look")], "name of its tool 'look'"),
    ]
    for handoffs, words in given:
        with pytest.raises(AgentError, match=words):
            Agent("top", "scripted:x.json", tools=[look], handoffs=handoffs)


async def test_a_name_that_nobody_has_is_found_when_it_is_served(stage):
    lost = stage.agent(["x"], name="lost", handoffs=["nobody"])
    with pytest.raises(AgentError, match="hands over to 'nobody'"):
        await stage.serve(lost)


class Kept(BaseModel):
    """State of a graph."""

    found: str = ""


def led(shape, model, clerk):
    """Return how an agent is led that has `clerk` do the work, or plans it with `model`."""
    if shape == "team":
        return {"strategy": Team({}, [Member(clerk, ["request"])], answer="clerk")}
    if shape == "graph":
        edges = [Edge(START, "clerk"), Edge("clerk", END)]
        nodes = [Node("clerk", clerk, writes="found")]
        return {"strategy": Graph(Kept, nodes=nodes, edges=edges, answer="{found}"), "variables": Kept}
    return {"strategy": Plan()}


@pytest.mark.parametrize("shape", ["plan", "team", "graph"])
async def test_an_agent_with_a_strategy_to_which_is_handed_over_knows_what_the_user_wants(stage, shape):
    steps = [{"id": "a", "goal": "Do it.", "depends_on": [], "tools": []}]

    def says(request):
        tools = {one.name for one in request.tools}
        if "transfer_to_led" in tools:
            return over("led") if request.messages[-1].role == "user" else "Ask me anything."
        if "plan" in tools:
            return {"calls": [{"name": "plan", "arguments": {"steps": steps}}]}
        return "it is done"

    model = Heard([says])
    clerk = stage.agent(model, name="clerk")
    how = led(shape, model, clerk)
    last = stage.agent(model, name="led", **how)
    given = {"variables": how["variables"]} if "variables" in how else {}
    agent = stage.agent(model, name="front", handoffs=[last], limits=Limits(steps=30), **given)
    await stage.serve(agent)
    done = await stage.end(await stage.start_again(agent, "Mend the lamp."))
    assert (done.result.status, done.result.text) == ("completed", "it is done")
    worked = [request for request in model.heard if not request.tools]
    assert "Mend the lamp." in str(worked[0].messages[0].content)
