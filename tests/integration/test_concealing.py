"""A model that plans with handles: it never sees what is private, and its tools get it all the same."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel

from perdure.agents import Task
from perdure.messages import AssistantMessage, UserMessage
from perdure.policies import ContextPolicy, Limits
from perdure.sensitive import Sensitive
from perdure.tools import tool
from tests.integration.test_compaction import SUMS_UP, Summing
from tests.integration.test_continuing import executions

PHONES = [f"1380013{n:04}" for n in range(400)]
NAME = "张伟"
ROOM = Limits(steps=1_000, input_tokens=None, output_tokens=None, wall_time=None)


class Guest(BaseModel):
    name: Annotated[str, Sensitive("name")]
    phone: Annotated[str, Sensitive("phone")]


class Guests(BaseModel):
    found: list[Guest]
    note: str = "call 138-0013-0000"


called: list[tuple[str, str]] = []


@tool(effect="read")
async def find(count: int = 1, note: str = "call 138-0013-0000") -> Guests:
    """Find guests."""
    return Guests(found=[Guest(name=NAME, phone=phone) for phone in PHONES[:count]], note=note)


@tool(effect="idempotent")
async def text(phone: Annotated[str, Sensitive("phone")], words: str) -> str:
    """Send a text message."""
    called.append((phone, words))
    return f"sent to {phone}"


@tool(effect="idempotent", approval="always")
async def ring(phone: Annotated[str, Sensitive("phone")]) -> str:
    """Ring somebody up."""
    called.append((phone, ""))
    return f"no answer at {phone}"


def asking(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


def sent(requests: list[Any]) -> str:
    """All that a model was shown."""
    return "\n".join(
        [request.instructions for request in requests]
        + [message.model_dump_json() for request in requests for message in request.messages]
    )


def hits(requests: list[Any]) -> list[str]:
    shown = sent(requests)
    return [one for one in (NAME, "138001", "0013000", "138-0013") if one in shown]


async def test_a_model_plans_with_handles_while_its_tools_its_approver_and_its_user_see_values(stage: Any) -> None:
    called.clear()
    script = [
        asking("find"),
        asking("text", phone="‹phone-1›", words="Hello ‹name-1›"),
        asking("text", phone="‹phone-7›", words="nobody"),
        asking("ring", phone="‹phone-1›"),
        "‹name-1› does not answer at ‹phone-1›.",
    ]
    handle = await stage.start(script, [find, text, ring], conceal=True)
    asked = await stage.until(handle, "approval_requested")
    assert asked.arguments == {"phone": PHONES[0]}
    await handle.approve(asked.call, arguments={"phone": PHONES[1]})
    done = await stage.end(handle)
    assert called == [(PHONES[0], f"Hello {NAME}"), (PHONES[1], "")]
    assert done.result.text == f"{NAME} does not answer at {PHONES[0]}."
    assert [result.status for result in done.results] == ["ok", "ok", "error", "ok"]
    assert hits(stage.model.requests) == []
    assert "no answer at ‹phone-2›" in sent(stage.model.requests[-1:])
    for one, next_ in pairwise(request.messages for request in stage.model.requests):
        assert list(next_[: len(one)]) == list(one)
    assert len({request.instructions for request in stage.model.requests}) == 1


async def test_a_result_too_large_to_be_shown_whole_is_read_on_with_the_same_handles(stage: Any) -> None:
    called.clear()

    def reads_on(request: Any) -> dict[str, Any]:
        ref = request.messages[-1].result.ref
        return {
            "calls": [
                {"name": "read_result", "arguments": {"handle": ref, "offset": at, "limit": 3_001}}
                for at in (0, 7_777, 9_000)
            ]
        }

    script = [asking("find", count=400), reads_on, asking("text", phone="‹phone-400›", words="x"), "Done."]
    done = await stage.run(script, [find, text], conceal=True)
    assert called == [(PHONES[399], "x")]
    assert hits(stage.model.requests) == []
    assert done.results[0].size is None, "it fits"
    small = find_within(2_000)
    done = await stage.run(script, [small, text], conceal=True)
    assert done.results[0].size is not None
    assert [result.status for result in done.results[1:4]] == ["ok"] * 3
    assert called[1:] == called[:1]
    assert hits(stage.model.requests) == []


def find_within(limit: int) -> Any:
    return tool(name="find", effect="read", result_limit=limit)(find.function)  # type: ignore[arg-type]


class Echo(Summing):
    """Sums up with all the values that it was shown."""

    async def generate(self, request: Any) -> Any:
        if request.instructions.startswith(SUMS_UP):
            self.summary = f"They looked for ‹name-1›: {request.messages[0].content[:200]}"
        return await super().generate(request)


async def test_handles_stay_the_same_over_compaction_continuing_as_new_and_resuming(stage: Any) -> None:
    called.clear()
    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 60})
    steps = [("find", {"count": 3 + at, "note": "x" * 700}) for at in range(16)]
    steps[8:8] = steps[14:14] = [("text", {"phone": "‹phone-2›", "words": "‹name-1›"})]
    model = Echo([*steps, ("text", {"phone": "‹phone-2›", "words": "again"})])
    limits = ROOM.model_copy(update={"steps": 17})
    context = ContextPolicy(window=4_000)
    handle = await stage.start(model, [find, text], limits=limits, context=context, conceal=True, task="Find them.")
    assert (await stage.end(handle)).result.status == "budget_exhausted"
    assert len(await executions(stage, handle.id)) > 1
    await handle.resume(add_steps=10)
    done = await stage.end(handle)
    assert called == [(PHONES[1], NAME), (PHONES[1], NAME), (PHONES[1], "again")]
    assert done.result.status == "completed"
    assert model.summaries
    assert hits([*model.requests, *model.summaries]) == []


async def test_the_turns_of_a_session_share_handles_and_the_history_has_the_values(stage: Any) -> None:
    called.clear()
    script = [asking("find", count=2), "‹phone-2› it is.", asking("text", phone="‹phone-2›", words="Hi"), "Sent."]
    agent = stage.agent(script, [find, text], conceal=True)
    await stage.serve(agent)
    async with stage.client.session(f"s-{uuid4().hex[:8]}", agent, task_queue=stage.queue) as session:
        first = await session.ask("Whom do I call?")
        second = await session.ask(f"Text {PHONES[1]} then.")
        said = [one for one in await session.history() if isinstance(one, AssistantMessage | UserMessage)]
    assert (first.text, second.text) == (f"{PHONES[1]} it is.", "Sent.")
    assert called == [(PHONES[1], "Hi")]
    assert PHONES[1] in json.dumps([one.model_dump(mode="json") for one in said])
    assert hits(stage.model.requests) == []


async def test_an_agent_that_does_not_conceal_shows_what_it_always_did(stage: Any) -> None:
    done = await stage.run([asking("find"), "Found."], [find], task=Task(input="Find."))
    assert PHONES[0] in sent(stage.model.requests)
    assert done.results[0].private is None


async def test_an_agent_that_is_called_is_shown_handles_as_well_and_so_is_its_caller_of_what_it_says(
    stage: Any,
) -> None:
    called.clear()
    below = stage.agent(
        [asking("text", phone="‹phone-1›", words="Hi"), asking("find", count=3), "Try ‹phone-3›."],
        [find, text],
        name="below",
        conceal=True,
    )
    lower = stage.model
    above = stage.agent(
        [
            asking("find"),
            asking("below", task="Text ‹name-1› at ‹phone-1›."),
            asking("text", phone="‹phone-2›", words="Me"),
            "It was ‹phone-2›.",
        ],
        [find, text, below.as_tool("Texts people.")],
        name="above",
        conceal=True,
    )
    await stage.serve(above)
    done = await stage.end(await stage.start_again(above))
    assert called == [(PHONES[0], "Hi"), (PHONES[2], "Me")]
    assert done.result.text == f"It was {PHONES[2]}."
    assert hits([*stage.model.requests, *lower.requests]) == []


async def test_an_agent_that_conceals_nothing_hides_what_its_caller_hides(stage: Any) -> None:
    below = stage.agent(["Told ‹name-1›."], name="below")
    lower = stage.model
    above = stage.agent(
        [asking("find"), asking("below", task="Tell ‹name-1›."), "Done."],
        [find, below.as_tool("Tells people.")],
        name="above",
        conceal=True,
    )
    await stage.serve(above)
    done = await stage.end(await stage.start_again(above))
    assert done.results[1].content == f"Told {NAME}."
    assert hits([*stage.model.requests, *lower.requests]) == []
