"""Hand-offs as data: whose rules a run has, and what the others' models are shown of private values."""

from __future__ import annotations

import json
from typing import Annotated

from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, Handoff, Sensitive, tool
from perdure.concealing import book_of
from perdure.handing import passed_to
from perdure.messages import ToolMessage, ToolResult, content_hash

NAMES = ["a", "b", "c", "d"]


def ring() -> Agent:
    """Return an agent whose network is a ring: each hands over to the next one, the last to the first."""
    agent = Agent("d", "m:d", "D.", handoffs=["a"])
    for name in ("c", "b", "a"):
        agent = Agent(name, f"m:{name}", f"{name.upper()}.", handoffs=[agent])
    return agent


@given(st.lists(st.sampled_from(NAMES), max_size=12))
def test_whoever_has_a_run_knows_all_the_others_and_its_own_way_back(ways: list[str]) -> None:
    first = spec = ring().spec
    for name in ways:
        before, spec = spec, passed_to(spec, name)
        assert spec == before if name == before.name else spec.name == name
        assert {spec.name, *spec.peers} == set(NAMES)
        assert spec.entry == ("" if spec.name == "a" else "a")
        assert all(not peer.peers and not peer.entry for peer in spec.peers.values())
    assert content_hash(passed_to(spec, "a")) == content_hash(first)


def test_a_name_that_is_not_met_is_not_offered_and_one_that_is_met_is_offered_with_its_description() -> None:
    refunds = Agent("refunds", "m:m", handoffs=["desk"])
    assert refunds.spec.handoffs == []
    desk = Agent("desk", "m:m", handoffs=[Handoff(refunds, "For money.", name="to_money")])
    [to] = desk.spec.handoffs
    assert (to.name, to.hands_to, to.description.endswith("For money.")) == ("to_money", "refunds", True)
    assert [tool.name for tool in desk.spec.peers["refunds"].handoffs] == ["transfer_to_desk"]
    assert [agent.name for agent in desk.below] == ["refunds"]


def test_what_one_agents_tools_conceal_the_model_of_the_other_is_not_shown_either() -> None:
    @tool(effect="read")
    def find(name: str) -> dict[str, Annotated[str, Sensitive("phone", conceal=True)]]:
        """Find somebody."""
        return {name: "13812345678"}

    second = Agent("second", "m:m")
    first = Agent("first", "m:m", tools=[find], handoffs=[second])
    content = json.dumps({"Ann": "13812345678"})
    said = [ToolMessage(role="tool", result=ToolResult(call_id="c", name="find", status="ok", content=content))]
    [shown] = book_of(passed_to(first.spec, "second")).read(said)
    assert isinstance(shown, ToolMessage)
    assert shown.result.content == '{"Ann": "‹phone-1›"}'
    assert book_of(second.spec).read(said) == said
