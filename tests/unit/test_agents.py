"""What an agent is as data, and which declarations are refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Approval, ContextPolicy, Limits, ModelSettings, Tool, tool
from perdure.errors import AgentError
from perdure.messages import content_hash
from perdure.policies import AgentSpec

ROOT = Path(__file__).parents[2]
DECLARED = """
from perdure import Agent, tool

@tool(effect="read")
def find(city: str, tags: dict[str, str] | None = None) -> str:
    "Find."

agent = Agent("travel", "openai:gpt", "Be kind.", [find], approval="always")
"""


@tool
def book(city: str) -> str:
    """Book."""
    return city


@tool
def cancel(city: str) -> str:
    """Cancel."""
    return city


def declared() -> Agent:
    made: dict[str, Agent] = {}
    exec(compile(DECLARED, "<declared>", "exec"), made)
    return made["agent"]


def test_spec_holds_all_that_a_run_needs_and_comes_back_from_json_unchanged():
    rules = Approval(tools={"book": "always"})
    limits, settings = Limits(steps=3), ModelSettings(temperature=0)
    agent = Agent("travel", "openai:gpt", "Be kind.", [book], settings, limits, rules)
    spec = agent.spec
    assert (spec.name, spec.model, spec.instructions) == ("travel", "openai:gpt", "Be kind.")
    assert (spec.tools, spec.limits, spec.settings, spec.approval) == ([book.spec], limits, settings, rules)
    assert AgentSpec.model_validate_json(spec.model_dump_json()) == spec


def test_models_after_the_first_are_its_fallbacks():
    spec = Agent("travel", ["openai:gpt-5", "openai:gpt-4o", "openai-responses:o3"]).spec
    assert (spec.model, spec.fallbacks) == ("openai:gpt-5", ["openai:gpt-4o", "openai-responses:o3"])
    assert spec.models == ["openai:gpt-5", "openai:gpt-4o", "openai-responses:o3"]
    assert Agent("travel", ["openai:gpt-5"]).hash == Agent("travel", "openai:gpt-5").hash


class Own:
    """A context strategy."""

    def __init__(self, policy: Any, name: str = "own") -> None:
        self.policy, self.name = policy, name

    def view(self, entries: Any) -> Any:
        return entries

    async def compact(self, situation: Any) -> Any:
        return None


def test_a_strategy_is_kept_by_its_name_with_its_policy():
    own = Own(ContextPolicy(window=9_000))
    agent = Agent("a", "openai:x", context=own)
    assert agent.context_strategy is own
    assert agent.spec.context == ContextPolicy(window=9_000, strategy="own")
    assert Agent("a", "openai:x", context=ContextPolicy(strategy="mine")).spec.context == ContextPolicy()
    assert Agent("a", "openai:x").context_strategy is None


@pytest.mark.parametrize(
    ("context", "why"),
    [
        ("small", "context has to be a ContextPolicy, or an object with name, policy, view and compact, not 'small'"),
        (Own("small"), "context has to be a ContextPolicy"),
        (Own(ContextPolicy(), "default"), "a context strategy of your own can't be named 'default'"),
    ],
)
def test_what_is_no_strategy_is_refused(context, why):
    with pytest.raises(AgentError, match=why):
        Agent("a", "openai:x", context=context)


def test_equal_agents_have_one_hash_and_every_change_gives_another():
    def agent(**changes) -> Agent:
        fields: dict[str, Any] = {"name": "a", "model": "openai:x", "tools": [book], **changes}
        return Agent(**fields)

    changes: list[dict[str, Any]] = [
        {"name": "b"},
        {"model": "openai:y"},
        {"instructions": "x"},
        {"tools": []},
        {"tools": [book, cancel]},
        {"settings": ModelSettings(seed=1)},
        {"limits": Limits(steps=2)},
        {"approval": "always"},
        {"context": ContextPolicy(window=9_000)},
        {"context": Own(ContextPolicy())},
    ]
    hashes = {agent().hash, *(agent(**change).hash for change in changes)}
    assert agent().hash == agent().hash
    assert len(hashes) == len(changes) + 1


def test_hash_of_an_agent_is_the_same_in_every_process():
    program = f"{DECLARED}\nprint(agent.hash)"
    hashes = {declared().hash}
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        hashes.add(done.stdout.strip())
    assert len(hashes) == 1


def test_hash_does_not_depend_on_whether_a_default_was_written():
    spec = declared().spec
    assert content_hash(AgentSpec.model_validate_json(spec.model_dump_json(exclude_defaults=True))) == content_hash(
        spec
    )


def test_one_word_is_short_for_the_default_rule():
    assert declared().rules == Approval(default="always")
    assert Agent("a", "openai:x").rules == Approval(default="never")


def test_word_of_the_agent_beats_the_tools_own_which_beats_the_default():
    @tool(approval="never")
    def free():
        """Do."""

    spec = Agent("a", "openai:x", tools=[free, book, cancel], approval=Approval(default="always")).spec
    assert [spec.approval_policy(one) for one in spec.tools] == ["never", "always", "always"]
    stricter = Approval(default="never", tools={"free": "always"})
    spec = Agent("a", "openai:x", tools=[free, book], approval=stricter).spec
    assert [spec.approval_policy(one) for one in spec.tools] == ["always", "never"]


def test_function_of_the_agent_decides_about_every_tool_that_says_nothing():
    def ask(name, arguments) -> bool:
        return name == "book" and bool(arguments["city"] == "far")

    agent = Agent("a", "openai:x", tools=[book, cancel], approval=ask)
    (name,) = {agent.spec.approval_policy(one) for one in agent.spec.tools}
    predicate = agent.predicate(name.removeprefix("predicate:"), "book")
    assert predicate
    assert predicate(city="far") is True
    assert predicate(city="near") is False


def test_agent_knows_the_file_that_declares_it():
    assert Agent("a", "openai:x").source == str(Path(__file__).resolve())


def test_agent_without_a_file_belongs_to_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert declared().source == str(tmp_path)


def test_tool_is_found_by_name():
    agent = Agent("a", "openai:x", tools=[book])
    assert agent.tool("book") is book
    assert agent.tool("cook") is None


@pytest.mark.parametrize("name", ["travel", "travel-desk", "travel_desk2", "2nd", "旅行"])
def test_name_of_letters_digits_and_dashes_is_taken(name):
    assert Agent(name, "openai:x").name == name


def plain() -> None: ...


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "name is made of letters"),
        ({"name": "my agent"}, "'my agent' is not"),
        ({"name": "a/b"}, "'a/b' is not"),
        ({"name": "--"}, "'--' is not"),
        ({"model": "gpt-5"}, "model 'gpt-5' has to be PROVIDER:NAME"),
        ({"model": "openai:"}, "has to be PROVIDER:NAME"),
        ({"model": ":x"}, "has to be PROVIDER:NAME"),
        ({"model": ["openai:x", "gpt-5"]}, "model 'gpt-5' has to be PROVIDER:NAME"),
        ({"model": []}, "model [] has to be PROVIDER:NAME"),
        ({"model": None}, "model None has to be PROVIDER:NAME"),
        ({"model": {"openai:x"}}, "has to be PROVIDER:NAME"),
        ({"tools": [book, book]}, "two tools named 'book'; rename one with name="),
        ({"tools": [plain]}, "is not a tool; decorate the function with @tool"),
        ({"tools": book}, "tools has to be a list"),
        (
            {"tools": [book], "approval": Approval(tools={"cook": "always", "bake": "never"})},
            "unknown tools: bake, cook",
        ),
        ({"approval": "sometimes"}, "approval has to be 'never', 'always', an Approval or a function, not 'sometimes'"),
        ({"approval": ["book"]}, "or a function, not ['book']"),
        ({"limits": 3}, "option limits: Input should be a valid"),
        ({"settings": {"timeout": "soon"}}, "option settings.timeout: Input should be a valid"),
        ({"instructions": ["Be kind."]}, "option instructions: Input should be a valid string"),
    ],
)
def test_bad_declaration_is_refused_in_one_sentence(changes, said):
    fields: dict[str, Any] = {"name": "a", "model": "openai:x", **changes}
    with pytest.raises(AgentError) as caught:
        Agent(**fields)
    text = str(caught.value)
    assert said in text
    assert text.endswith(".")
    assert "\n" not in text


def test_remote_and_local_tools_of_one_name_are_two_of_one_name():
    remote = Tool.remote(activity="book", task_queue="q", parameters={}, description="Book.")
    with pytest.raises(AgentError, match="two tools named 'book'"):
        Agent("a", "openai:x", tools=[book, remote])
