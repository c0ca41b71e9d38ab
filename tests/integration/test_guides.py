"""The guides' Python, run as it stands."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from perdure import Memory, ModelSettings, Task, tool
from perdure.policies import MemoryPolicy
from perdure.settings import Settings
from perdure.testing import ModelServer

GUIDES = Path(__file__).parents[2] / "docs/guides"
GUIDE = (GUIDES / "models.md").read_text()


def blocks(language: str, guide: str = GUIDE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", guide, flags=re.DOTALL)


async def test_the_guide_to_models_runs_as_it_stands(engine: Settings, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PERDURE_HOME", str(engine.home))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", f"guide-{uuid4().hex[:8]}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(blocks("python")), names)
    await names["test_the_clerk_waits_for_its_model"]()


def test_the_script_of_the_guide_is_one() -> None:
    [script] = blocks("json")
    ModelServer(json.loads(script))


def test_the_defaults_in_the_guide_are_so() -> None:
    said = dict(re.findall(r"^\| `(\w+)` \| (\d+ \w+) \|", GUIDE, flags=re.MULTILINE))
    units = {"s": 1, "min": 60}
    defaults = ModelSettings()
    assert set(said) == {"first_byte", "between_chunks", "timeout"}
    for name, words in said.items():
        number, unit = words.split()
        assert getattr(defaults, name).total_seconds() == int(number) * units[unit]


async def test_the_guide_to_sessions_runs_as_it_stands(stage, monkeypatch) -> None:
    names: dict[str, Any] = {}
    exec("\n".join(blocks("python", (GUIDES / "sessions.md").read_text())), names)
    script = [{"calls": [{"name": "choose_flight", "arguments": {"flight": "MU5101"}}]}, {"calls": [{"name": "book"}]}]
    tools = [names["choose_flight"], names["book"]]
    done = await stage.run([*script, "Booked."], tools, variables=names["Trip"])
    assert done.results[1].content == "Booked 1 seats on MU5101."
    assert done.result.variables == {"flight": "MU5101", "seats": 1}
    monkeypatch.setenv("PERDURE_HOME", str(stage.client.settings.home))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", stage.queue)
    names["agent"] = stage.agents[0]
    assert await names["talk"](f"guide-{uuid4().hex[:8]}") == "Booked."


async def test_the_guide_to_memory_runs_as_it_stands(stage) -> None:
    names: dict[str, Any] = {}
    exec("\n".join(blocks("python", (GUIDES / "memory.md").read_text())), names)
    assert names["travel"].spec.memory == MemoryPolicy()
    assert names["thrifty"].policy.model == "openai:gpt-5-nano"
    user = f"ann-{uuid4().hex[:8]}"
    for text in ("Zzz.", "Prefers window seats."):
        await stage.client.memory.add(text, agent="subject", user=user)
    memory = replace(names["memory"], recall=1)
    await stage.end(await stage.start(["Fine."], memory=memory, task=Task(input="zz zz", user=user)))
    assert '"Zzz."' in stage.model.requests[0].messages[0].content


def test_the_defaults_in_the_guide_to_memory_are_so() -> None:
    said = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", (GUIDES / "memory.md").read_text(), flags=re.MULTILINE))
    policy = Memory().policy.model_dump()
    assert {name: str(policy[name]).replace("'", '"') for name in said} == said
    assert set(said) == {"scopes", "recall", "search", "remember"}


async def test_the_guide_to_what_runs_have_done_runs_as_it_stands(stage) -> None:
    names: dict[str, Any] = {}
    look = tool(effect="read", name="look", description="Look.")(lambda: "seen")
    call = {"calls": [{"name": "look"}]}
    handle = (await stage.run([call, call, "Once."], [look])).handle
    other = stage.agent([call, call, "Twice."], name="other")
    await stage.serve(*stage.agents)
    source = (GUIDES / "history.md").read_text().replace("openai:gpt-5", other.model)
    exec("\n".join(blocks("python", source)), names)
    assert await names["second_opinion"](stage.client, handle.id) == "Twice."


async def test_the_guide_to_privacy_runs_as_it_stands(stage) -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    code = "\n".join(blocks("python", (GUIDES / "privacy.md").read_text()))
    exec(compile(code, "privacy.md", "exec", dont_inherit=True), names)
    call = {"name": "send_text", "arguments": {"phone": "‹phone-1›", "words": "Dinner is at 7."}}
    script = [{"calls": [{"name": "find_guest", "arguments": {"room": 4}}]}, {"calls": [call]}, "‹name-1› knows."]
    done = await stage.run(script, names["agent"].tools, conceal=names["agent"].conceal)
    assert done.results[1].content == "sent to 13800138000: Dinner is at 7."
    assert done.result.text == "张伟 knows."
    assert "‹diet-1›" in stage.model.requests[1].messages[-1].result.content


async def test_the_guide_to_graphs_runs_as_it_stands(stage) -> None:
    decides = stage.agent([json.dumps({"result": "refund"})]).model
    writes = stage.agent(["It is on its way."]).model
    names: dict[str, Any] = {}
    [snippet] = blocks("python", (GUIDES / "graphs.md").read_text())
    snippet = snippet.replace("openai:gpt-5-mini", decides).replace("openai:gpt-5", writes)
    exec(compile(snippet, "graphs.md", "exec", dont_inherit=True), names)
    await stage.serve(names["desk"], names["clerk"], names["writer"])
    handle = await stage.start_again(names["desk"], "My kettle leaks.")
    asked = await stage.until(handle, "approval_requested")
    assert asked.arguments == {"question": "Pay 40 EUR back?", "amount": 40}
    await handle.approve(asked.call)
    done = await stage.end(handle)
    assert done.result.text == "It is on its way."
    assert done.result.variables["paid"] == "40 EUR paid back"
