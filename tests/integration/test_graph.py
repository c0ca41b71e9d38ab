"""Runs that go along a graph: their nodes are calls like any other, joined in declared order, and never lost."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from perdure import Approval, DecisionRejected, Limits, ToolError, ask_user, tool
from perdure.strategies.graph import END, START, ApprovalNode, Branch, Edge, Graph, Join, Node


class Trip(BaseModel):
    """State of the tests."""

    city: str = ""
    hotels: list[str] = []
    flights: list[str] = []
    log: list[str] = []
    choice: str = ""
    price: int = 0
    rounds: int = 0
    route: Literal["refund", "help"] = "help"


def put_together(old: list[str] | None, new: list[str]) -> list[str]:
    return [*(old or []), *new]


def one_more(rounds: int) -> int:
    return rounds + 1


def begin_at(name: str, *more: Any) -> list[Any]:
    return [Edge(START, name), *more]


async def test_branches_run_beside_each_other_and_are_joined_in_declared_order(stage):
    both, ended = asyncio.Barrier(2), list[str]()

    @tool(effect="read")
    async def hotels(city: str) -> list[str]:
        """Find hotels."""
        await both.wait()  # nobody would come if the other were not under way as well
        while "flights" not in ended:
            await asyncio.sleep(0.01)
        ended.append("hotels")
        return [f"hotel in {city}"]

    @tool(effect="read")
    async def flights(city: str) -> list[str]:
        """Find flights."""
        await both.wait()
        ended.append("flights")
        return [f"flight to {city}"]

    def count(log: list[str]) -> int:
        return len(log)

    graph = Graph(
        Trip,
        nodes=[
            Node("stay", hotels, writes="log"),
            Node("go", flights, writes="log"),
            Node("sum", count, writes="price"),
        ],
        edges=[Edge(START, "stay", "go"), Join(["stay", "go"], "sum"), Edge("sum", END)],
        takes="city",
        answer="{log} for {price}",
        reducers={"log": put_together},
    )
    done = await stage.run(["never said"], variables=Trip, strategy=graph, task="Rome")
    assert ended == ["flights", "hotels"]
    assert done.result.text == '["hotel in Rome", "flight to Rome"] for 2'
    assert stage.model.requests == []
    assert [event.calls for event in done.told("moved")] == [["1.1 stay", "1.2 go"], ["2.1 sum"], []]
    assert done.state.progress["taken"] == {
        "__start__>go": 1,
        "__start__>stay": 1,
        "go>sum": 1,
        "stay>sum": 1,
        "sum>__end__": 1,
    }


async def test_a_loop_goes_round_as_often_as_its_bound_allows(stage):
    graph = Graph(
        Trip,
        nodes=[Node("again", one_more, writes="rounds", at_most=4, instead=END)],
        edges=begin_at("again", Edge("again", "again")),
        answer=lambda state: f"{state.rounds} rounds",
    )
    done = await stage.run(["-"], variables=Trip, strategy=graph)
    assert (done.result.status, done.result.text) == ("completed", "4 rounds")


async def test_a_condition_decides_where_the_run_goes_and_what_it_decided_is_recorded(stage):
    asked = list[int]()

    def enough(state: Trip) -> bool:
        asked.append(state.rounds)
        return state.rounds > 1

    graph = Graph(
        Trip,
        nodes=[Node("again", one_more, writes="rounds", at_most=5, instead=END)],
        edges=begin_at("again", Branch("again", enough, {True: END, False: "again"})),
        answer="{rounds}",
    )
    done = await stage.run(["-"], variables=Trip, strategy=graph)
    assert done.result.text == "2"
    assert asked == [1, 2]  # the audit has replayed the history since


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("raise", "failed: ZeroDivisionError"),
        ("elsewhere", 'no case for "nowhere"'),
        ("sleep", "did not decide within"),
    ],
)
async def test_a_condition_that_can_not_decide_ends_the_run_by_name_and_it_can_be_resumed(
    stage, monkeypatch, way, reason
):
    monkeypatch.setattr("perdure.strategies.graph_walk.CONDITION_SECONDS", 0.2)
    well = list[bool]()

    async def where(state: Trip) -> Literal["on"]:
        if well:
            return "on"
        match way:
            case "raise":
                raise ZeroDivisionError
            case "sleep":
                await asyncio.Event().wait()
            case _:
                pass
        return "nowhere"  # type: ignore[return-value]

    graph = Graph(
        Trip,
        nodes=[Node("again", one_more, writes="rounds")],
        edges=begin_at("again", Branch("again", where, {"on": END})),
        answer="{rounds}",
    )
    handle = await stage.start(["-"], variables=Trip, strategy=graph)
    done = await stage.end(handle)
    assert (done.result.status, done.result.failure) == (
        "failed",
        "no_branch" if way == "elsewhere" else "condition_failed",
    )
    assert reason in done.result.reason
    well.append(True)
    assert (await stage.end(await handle.resume())).result.text == "1"  # the node was not visited once more


@pytest.mark.parametrize("arguments", [{"price": 80}, {"question": "Book Grand?", "price": 80}, {}])
async def test_an_approval_node_shows_values_that_a_person_may_change_alone(stage, arguments):
    @tool
    def book(choice: str, price: int) -> str:
        """Book."""
        return f"booked {choice} for {price}"

    graph = Graph(
        Trip,
        nodes=[ApprovalNode("confirm", "Book {choice}?", shows=["price"]), Node("book", book, writes="city")],
        edges=begin_at("confirm", Edge("confirm", "book"), Edge("book", END)),
        takes="choice",
        answer="{city}",
    )
    handle = await stage.start(["-"], variables=Trip, strategy=graph, task="Grand")
    asked = await stage.until(handle, "approval_requested")
    assert asked.name == "confirm"
    assert asked.arguments == {"question": "Book Grand?", "price": 0}
    with pytest.raises(DecisionRejected, match="'question' of confirm can't be changed; leave it out"):
        await handle.approve(asked.call, arguments={"question": "Book Ritz?", "price": 80})
    await handle.approve(asked.call, arguments=arguments)
    done = await stage.end(handle)
    assert done.result.text == f"booked Grand for {arguments.get('price', 0)}"
    decided = done.told("approval_decided")[0]
    assert decided.edited is bool(arguments)


@pytest.mark.parametrize("edge", [True, False])
async def test_a_denial_takes_its_edge_or_ends_the_run_with_its_reason(stage, edge):
    graph = Graph(
        Trip,
        nodes=[
            ApprovalNode("confirm", "Go?", on_denied="again" if edge else ""),
            Node("again", one_more, writes="rounds"),
        ],
        edges=begin_at("confirm", Edge("confirm", "again"), Edge("again", END)),
        answer="{rounds} round",
    )
    handle = await stage.start(["-"], variables=Trip, strategy=graph)
    asked = await stage.until(handle, "approval_requested")
    await handle.deny(asked.call, reason="too dear")
    done = await stage.end(handle)
    if edge:
        assert (done.result.status, done.result.text) == ("completed", "1 round")
        return
    assert (done.result.status, done.result.failure) == ("failed", "denied")
    assert "confirm: Denied by" in done.result.reason
    assert "too dear" in done.result.reason


@pytest.mark.parametrize("edge", [True, False])
async def test_a_node_that_fails_takes_its_edge_or_fails_the_run_which_is_resumed_there(stage, edge):
    tries = list[int]()

    @tool(effect="read")
    def search(city: str) -> list[str]:
        """Search."""
        tries.append(1)
        if len(tries) == 1:
            raise ToolError("The line is busy.")
        return [city]

    graph = Graph(
        Trip,
        nodes=[
            Node("search", search, writes="hotels", on_error="again" if edge else ""),
            Node("beside", one_more, writes="rounds"),
            Node("again", one_more, writes="price", inputs={"rounds": "price"}),
        ],
        edges=[Edge(START, "search", "beside"), Join(["search", "beside"], "again"), Edge("again", END)],
        takes="city",
        answer="{hotels} {rounds} {price}",
    )
    handle = await stage.start(["-"], variables=Trip, strategy=graph, task="Rome")
    done = await stage.end(handle)
    if edge:
        assert done.result.text == "[] 1 2"  # once by its edge, once by the join, which does not wait for it
        return
    assert (done.result.status, done.result.failure) == ("failed", "node_failed")
    assert done.result.reason == "Node search failed: The line is busy."
    assert done.result.variables["rounds"] == 1  # partial work is kept
    again = await stage.end(await handle.resume())
    assert again.result.text == '["Rome"] 1 1'
    assert sum(call.name == "beside" for call in again.result.calls) == 1


async def test_an_agent_is_a_node_and_can_choose_among_declared_lines_alone(stage):
    clerk = stage.agent(["Let us see.", "They want *Refund*."], name="clerk")
    fine = stage.agent(["Refund."], name="clerk2")
    for agent, text, visits in ((clerk, None, 3), (fine, "refunded", 1)):
        graph = Graph(
            Trip,
            nodes=[
                Node("triage", agent, task="Which is it? {input}", writes="route"),
                Node("refund", refunded_to, writes="city"),
                Node("help", one_more, writes="rounds"),
            ],
            edges=begin_at(
                "triage",
                Branch("triage", "route", {"refund": "refund", "help": "help"}),
                Edge("refund", END),
                Edge("help", END),
            ),
            answer="{city}",
        )
        owner = stage.agent(["-"], variables=Trip, strategy=graph)
        await stage.serve(owner, *owner.below)
        done = await stage.end(await stage.start_again(owner, "I want my money back."))
        assert sum(call.name == "triage" for call in done.result.calls) == visits
        first = done.result.calls[0].arguments["task"]
        assert first == "Which is it? I want my money back.\n\nAnswer with nothing but one of these words: refund, help"
        if text:
            assert (done.result.status, done.result.text) == ("completed", text)
        else:
            assert (done.result.status, done.result.failure) == ("failed", "node_failed")
            assert "no value of route" in done.result.reason
            assert "The last answer to this could not be used" in done.result.calls[1].arguments["task"]


def refunded_to() -> str:
    return "refunded"


async def test_a_graph_is_a_node_of_another_and_its_approvals_are_waited_for(stage):
    inner = Graph(
        Trip,
        nodes=[ApprovalNode("allow", "Look into {city}?"), Node("look", refunded_to, writes="choice")],
        edges=begin_at("allow", Edge("allow", "look"), Edge("look", END)),
        takes="city",
        answer="{choice} in {city}",
    )
    scout = stage.agent(["-"], name="scout", variables=Trip, strategy=inner)
    outer = Graph(
        Trip,
        nodes=[Node("scout", scout, task="{city}", writes="choice")],
        edges=begin_at("scout", Edge("scout", END)),
        takes="city",
        answer="It is {choice}.",
    )
    assert outer.shape.node("scout").kind == "graph"
    owner = stage.agent(["-"], name="owner", variables=Trip, strategy=outer)
    await stage.serve(owner, *owner.below)
    handle = await stage.start_again(owner, "Oslo")
    await stage.until(handle, "tool_started")
    child = stage.client.handle(f"{handle.id}/1.1")
    asked = await stage.until(child, "approval_requested")
    await child.approve(asked.call)
    assert (await stage.end(handle)).result.text == "It is refunded in Oslo."


async def test_without_an_answer_of_its_own_the_model_sums_up_and_may_not_call(stage):
    graph = Graph(Trip, nodes=[Node("again", one_more, writes="rounds")], edges=begin_at("again", Edge("again", END)))
    done = await stage.run(["All done."], variables=Trip, strategy=graph)
    assert (done.result.status, done.result.text) == ("completed", "All done.")
    [asked] = stage.model.requests
    assert asked.answer_only


async def test_at_its_limit_a_run_answers_with_what_is_known(stage):
    graph = Graph(
        Trip,
        nodes=[Node("again", one_more, writes="rounds", at_most=9, instead=END)],
        edges=begin_at("again", Edge("again", "again")),
        answer="{rounds}",
    )
    done = await stage.run(["-"], variables=Trip, strategy=graph, limits=Limits(steps=4))
    assert done.result.status == "budget_exhausted"
    assert done.result.text.startswith("Not finished: the limit of this run was reached before again.")
    assert '"rounds": 3' in done.result.text


async def test_what_the_user_says_meanwhile_is_told_to_agents_that_begin_later(stage):
    writer = stage.agent(["Written."], name="writer")
    graph = Graph(
        Trip,
        nodes=[ApprovalNode("go", "Go on?"), Node("write", writer, task="Write about {city}.", writes="choice")],
        edges=begin_at("go", Edge("go", "write"), Edge("write", END)),
        takes="city",
        answer="{choice}",
    )
    owner = stage.agent(["-"], variables=Trip, strategy=graph)
    await stage.serve(owner, *owner.below)
    handle = await stage.start_again(owner, "Rome")
    asked = await stage.until(handle, "approval_requested")
    await handle.say("Only in May.")
    await handle.approve(asked.call)
    done = await stage.end(handle)
    assert done.result.calls[1].arguments["task"] == "Write about Rome.\n\nThe user has said since:\n- Only in May."


async def test_a_run_goes_on_in_the_graph_with_which_it_began(stage):
    def graph(name: str, answer: str) -> Graph:
        nodes = [ApprovalNode("go", "Go on?"), Node(name, one_more, writes="rounds")]
        return Graph(Trip, nodes=nodes, edges=begin_at("go", Edge("go", name), Edge(name, END)), answer=answer)

    old = stage.agent(["-"], variables=Trip, strategy=graph("again", "old {rounds}"))
    await stage.serve(old)
    handle = await stage.start_again(old)
    asked = await stage.until(handle, "approval_requested")
    nodes = [
        ApprovalNode("go", "Go on?"),
        Node("again", one_more, writes="rounds"),
        Node("more", one_more, writes="price"),
    ]
    edges = begin_at("go", Edge("go", "more"), Edge("more", "again"), Edge("again", END))
    new = stage.agent(["-"], variables=Trip, strategy=Graph(Trip, nodes=nodes, edges=edges, answer="new"))
    await stage.serve(new)
    await handle.approve(asked.call)
    done = await stage.end(handle)
    assert done.result.text == "old 1"
    assert [call.name for call in done.result.calls] == ["go", "again"]


async def test_a_node_is_asked_about_by_the_rules_of_its_tool_and_agent(stage):
    @tool
    def book(city: str) -> str:
        """Book."""
        return f"booked {city}"

    graph = Graph(
        Trip,
        nodes=[Node("reserve", book, writes="choice")],
        edges=begin_at("reserve", Edge("reserve", END)),
        takes="city",
        answer="{choice}",
    )
    approval = Approval(tools={"reserve": "always"})
    handle = await stage.start(["-"], variables=Trip, strategy=graph, task="Rome", approval=approval)
    asked = await stage.until(handle, "approval_requested")
    await handle.approve(asked.call, arguments={"city": "Oslo"})
    assert (await stage.end(handle)).result.text == "booked Oslo"


async def test_a_long_run_keeps_its_place_over_executions(stage):
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})
    graph = Graph(
        Trip,
        nodes=[Node("again", one_more, writes="rounds", at_most=12, instead=END)],
        edges=begin_at("again", Edge("again", "again")),
        answer="{rounds}",
    )
    done = await stage.run(["-"], variables=Trip, strategy=graph)
    assert done.result.text == "12"
    assert done.state.before is not None  # its transcript was put away meanwhile


async def test_each_turn_of_a_session_goes_along_the_graph_anew_with_what_was_written(stage):
    graph = Graph(
        Trip,
        nodes=[Node("again", one_more, writes="rounds")],
        edges=begin_at("again", Edge("again", END)),
        takes="city",
        answer="{city} {rounds}",
    )
    agent = stage.agent(["-"], variables=Trip, strategy=graph)
    await stage.serve(agent)
    async with stage.client.session(f"s-{stage.queue}", agent, task_queue=stage.queue) as session:
        assert (await session.ask("Rome")).text == "Rome 1"
        assert (await session.ask("Oslo")).text == "Oslo 2"


async def test_a_node_may_ask_the_user_whose_words_are_kept_as_they_are(stage):
    graph = Graph(
        Trip,
        nodes=[Node("ask", ask_user, given={"question": "How many?"}, writes="choice")],
        edges=begin_at("ask", Edge("ask", END)),
        answer="{choice}",
    )
    handle = await stage.start(["-"], variables=Trip, strategy=graph)
    asked = await stage.until(handle, "asked")
    await handle.answer("5", call=asked.call)
    assert (await stage.end(handle)).result.text == "5"
