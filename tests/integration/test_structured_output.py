"""Structured output in real runs: asked for again where it does not fit, and there in every end of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, Limits, ModelSettings, RunFailed, tool
from perdure.models import ModelReply, RawCall
from perdure.sensitive import Sensitive
from perdure.testing import ModelServer
from tests.integration.conftest import RawModel


class Itinerary(BaseModel):
    title: str
    days: int = Field(ge=1)


FITS = '{"title": "Rome", "days": 3}'
WRONG = '{"title": "Rome", "days": 0}'
ROME = {"title": "Rome", "days": 3}


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is fine"


class Person(BaseModel):
    name: str
    phone: Annotated[str, Sensitive("phone")]


@tool(effect="read")
def find(name: str) -> Person:
    """Find somebody."""
    return Person(name=name, phone="13812345678")


LOOKING = {"text": "Let me look.", "calls": [{"name": "look", "arguments": {"place": "Rome"}}]}


async def test_the_answer_is_data_and_an_instance_of_the_type(stage):
    done = await stage.run([LOOKING, f"```json\n{FITS}\n```"], [look], output_type=Itinerary)
    assert (done.result.status, done.result.output) == ("completed", ROME)
    assert done.result.output_as(Itinerary) == Itinerary(title="Rome", days=3)
    [ended] = done.told("run_finished")
    assert ended.output == ROME
    assert done.projection.result().output == ROME


async def test_an_answer_that_does_not_fit_is_asked_for_again(stage):
    done = await stage.run([WRONG, "Rome, 3 days", LOOKING, FITS], [look], output_type=Itinerary)
    assert (done.result.status, done.result.output) == ("completed", ROME)
    assert [note.partition(":")[0] for note in done.notes] == [
        "Your last answer does not fit Itinerary",
        "Your last answer is not JSON",
    ]
    assert "days: 0 is less than the minimum of 1" in done.notes[0]


async def test_the_third_that_does_not_fit_ends_the_run_by_name_with_what_there_is(stage):
    handle = await stage.start([LOOKING, WRONG], [look], output_type=Itinerary)
    with pytest.raises(
        RunFailed, match=r"3 unusable replies in a row\. The last one: .* less than the minimum"
    ) as caught:
        await handle.result()
    partial = caught.value.result
    assert (partial.failure, partial.output, partial.text) == ("malformed_output", None, WRONG)
    assert [call.name for call in partial.calls] == ["look"]


@pytest.mark.parametrize(("last", "output"), [(FITS, ROME), (WRONG, None)])
async def test_the_last_turn_of_a_budget_gives_the_output_or_the_text_that_there_is(stage, last, output):
    done = await stage.run([LOOKING, last], [look], output_type=Itinerary, limits=Limits(steps=2))
    assert (done.result.status, done.result.output, done.result.text) == ("budget_exhausted", output, last)


async def test_a_run_that_failed_for_its_answers_is_resumed_to_a_better_one(stage):
    handle = await stage.start([WRONG, WRONG, WRONG, FITS], output_type=Itinerary)
    with pytest.raises(RunFailed):
        await handle.result()
    resumed = await handle.resume()
    assert (await resumed.result()).output == ROME


async def test_a_fork_gives_an_output_of_its_own(stage):
    done = await stage.run([FITS, '{"title": "Oslo", "days": 1}'], output_type=Itinerary)
    fork = await done.handle.fork(1, say="Rather Oslo.")
    stage.audit(fork)
    assert (await fork.result()).output == {"title": "Oslo", "days": 1}


async def test_a_caller_is_given_the_json_of_a_sub_agent(stage):
    scout = stage.agent([f"Here: {FITS}"], name="scout", output_type=Itinerary)
    asking = {"calls": [{"name": "scout", "arguments": {"task": "find"}}]}
    done = await stage.run([asking, "go"], [scout.as_tool("Finds.")], name="guide")
    assert done.results[0].content == json.dumps(ROME)


async def test_a_model_that_knows_nothing_of_schemas_is_told_in_its_instructions(stage):
    told: list[Any] = []

    class Plain:
        provider = "plain"

        async def generate(self, request: Any) -> Any:
            from perdure.models import ModelReply

            told.append(request)
            return ModelReply(text=FITS)

        async def aclose(self) -> None:
            """Nothing is open."""

    done = await stage.run(Plain(), output_type=Itinerary, instructions="Be brief.")
    assert done.result.output == ROME
    assert told[0].output is None
    assert told[0].instructions.startswith("Be brief.\n\nYour final answer has to be one JSON value")


async def test_handles_of_private_values_in_an_answer_are_the_values_in_its_output(stage):
    asked: list[Any] = []

    def answer(request: Any) -> str:
        asked.append(request)
        handle = re.search(r"‹phone-\d+›", str(request.messages[-1])) or [""]
        return json.dumps({"name": "ada", "phone": handle[0]})

    finding = ModelReply(calls=[RawCall("c1", "find", '{"name": "ada"}')], finish="calls")
    done = await stage.run(RawModel(finding, answer), [find], output_type=Person, conceal=True)
    assert done.result.output == {"name": "ada", "phone": "13812345678"}
    assert "13812345678" not in str(asked[0].messages)


# -- servers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["openai", "openai-responses"])
@pytest.mark.parametrize("schemas", [True, False])
async def test_a_server_is_held_to_the_schema_or_told_it(stage, monkeypatch, provider, schemas):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with ModelServer([LOOKING, FITS], schemas=schemas) as server:
        settings = ModelSettings(base_url=server.base_url, structured_output="schema")
        agent = Agent("subject", f"{provider}:m", tools=[look], settings=settings, output_type=Itinerary)
        await stage.serve(agent)
        result = await (await stage.start_again(agent)).result()
    assert result.output == ROME
    bodies = [*{request.raw: request.body for request in server.requests}.values()]  # a lost attempt comes again
    by_api = ["response_format" in body or "format" in body.get("text", {}) for body in bodies]
    assert by_api == ([True, True] if schemas else [True, False, False])
    told = ["JSON Schema below" in str(body.get("messages") or body.get("instructions")) for body in bodies]
    assert told == [not one for one in by_api]


# -- as it is shown ----------------------------------------------------------------------------------------


async def test_the_example_breaks_a_rule_first_and_is_mended(stage, monkeypatch):
    from examples import itinerary
    from perdure.testing import load_script

    script = load_script("examples/itinerary.json")
    agent = itinerary.planner
    done = await stage.run(script, agent.tools, output_type=agent.output_type, instructions=agent.instructions)
    assert done.result.output_as(itinerary.Itinerary).legs[-1].end == "Oslo"
    assert "the last leg has to end where the first one starts" in done.notes[0]


async def test_the_guide_runs_as_it_stands(stage, monkeypatch, capsys):
    names: dict[str, Any] = {}
    guide = Path("docs/guides/structured-output.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)), names)
    agent = stage.agent(["words", FITS], output_type=names["Itinerary"])
    await stage.serve(agent)
    monkeypatch.setenv("PERDURE_HOME", str(stage.client.settings.home))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", stage.queue)
    names["planner"] = agent
    assert (await names["plan"]("go")).days == 3
    handle = await stage.start_again(agent)
    await names["follow"](handle)
