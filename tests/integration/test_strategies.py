"""A strategy decides what each turn is: the model is asked its way, or calls are made without it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Limits, tool
from perdure.errors import AgentError
from perdure.policies import Approval, StrategySpec
from perdure.strategies import Answer, Ask, Directed, Do, Fail, Situation


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is fine"


@tool
def book(seat: str) -> str:
    """Book a seat."""
    return f"booked {seat}"


@dataclass
class Led:
    """A strategy of a test: its moves in order, each a move or a function of what was seen."""

    moves: list[Any]
    asks: bool = True
    name: str = "led"

    def spec(self) -> StrategySpec:
        return StrategySpec(name=self.name, options={"of": "the test"}, asks=self.asks)

    def tools(self, agent: Any) -> Any:
        return agent.tools

    def move(self, seen: Situation) -> Any:
        move = self.moves[min(seen.step, len(self.moves)) - 1]
        return move(seen) if callable(move) else move


def calls(*named: tuple[str, dict[str, Any]], **more: Any) -> Do:
    return Do([Directed(name=name, arguments=arguments) for name, arguments in named], **more)


LOOK = ("look", {"place": "Rome"})
BOOK = ("book", {"seat": "1A"})


def contents(seen: Situation) -> Answer:
    return Answer("; ".join(result.content for result in seen.results))


async def test_calls_that_a_strategy_makes_are_done_without_the_model(stage):
    led = Led([calls(LOOK, ("look", {"place": "Oslo"})), contents], asks=False)
    done = await stage.run(["never said"], [look], strategy=led)
    assert (done.result.status, done.result.text) == ("completed", "Rome is fine; Oslo is fine")
    assert stage.model.requests == []
    assert done.result.usage.input_tokens == 0
    assert [event.calls for event in done.told("moved")] == [["1.1 look", "1.2 look"], []]
    assert done.told("model_started") == done.told("model_finished") == []


async def test_a_strategy_says_with_which_words_and_tools_the_model_is_asked(stage):
    first = Ask(instructions="Only look.", tools=["look"], note="Now.", progress={"at": 1})
    second = {"calls": [{"name": "book", "arguments": {"seat": "1A"}}]}
    done = await stage.run([second, "done"], [look, book], strategy=Led([first, Ask()]), instructions="Be brief.")
    asked, again = stage.model.requests
    assert [one.name for one in asked.tools] == ["look"]
    assert asked.instructions == "Be brief.\n\nOnly look."
    assert asked.messages[-1].content == "Now."
    assert [one.name for one in again.tools] == ["look", "book"]
    assert "Now." not in [message.content for message in again.messages if message.role == "user"]
    assert [result.status for result in done.results] == ["error"]  # it was not offered
    assert done.state.progress == {"at": 1}


async def test_a_strategy_is_told_what_it_said_and_what_came_of_it(stage):
    told: list[Situation] = []

    def end(seen: Situation) -> Answer:
        told.append(seen)
        return Answer("end")

    done = await stage.run(["-"], [look], strategy=Led([calls(LOOK, progress={"round": 1}), end]))
    [seen] = told
    assert (seen.progress, seen.options, seen.step) == ({"round": 1}, {"of": "the test"}, 2)
    assert seen.last
    assert [call.name for call in seen.last.calls] == ["look"]
    assert [result.content for result in seen.results] == ["Rome is fine"]
    assert done.result.text == "end"


async def test_what_a_strategy_calls_is_approved_edited_and_denied_like_any_call(stage):
    led = Led([calls(BOOK), lambda seen: Answer(seen.results[0].content or seen.results[0].status)])
    handle = await stage.start(["-"], [book], strategy=led, approval=Approval(default="always"))
    asked = await stage.until(handle, "approval_requested")
    await handle.approve(asked.call, arguments={"seat": "2B"})
    assert (await stage.end(handle)).result.text == "booked 2B"
    denied = await stage.start(["-"], [book], strategy=led, approval=Approval(default="always"))
    asked = await stage.until(denied, "approval_requested")
    await denied.deny(asked.call, reason="not today")
    assert (await stage.end(denied)).result.text == "denied"


async def test_what_the_user_says_meanwhile_reaches_the_strategy(stage):
    def tell(seen: Situation) -> Answer:
        return Answer(f"{seen.results[0].status}: {seen.said[0].content}")

    handle = await stage.start(["-"], [book], strategy=Led([calls(BOOK), tell]), approval=Approval(default="always"))
    asked = await stage.until(handle, "approval_requested")
    await handle.say("stop it")
    await handle.deny(asked.call, reason="no")
    assert (await stage.end(handle)).result.text == "denied: stop it"


async def test_a_strategy_goes_the_same_round_as_often_as_it_wants(stage):
    done = await stage.run(["-"], [look], strategy=Led([*[calls(LOOK)] * 8, Answer("round")]))
    assert [result.status for result in done.results] == ["ok"] * 8
    assert done.result.text == "round"


async def test_a_strategy_that_never_ends_is_ended_by_the_limit_of_steps(stage):
    done = await stage.run(["-"], [look], strategy=Led([calls(LOOK)]), limits=Limits(steps=4))
    assert done.result.status == "budget_exhausted"
    assert [result.status for result in done.results] == ["ok"] * 3 + ["skipped"]


@pytest.mark.parametrize(
    ("move", "kind", "words"),
    [
        (Fail("There is no seat.", kind="sold_out"), "sold_out", "There is no seat."),
        (lambda seen: 1 / 0, "strategy_failed", "Strategy 'led' failed: ZeroDivisionError: division by zero"),
        ("what", "strategy_failed", "decided 'what', which is no Ask, Do, Answer or Fail"),
        (Do([]), "strategy_failed", "decided to make calls, and named none"),
        (Answer("", progress={"much": "x" * 70_000}), "strategy_failed", "has 70,011 bytes; at most 65,536 can be"),
    ],
)
async def test_a_run_whose_strategy_can_not_go_on_fails_by_name_and_keeps_its_work(stage, move, kind, words):
    done = await stage.run(["-"], [look], strategy=Led([calls(LOOK), move]))
    assert (done.result.status, done.result.failure) == ("failed", kind)
    assert words in done.result.reason
    assert [call.name for call in done.result.calls] == ["look"]


async def test_a_call_of_no_tool_is_an_error_that_the_strategy_sees(stage):
    wrong = calls(("fly", {}), ("look", {"where": 1}))
    led = Led([wrong, lambda seen: Answer(str([one.error_type for one in seen.results]))])
    done = await stage.run(["-"], [look], strategy=led)
    assert done.result.text == "['unknown_tool', 'invalid_arguments']"


async def test_a_run_whose_strategy_is_not_deployed_any_more_can_be_resumed_when_it_is(stage):
    agent = stage.agent(["-"], [book], strategy=Led([calls(BOOK), Answer("end")]), approval=Approval(default="always"))
    await stage.serve(agent)
    handle = await stage.start_again(agent)
    asked = await stage.until(handle, "approval_requested")
    await stage.serve(replace(agent, strategy=None))
    await handle.approve(asked.call)
    done = await stage.end(handle)
    assert (done.result.status, done.result.failure) == ("failed", "strategy_unavailable")
    assert "no strategy 'led'" in done.result.reason
    await stage.serve(agent)
    resumed = await handle.resume()
    assert (await stage.end(resumed)).result.text == "end"


class Seats(BaseModel):
    """Variables of a test."""

    free: int = 0


async def test_what_a_strategy_writes_is_in_the_variables_of_its_run(stage):
    def end(seen: Situation) -> Answer:
        return Answer(f"{seen.variables['free']} free")

    led = Led([calls(LOOK, variables={"free": 3}), end])
    done = await stage.run(["-"], [look], strategy=led, variables=Seats)
    assert (done.result.text, done.result.variables) == ("3 free", {"free": 3})


async def test_a_run_that_its_strategy_has_failed_is_resumed_with_what_it_knew_then(stage):
    def next_time(seen: Situation) -> Any:
        known: dict[str, Any] = {"progress": {"failed": True}, "variables": {"free": 1}}
        return Answer(f"{seen.variables['free']} after all") if seen.progress else Fail("None.", kind="none", **known)

    handle = await stage.start(["-"], [look], strategy=Led([next_time]), variables=Seats)
    failed = await stage.end(handle)
    assert (failed.result.status, failed.result.failure, failed.result.reason) == ("failed", "none", "None.")
    assert (await stage.end(await handle.resume())).result.text == "1 after all"


def test_what_is_no_strategy_is_refused(stage):
    with pytest.raises(AgentError, match=r"strategy has to be an object with name, spec, tools and move"):
        stage.agent(["-"], strategy="plan")
