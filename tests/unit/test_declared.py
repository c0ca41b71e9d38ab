"""Agents declared in YAML: the same as those of Python, and errors that say where and what to do."""

import json
import re
import sys
from datetime import timedelta
from decimal import Decimal
from inspect import signature
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from perdure import (
    Agent,
    AgentError,
    Approval,
    ContextPolicy,
    Limits,
    MCPServer,
    Memory,
    ModelSettings,
    Price,
    Secret,
    tool,
)
from perdure.declarations import AgentDeclaration, McpTools, ToolOptions, agent_schema, undeclared
from perdure.handoffs import Handoff
from perdure.loading import load_agents, task_queue
from perdure.settings import Settings
from perdure.strategies.plan import Plan

ROOT = Path(__file__).parents[2]

TOOLS = '''
from contextlib import asynccontextmanager

from pydantic import BaseModel

from perdure import Agent, Done, Hook, tool
from perdure.strategies import Ask, StrategySpec


class Trip(BaseModel):
    city: str = ""


@tool(effect="read")
def look(city: str) -> str:
    """Look a city up."""
    return city


def book(city: str) -> str:
    """Book it."""
    return city


def unbook(ctx, result, city):
    return "gone"


def booked(ctx, city):
    return Done("yes")


def far(name, arguments):
    return name == "book"


def dear(city):
    return city == "Rome"


@asynccontextmanager
async def things():
    yield 1


class Vectors:
    async def search(self, query, facts, limit):
        return facts[:limit]


class Guard(Hook):
    def before_tool(self, at, call):
        return None


class Straight:
    name = "straight"

    def __init__(self, turns):
        self.turns = turns

    def spec(self):
        return StrategySpec(name=self.name, options={"turns": self.turns})

    def tools(self, agent):
        return agent.own_tools

    def move(self, seen):
        return Ask()


ALL = [look, book]
NUMBER = 7
clerk = Agent("clerk", "openai:x", instructions="Be brief.", tools=[look])
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `things.py` in it, forgotten by Python afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "things.py").write_text(TOOLS)
    return tmp_path


def declared(text: str, name: str = "agent.yaml") -> Agent:
    Path(name).write_text(text, encoding="utf-8")
    return load_agents(name)[0]


def fault(text: str) -> str:
    with pytest.raises(AgentError) as caught:
        declared(text)
    return str(caught.value)


def test_the_travel_agent_in_yaml_is_the_one_in_python():
    in_python = load_agents(str(ROOT / "examples/travel/agent.py") + ":travel")[0]
    in_yaml = load_agents(str(ROOT / "examples/travel/agent.yaml"))[0]
    assert in_yaml.spec == in_python.spec
    assert in_yaml.hash == in_python.hash
    assert in_yaml.lifespan is in_python.lifespan


EVERYTHING = """
name: desk
model: [openai:gpt-5, "openai:gpt-5-mini"]
instructions: Book.
tools:
  - things:look
  - function: things:book
    effect: idempotent
    timeout: 30s
    attempts: 2
    approval: always
    probe: things:booked
    not_done: [builtins:ConnectionError]
    compensate: things:unbook
    fields: [a.b]
  - remote: {activity: Convert, task_queue: go}
    name: convert
    description: Convert.
    parameters: {type: object, properties: {day: {type: string, default: 2027-01-31}}}
  - agent: clerk
    description: Writes.
    share: 0.25
  - mcp: files
    command: [server, /data]
    env: {TOKEN: "${secret:token}"}
    allowed_tools: [read, write]
    approval: {write: always, read: things:dear}
    timeout: 1m
settings: {temperature: 0, timeout: 2m, price: {input: 0.25, output: 2}}
limits: {steps: 20, usd: 0.5, wall_time: 1.5h, calls_per_tool: {book: 2}}
approval: {default: never, tools: {look: always}, expires: 2d, on_denial: stop}
lifespan: things:things
compensate_on: [failed]
variables: things:Trip
show_variables: [city]
memory: {scopes: [user, agent], recall: 3, index: things:Vectors}
context: {window: 64000, keep_turns: 4}
conceal: true
strategy: {use: things:Straight, options: {turns: 2}}
output_type: things:Trip
hooks: [things:Guard]
---
name: clerk
model: openai:x
instructions: Be brief.
tools: [things:look]
"""


def test_every_kind_of_key_makes_what_python_makes_of_it():
    made = declared(EVERYTHING)
    assert made.lifespan is not None
    module = sys.modules[made.lifespan.__module__]
    clerk = Agent("clerk", "openai:x", instructions="Be brief.", tools=[module.look])
    schema = {"type": "object", "properties": {"day": {"type": "string", "default": "2027-01-31"}}}
    book = tool(
        effect="idempotent",
        timeout=30,
        attempts=2,
        approval="always",
        probe=module.booked,
        not_done=[ConnectionError],
        compensate=module.unbook,
        fields=["a.b"],
    )(module.book)
    remote = book.remote(activity="Convert", task_queue="go", name="convert", description="Convert.", parameters=schema)
    files = MCPServer(
        "files",
        command=["server", "/data"],
        env={"TOKEN": Secret("token")},
        allowed_tools=["read", "write"],
        approval={"write": "always", "read": module.dear},
        timeout=60,
    )
    same = Agent(
        "desk",
        ["openai:gpt-5", "openai:gpt-5-mini"],
        instructions="Book.",
        tools=[module.look, book, remote, clerk.as_tool("Writes.", share=0.25), files],
        settings=ModelSettings(
            temperature=0, timeout=timedelta(minutes=2), price=Price(input=Decimal("0.25"), output=Decimal(2))
        ),
        limits=Limits(steps=20, usd=Decimal("0.5"), wall_time=timedelta(minutes=90), calls_per_tool={"book": 2}),
        approval=Approval(tools={"look": "always"}, expires=timedelta(days=2), on_denial="stop"),
        lifespan=module.things,
        compensate_on=["failed"],
        variables=module.Trip,
        show_variables=["city"],
        memory=Memory(scopes=["user", "agent"], recall=3, index=module.Vectors()),
        context=ContextPolicy(window=64000, keep_turns=4),
        conceal=True,
        strategy=module.Straight(2),
        output_type=module.Trip,
        hooks=[module.Guard()],
    )
    assert made.spec == same.spec
    assert made.hash == same.hash
    assert made.own_tools[1].not_done == (ConnectionError,)


def test_agents_of_one_file_are_served_together_and_each_is_one_object():
    Path("agents.yaml").write_text(EVERYTHING)
    desk, clerk = load_agents("agents.yaml")
    assert [agent.name for agent in desk.below] == ["clerk"]
    assert desk.below[0] is clerk
    assert load_agents("agents.yaml")[0] is desk
    assert load_agents("agents.yaml:clerk") == [clerk]
    assert task_queue(desk.source, Settings()) == task_queue(str(Path("agents.yaml").resolve()), Settings())


def test_a_list_of_tools_and_an_agent_of_a_python_file_can_be_named():
    desk = declared(
        "name: desk\nmodel: openai:x\ntools: [things:ALL, {agent: 'things.py:clerk', description: Writes.}]\n"
    )
    assert [one.name for one in desk.tools] == ["look", "book", "clerk"]


def test_agents_of_a_file_hand_over_to_each_other():
    text = "name: {}\nmodel: openai:x\nhandoffs: [{}]\n"
    front = text.format("front", "{agent: back, description: For refunds.}")
    made = declared(f"{front}---\n{text.format('back', 'front')}")
    back = Agent("back", "openai:x", handoffs=["front"])
    assert made.spec == Agent("front", "openai:x", handoffs=[Handoff(back, description="For refunds.")]).spec
    assert [one.name for one in made.below] == ["back"]


def test_strategies_of_perdure_have_names():
    made = declared(f"{HEAD}tools: ['things:look']\nstrategy: {{use: plan, options: {{max_steps: 3}}}}\n")
    assert made.strategy == Plan(max_steps=3)
    told = fault(f"{HEAD}strategy: {{use: plan, options: {{max_steps: many}}}}\n")
    assert told.startswith("agent.yaml:3:11: plan can't be made: Plan: ")


def test_a_function_can_decide_about_approvals():
    desk = declared("name: desk\nmodel: openai:x\ntools: [things:ALL]\napproval: things:far\n")
    ask = desk.predicate("*", "book")
    assert desk.rules.default == "predicate:*"
    assert ask is not None
    assert ask(city="Rome") is True


def test_two_folders_may_each_have_a_module_of_one_name():
    for where in ("one", "two"):
        Path(where).mkdir()
        Path(where, "mine.py").write_text(f'def f() -> str:\n    """In {where}."""\n    return ""\n')
        Path(where, "agent.yaml").write_text("name: a\nmodel: openai:x\ntools: [mine:f]\n")
    told = [load_agents(f"{where}/agent.yaml")[0].own_tools[0].spec.description for where in ("one", "two")]
    assert told == ["In one.", "In two."]


def test_variables_of_the_environment_stand_where_models_are_named(monkeypatch):
    text = "name: desk\nmodel: ${DESK_MODEL:-openai:x}\nsettings: {base_url: '${DESK_URL:-http://here/v1}'}\n"
    assert declared(text).model == "openai:x"
    monkeypatch.setenv("DESK_MODEL", "openai:y")
    assert declared(text).model == "openai:y"
    assert declared(text).settings.base_url == "http://here/v1"
    assert fault("name: desk\nmodel: ${NO_SUCH}\n") == (
        "agent.yaml:2:8: model names NO_SUCH, which is not set in the environment;"
        " set it, or give a default: ${NO_SUCH:-…}."
    )


HEAD = "name: desk\nmodel: openai:x\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: desk\nmodle: openai:x\n", "agent.yaml:2:1: unknown key 'modle'; did you mean 'model'?"),
        (f"{HEAD}limits:\n  step: 3\n", "agent.yaml:4:3: unknown key 'step'; did you mean 'steps'?"),
        (f"{HEAD}limits:\n  steps: many\n", "agent.yaml:4:10: limits.steps has to be a whole number, not 'many'."),
        (f"{HEAD}limits: {{steps: 0}}\n", "agent.yaml:3:17: limits.steps has to be greater than or equal to 1, not 0."),
        (f"{HEAD}limits: {{wall_time: soon}}\n", "agent.yaml:3:21: limits.wall_time has to be a duration: seconds, or"),
        (f"{HEAD}tools: things:look\n", "agent.yaml:3:8: tools has to be a list, each entry after '- ', not"),
        (f"{HEAD}tools: [look]\n", "agent.yaml:3:9: No installed package has 'look' for perdure.tools"),
        (f"{HEAD}tools: ['things:lock']\n", "agent.yaml:3:9: things has no 'lock'; did you mean 'look'?"),
        (f"{HEAD}tools: ['nothing:look']\n", "agent.yaml:3:9: There is no module 'nothing' to import from here."),
        (
            f"{HEAD}tools: ['things:NUMBER']\n",
            "agent.yaml:3:9: things:NUMBER is no tool, function or list of tools, but 7",
        ),
        (f"{HEAD}tools: ['things:clerk']\n", "an agent is a tool with the keys agent and description."),
        (
            f"{HEAD}tools:\n  - function: things:look\n",
            "agent.yaml:4:15: things:look is a tool already, and its options",
        ),
        (
            f"{HEAD}tools:\n  - funktion: things:book\n",
            "agent.yaml:4:5: tools.0 has to be module:name, or a mapping with",
        ),
        (
            f"{HEAD}tools:\n  - function: things:book\n    effekt: read\n",
            "agent.yaml:5:5: unknown key 'effekt'; did you",
        ),
        (
            f"{HEAD}tools:\n  - remote: {{activity: A, task_queue: q}}\n    parameters: {{}}\n",
            "agent.yaml:4:5: tools.0 needs",
        ),
        (f"{HEAD}tools: ['things:look', 'things:look']\n", "agent.yaml:3:8: Agent 'desk' has two tools named 'look'"),
        (
            f"{HEAD}approval: sometimes\n",
            "agent.yaml:3:11: approval has to be never, always, or module:name",
        ),
        (f"{HEAD}approval: {{tools: {{lok: always}}}}\n", "agent.yaml:3:11: approval names unknown tools: lok."),
        (f"{HEAD}approval: things:NUMBER\n", "agent.yaml:3:11: things:NUMBER has to be a function, and is 7."),
        (f"{HEAD}variables: things:look\n", "agent.yaml:3:12: variables has to be a pydantic model class, not"),
        (f"{HEAD}strategy: {{use: 'things:Straight'}}\n", "agent.yaml:3:11: things:Straight can't be made: "),
        (f"{HEAD}strategy: things:NUMBER\n", "agent.yaml:3:11: strategy has to be "),
        (f"{HEAD}tools: [{{mcp: files}}]\n", "agent.yaml:3:9: MCP server 'files': it needs either a command or a url."),
        (f"{HEAD}memory: 3\n", "agent.yaml:3:9: memory has to be true, false or a mapping, not 3."),
        (
            f"{HEAD}compensate_on: [finished]\n",
            "agent.yaml:3:17: compensate_on.0 has to be 'cancelled' or 'failed'",
        ),
        (f"{HEAD}instructions: 7\n", "agent.yaml:3:15: instructions has to be text, not 7; put it in quotes."),
        (
            "name: desk\nmodel: gpt-5\n",
            "agent.yaml:2:8: model has to be PROVIDER:NAME, such as openai:gpt-5-mini",
        ),
        ("name: desk\n", "agent.yaml:1:1: key 'model' is missing; add it."),
        ("- desk\n", "agent.yaml:1:1: the document has to be a mapping, each line KEY: VALUE."),
        (f"{HEAD}name: again\n", "agent.yaml:3:1: key 'name' is here twice; leave one of them."),
        (f"{HEAD}on: x\n", "agent.yaml:3:1: a key has to be text; put 'on' in quotes."),
        (f"{HEAD}tools: [\n", "agent.yaml:4:1: this is not YAML: "),
        ("name: desk: x\n", "agent.yaml:1:11: this is not YAML: mapping values are not allowed here; look at the"),
        (f"{HEAD}instructions: !!python/name:os.system\n", "agent.yaml:3:15: this is not YAML: could not determine a"),
        (f"{HEAD}settings: {{extra_body: &a {{b: *a}}}}\n", "agent.yaml:3:24: this anchor holds itself; write it out."),
        (
            f"{HEAD}instructions: {'[' * 2_000}{']' * 2_000}\n",
            "agent.yaml: this is nested too deeply; write it flatter.",
        ),
        (f"{HEAD}limits: {{steps: {'9' * 5_000}}}\n", "agent.yaml:3:17: this is not YAML: a value can't be read"),
        (f"{HEAD}limits: {{steps: !!bool maybe}}\n", "agent.yaml:3:17: this is not YAML: a value can't be read"),
        (f"{HEAD}limits: !!timestamp maybe\n", "agent.yaml:3:9: this is not YAML: a value can't be read as its tag"),
        (f'{HEAD}tools: ["a\\0b.py:look"]\n', "agent.yaml:3:9: There is no file"),
        (f"{HEAD}---\n{HEAD}", "agent.yaml:4:7: two agents of this file are named 'desk'; rename one."),
        (
            f"{HEAD}tools: [{{agent: desc, description: x}}]\n",
            "agent.yaml:3:17: this file has no agent 'desc'; did you",
        ),
        (f"{HEAD}tools: [{{agent: desk, description: x}}]\n", "agent.yaml:3:17: agents can't be tools of each other"),
        (f"{HEAD}tools: [{{agent: desk}}]\n", "agent.yaml:3:9: key 'description' is missing in tools.0; add it."),
    ],
)
def test_an_error_is_one_sentence_with_its_place_and_what_to_do(text, told):
    assert told in fault(text)
    assert "\n" not in fault(text)


def test_what_a_named_module_raises_is_told_with_both_places():
    Path("broken.py").write_text("x = 1\nraise RuntimeError('no database')\n")
    told = fault(f"{HEAD}tools: [broken:f]\n")
    assert told.startswith("agent.yaml:3:9: ")
    assert told.endswith("broken.py can't be imported, line 2 of broken.py: RuntimeError: no database")


def test_anchors_that_would_fill_the_memory_are_refused():
    bombs = "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    told = fault(f"{HEAD}settings:\n extra_body:\n  a0: &a0 [x]\n{bombs}")
    assert "this is more than 100,000 values" in told


def test_nothing_in_a_file_is_executed():
    fault(f"{HEAD}instructions: !!python/object/apply:pathlib.Path.touch [pathlib.Path owned]\n")
    assert not Path("owned").exists()


def test_an_empty_file_declares_no_agent():
    assert "declares no agent: it is empty" in fault("---\n# nothing\n")


def test_two_files_that_take_agents_of_each_other_are_refused():
    for one, other in (("a", "b"), ("b", "a")):
        text = f"name: {one}\nmodel: openai:x\ntools: [{{agent: '{other}.yaml', description: x}}]\n"
        Path(f"{one}.yaml").write_text(text)
    with pytest.raises(AgentError, match=r"take agents of each other; put those into a third one"):
        load_agents("a.yaml")


def test_what_the_guide_shows_is_what_can_be_declared():
    guide = (ROOT / "docs/guides/declared-agents.md").read_text()
    shown = re.findall(r"```yaml\n(.*?)```", guide, flags=re.DOTALL)
    declared = [AgentDeclaration.model_validate(one) for text in shown for one in yaml.safe_load_all(text)]
    assert [one.name for one in declared] == ["desk", "guide", "booker"]


# -- the schema for editors ----------------------------------------------------------------------------------


def test_every_argument_of_agent_and_every_option_of_tool_can_be_declared():
    assert undeclared() == set(), "add it to AgentDeclaration in perdure/declarations.py, and to perdure/declaring.py"
    documented = {line.strip().partition(":")[0] for line in str(tool.__doc__).splitlines() if line.startswith(" " * 8)}
    assert set(ToolOptions.model_fields) <= documented
    assert set(McpTools.model_fields) - {"mcp"} == set(signature(MCPServer).parameters) - {"name"}
    assert {name for name in signature(Agent.as_tool).parameters if name != "self"} <= {
        *AgentDeclaration.model_json_schema()["$defs"]["AgentTool"]["properties"]
    }


def test_the_published_schema_is_the_one_of_the_models():
    published = json.loads((ROOT / "docs/reference/agent.schema.json").read_text())
    assert published == agent_schema(), "perdure schema agent > docs/reference/agent.schema.json"


def test_the_schema_says_what_the_loader_says():
    schema = agent_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = jsonschema.Draft202012Validator(schema)
    travel = yaml.safe_load((ROOT / "examples/travel/agent.yaml").read_text())
    desk: dict[str, Any] = next(yaml.load_all(EVERYTHING, yaml.BaseLoader))
    desk |= {"limits": {"wall_time": "1.5h"}, "settings": {}, "memory": True, "context": {}, "conceal": True}
    desk |= {"tools": desk["tools"][2:3]}
    assert valid.is_valid(travel)
    assert valid.is_valid(desk)
    assert not valid.is_valid({**travel, "modle": "x"})
    assert not valid.is_valid({**travel, "limits": {"wall_time": "soon"}})


def test_the_schema_describes_the_keys_in_the_words_of_the_docstrings():
    schema = agent_schema()
    kinds = {"agent": schema, **schema["$defs"]}
    named = (
        "agent",
        "FunctionTool",
        "AgentTool",
        "RemoteTool",
        "McpTools",
        "LimitsEntry",
        "MemoryEntry",
        "ContextEntry",
    )
    keys = [(kind, key, one) for kind in named for key, one in kinds[kind]["properties"].items()]
    assert [f"{kind}.{key}" for kind, key, one in keys if "description" not in one] == []
