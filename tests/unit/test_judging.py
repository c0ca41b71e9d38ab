"""Judging what a model wrote: each kind of problem, and who is asked."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Approval, Tool, tool
from perdure.activities.judging import judge_edit, judge_reply, must_ask, validate
from perdure.messages import ToolCall, Usage, content_hash
from perdure.models import ModelReply, RawCall
from perdure.reports import ModelTurn


class Leg(BaseModel):
    start: str
    end: str


@tool(effect="read")
def find(city: str, price: float = 0, legs: list[Leg] | None = None, notes: dict[str, Any] | None = None) -> str:
    """Find."""
    return city


@tool(effect="read")
def ping() -> str:
    """Ping."""
    return ""


async def at_once(function: Any, keywords: Any, seconds: float) -> Any:
    """Run a predicate right here, as the toolbox does elsewhere."""
    value = function(**keywords)
    return await value if asyncio.iscoroutine(value) else value


AGENT = Agent("a", "openai:x", tools=[find, ping])


async def judged(arguments: str, *, name: str = "find", agent: Agent = AGENT, finish: Any = "calls") -> ToolCall:
    reply = ModelReply(calls=[RawCall("c1", name, arguments)], finish=finish)
    turn = await judge_reply(reply, agent.spec.model, agent.spec, agent, at_once)
    assert ModelTurn.model_validate_json(turn.model_dump_json()) == turn, "a history gives back what was put in"
    content_hash(turn.message)
    return turn.message.calls[0]


# -- calls that can't be executed -----------------------------------------------------------------------------


async def test_call_that_fits_has_its_arguments_and_no_problem():
    call = await judged('{"city": "上海", "price": 1.5}')
    assert (call.id, call.name, call.arguments) == ("c1", "find", {"city": "上海", "price": 1.5})
    assert (call.problem, call.ask) == (None, None)


@pytest.mark.parametrize("text", ["", "{}", " {} "])
async def test_empty_arguments_are_an_empty_object(text):
    assert (await judged(text, name="ping")).problem is None


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "x"',
        "{'city': 'x'}",
        "city=x",
        '{"city": NaN}',
        '{"city": "x", "price": Infinity}',
        '{"city": "x", "price": 1e999}',
        '{"city": "x", "price": -1e999}',
        '{"city": "x", "price": %s}' % ("9" * 5_000),
        '{"city": "x", "notes": ' + '{"a":' * 150 + "1" + "}" * 151,
        '{"city": "x", "notes": ' + '{"a":' * 900 + "1" + "}" * 901,
        "[" * 100_000,
        '{"city": "x"}{"city": "y"}',
        "<call/>",
    ],
)
async def test_arguments_that_are_no_json_that_can_be_kept_are_not_executed(text):
    call = await judged(text)
    assert call.arguments == {}
    assert call.problem
    assert call.problem.error_type == "invalid_json"
    assert call.problem.message.startswith("The arguments of find are not valid JSON: ")
    assert len(call.problem.message) < 500
    assert call.problem.suggestion == "Call it again with a complete JSON object."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "find: 'city' is a required property"),
        ('{"city": 3}', "city: 3 is not of type 'string'"),
        ('{"city": null}', "city: None is not of type 'string'"),
        ('{"city": "x", "town": "y"}', "find: there is no 'town'"),
        ('{"city": "x", "prise": 1}', "find: there is no 'prise', did you mean 'price'?"),
        ('{"city": "x", "price": "cheap"}', "price: 'cheap' is not of type 'number'"),
        ('{"city": "x", "price": true}', "price: True is not of type 'number'"),
        ('{"city": "x", "legs": [{"start": "A", "end": "B"}, {"start": "A"}]}', "legs"),
        ("null", "have to be a JSON object, not NoneType"),
        ('"x"', "have to be a JSON object, not str"),
        ('["x"]', "have to be a JSON object, not list"),
        ("3", "have to be a JSON object, not int"),
    ],
)
async def test_arguments_that_do_not_fit_are_not_executed_and_what_is_wrong_is_said(text, said):
    call = await judged(text)
    assert call.problem
    assert call.problem.error_type == "invalid_arguments"
    assert said in call.problem.message
    assert call.problem.message.endswith(".")


async def test_arguments_that_do_not_fit_are_kept_for_people_to_see():
    assert (await judged('{"city": 3}')).arguments == {"city": 3}
    assert (await judged("[3]")).arguments == {}


async def test_many_errors_are_cut_short_and_the_arguments_listed():
    many = ", ".join(f'"extra{i}": {i}' for i in range(50))
    wrong = Tool.from_schema(
        print,
        {"properties": {f"extra{i}": {"type": "string"} for i in range(50)}},
        name="wide",
        description="Wide.",
        effect="read",
    )
    problem = validate({f"extra{i}": i for i in range(50)}, wrong.spec)
    assert problem
    assert "(and 45 more)" in problem.message
    assert (await judged(f'{{"city": "x", {many}}}')).problem
    call = await judged('{"a": 1}', name="ping")
    assert call.problem
    assert call.problem.suggestion == "It takes no arguments."


async def test_endless_values_are_not_repeated_in_the_problem():
    call = await judged('{"city": [' + ", ".join(["1"] * 10_000) + "]}")
    assert call.problem
    assert len(call.problem.message) < 1_000


async def test_large_whole_numbers_are_kept_to_the_last_digit():
    call = await judged('{"city": "x", "notes": {"n": %s}}' % ("9" * 40))
    assert call.arguments["notes"]["n"] == int("9" * 40)


async def test_half_an_emoji_is_replaced_and_a_whole_one_kept():
    call = await judged('{"city": "a\\ud83d b\\ud83d\\ude00"}')
    assert call.arguments == {"city": "a? b😀"}
    assert (await judged('{"city": "a\ud83d"}')).arguments == {"city": "a?"}
    call = await judged('{"city": "x", "notes": {"\\udc00": 1}}')
    assert call.arguments["notes"] == {"?": 1}


async def test_last_of_two_equal_keys_counts():
    assert (await judged('{"city": "x", "city": "y"}')).arguments == {"city": "y"}


@pytest.mark.parametrize(("name", "hint"), [("fnid", "Did you mean find?"), ("book_a_moon", None), ("", None)])
async def test_unknown_tool_is_a_problem_that_lists_those_known(name, hint):
    call = await judged("{}", name=name)
    assert call.name == name
    assert call.problem
    assert (call.problem.error_type, call.problem.message) == ("unknown_tool", f"There is no tool {name!r}.")
    assert call.problem.suggestion
    assert call.problem.suggestion.startswith("The tools are: find, ping.")
    assert (hint in call.problem.suggestion) if hint else ("Did you mean" not in call.problem.suggestion)


async def test_agent_without_tools_says_so():
    call = await judged("{}", agent=Agent("a", "openai:x"))
    assert call.problem
    assert call.problem.suggestion == "There are no tools."


async def test_endless_name_is_cut():
    assert len((await judged("{}", name="x" * 10_000 + "\ud83d")).name) == 200


@pytest.mark.parametrize("finish", ["length", "filtered"])
async def test_call_of_a_reply_that_was_cut_off_is_not_executed_even_if_it_looks_whole(finish):
    call = await judged('{"city": "x"}', finish=finish)
    assert call.problem
    assert call.problem.error_type == "cut_off"


async def test_reply_keeps_text_reasoning_usage_and_who_wrote_it():
    usage = Usage(input_tokens=3)
    reply = ModelReply(text="half \ud83d", finish="stop", usage=usage, reasoning=[{"id": "r"}], model="gpt-x-1")
    turn = await judge_reply(reply, AGENT.spec.model, AGENT.spec, AGENT, at_once)
    assert (turn.message.text, turn.message.reasoning, turn.message.provider) == ("half ?", [{"id": "r"}], "openai")
    assert (turn.finish, turn.usage) == ("stop", usage)
    assert (turn.model, turn.served) == (AGENT.spec.model, "gpt-x-1")


# -- who is asked ---------------------------------------------------------------------------------------------


def payer(approval: Any, **rules: Any) -> Agent:
    @tool(approval=approval)
    def pay(amount: float = 1) -> None:
        """Pay."""

    return Agent("a", "openai:x", tools=[pay], approval=Approval(**rules))


async def asked(agent: Agent, run: Any = at_once, *, live: Agent | None = None, **arguments: Any) -> str | None:
    return await must_ask(arguments, agent.spec.tools[0], agent.spec, live or agent, run)


async def test_words_decide_without_a_function():
    assert await asked(payer("always")) == "pay needs approval."
    assert await asked(payer("never")) is None
    assert await asked(payer(None, default="always")) == "pay needs approval."
    assert await asked(payer("always", tools={"pay": "never"})) is None


def costly(amount: float = 1) -> bool:
    return amount > 100


async def costly_later(amount: float = 1) -> bool:
    return amount > 100


@pytest.mark.parametrize("predicate", [costly, costly_later])
async def test_function_decides_by_the_arguments(predicate):
    assert await asked(payer(predicate), amount=5) is None
    assert await asked(payer(predicate), amount=500) == "pay needs approval for these arguments."
    call = await judged('{"amount": 500}', name="pay", agent=payer(predicate))
    assert call.ask == "pay needs approval for these arguments."


@pytest.mark.parametrize("given", [0, "", None, []])
async def test_whatever_is_falsy_lets_the_call_through(given):
    assert await asked(payer(lambda: given)) is None


@pytest.mark.parametrize("error", [ValueError(), TypeError(), TimeoutError(), RecursionError()])
async def test_function_that_fails_lets_nothing_through(error):
    def raises():
        raise error

    said = f"The approval predicate 'pay' failed ({type(error).__name__}), so a person is asked."
    assert await asked(payer(raises)) == said


async def test_function_of_other_parameters_lets_nothing_through():
    assert "failed (TypeError)" in (await asked(payer(costly), currency="EUR") or "")


async def test_function_that_is_not_there_any_more_lets_nothing_through():
    agent = payer(costly)
    gone = "The approval predicate 'pay' is not there any more, so a person is asked."
    assert await asked(agent, live=payer("never")) == gone
    assert await asked(agent, live=Agent("a", "openai:x")) == gone
    assert await must_ask({}, agent.spec.tools[0], agent.spec, None, at_once) == gone


async def test_run_keeps_the_rule_that_it_started_with_whatever_is_deployed_now():
    assert await asked(payer("always"), live=payer("never")) == "pay needs approval."
    assert await asked(payer("never"), live=payer("always")) is None


async def test_function_gets_five_seconds():
    given: list[float] = []

    async def run(function, keywords, seconds):
        given.append(seconds)
        raise TimeoutError

    assert await asked(payer(costly), run)
    assert given == [5.0]


async def test_broken_call_asks_nobody():
    def never() -> bool:
        raise AssertionError

    call = await judged('{"amount": "much"}', name="pay", agent=payer(never))
    assert call.problem
    assert call.ask is None


# -- edited arguments -----------------------------------------------------------------------------------------


async def test_edited_arguments_are_validated_and_judged_again():
    agent = payer(costly)
    fine = await judge_edit({"amount": 5}, "pay", agent.spec, agent, at_once)
    assert (fine.problem, fine.ask) == (None, None)
    dear = await judge_edit({"amount": 500}, "pay", agent.spec, agent, at_once)
    assert dear.ask
    wrong = await judge_edit({"amount": "much"}, "pay", agent.spec, agent, at_once)
    assert wrong.problem
    assert wrong.problem.error_type == "invalid_arguments"
    unknown = await judge_edit({}, "pray", agent.spec, agent, at_once)
    assert unknown.problem
    assert unknown.problem.error_type == "unknown_tool"


@pytest.mark.parametrize(
    ("said", "refused"), [("It is {city}.", "It is there."), (None, ""), (1 / 3, "can't be checked: AttributeError")]
)
async def test_a_tool_itself_may_refuse_an_edit_that_fits_its_schema(said: Any, refused: str):
    own = replace(find, check=lambda city: said if said is None else said.format(city=city))
    agent = Agent("a", "openai:x", tools=[own])
    problem = (await judge_edit({"city": "there"}, "find", agent.spec, agent, at_once)).problem
    assert refused in problem.message if problem else not refused
    unfit = await judge_edit({"town": "there"}, "find", agent.spec, agent, at_once)
    assert unfit.problem and "do not fit" in unfit.problem.message  # noqa: PT018 - the type checker's
