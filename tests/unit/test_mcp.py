from types import SimpleNamespace
from typing import Any

import pytest

from perdure import Agent, MCPServer, Secret, tool
from perdure.activities.mcp.connections import last_words
from perdure.activities.mcp.content import MOST_IMAGES, content_of, words_of
from perdure.errors import AgentError
from perdure.mcp import Offer, filled, listed
from perdure.policies import AgentSpec
from perdure.reports import Listed, ToolsReport
from perdure.state import begin
from perdure.toolsets import UNAVAILABLE, due, fail, fold

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
OFFERS = [
    Offer("look", "Looks.", SCHEMA, read_only=True, idempotent=True),
    Offer("put", "Puts.", SCHEMA, idempotent=True),
    Offer("send", "Sends.", SCHEMA),
]


def server(**options: Any) -> MCPServer:
    return MCPServer("files", command="serve", **options)


def tools(offers=OFFERS, taken=(), **options):
    return {one.name: one for one in listed(server(**options).spec, offers, taken).tools}


# -- what is declared --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "either a command or a url"),
        ({"command": "a", "url": "https://b/mcp"}, "either a command or a url"),
        ({"url": "b/mcp"}, "has to begin with http"),
        ({"url": "https://b/mcp", "env": {"A": "b"}}, "are for a command"),
        ({"command": "a", "headers": {"A": "b"}}, "headers are for a url"),
        ({"command": "a", "allowed_tools": "one"}, "have to be lists"),
        ({"command": "a", "concurrency": 0}, "concurrency"),
        ({"command": "a", "timeout": 0}, "timeout has to be more than 0"),
        ({"command": "a", "start_timeout": -1}, "start_timeout has to be more than 0"),
        ({"command": "a", "effects": {"x": "harmless"}}, "effects"),
        ({"command": "a", "approval": {"x": "perhaps"}}, "approval"),
        ({"command": "a", "env": {"A": "${no name}"}}, "no name of an environment variable"),
    ],
)
def test_what_can_be_no_server_is_said_in_a_sentence(options, why):
    with pytest.raises(AgentError, match=why):
        MCPServer("files", **options)


def test_its_name_can_be_put_before_that_of_a_tool():
    with pytest.raises(AgentError, match="letters, digits"):
        MCPServer("my files", command="serve")


def test_the_spec_of_an_agent_has_the_rules_for_a_server_and_not_how_it_is_reached():
    own = MCPServer("w", url="https://weather.example/mcp", headers={"Authorization": "Bearer abc"}, timeout=5)
    spec = Agent("a", "m:m", tools=[own]).spec
    assert spec.mcp == [own.spec]
    assert "weather.example" not in spec.model_dump_json()
    assert "abc" not in f"{spec.model_dump_json()}{own!r}"


def test_an_agent_without_servers_has_the_hash_that_it_had():
    assert "mcp" not in AgentSpec(name="a", model="m:m").model_dump(exclude_defaults=True)


def test_two_servers_of_one_name_are_refused():
    with pytest.raises(AgentError, match="two tools named 'files'"):
        Agent("a", "m:m", tools=[server(), server()])


def test_an_agent_with_servers_may_do_more_than_read_as_a_tool_of_another():
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return ""

    assert Agent("a", "m:m", tools=[look]).as_tool("Looks.").spec.effect == "read"
    assert Agent("a", "m:m", tools=[look, server()]).as_tool("Looks.").spec.effect == "unsafe"


def test_a_servers_predicate_is_found_by_the_policy_of_its_tool():
    agent = Agent("a", "m:m", tools=[server(approval={"send": lambda x: x == "far", "*": "never"})])
    spec = agent.spec.mcp[0]
    (sends,) = [one for one in listed(spec, OFFERS, ()).tools if one.name == "send"]
    assert sends.approval is not None
    ask = agent.predicate(sends.approval.removeprefix("predicate:"), "send")
    assert ask is not None
    assert (ask(x="far"), ask(x="near")) == (True, False)


def test_values_are_filled_in_from_the_environment_and_the_secrets_of_the_run():
    text, used = filled("Bearer ${A}/${secret:b}", {"A": "one"}, {"b": "two"})
    assert (text, used) == ("Bearer one/two", {"A": "one", "b": "two"})
    assert server(env={"X": Secret("b"), "Y": "${A}"}).secrets == ["b"]


@pytest.mark.parametrize(("text", "why"), [("${A}", "variable A, which is not set"), ("${secret:A}", "secret 'A'")])
def test_what_is_not_there_to_be_filled_in_is_named(text, why):
    with pytest.raises(LookupError, match=why):
        filled(text, {}, {})


# -- what is listed ----------------------------------------------------------------------------------------


def test_annotations_become_effects():
    assert {name: one.effect for name, one in tools().items()} == {
        "look": "read",
        "put": "idempotent",
        "send": "unsafe",
    }


def test_what_the_agent_says_of_effects_beats_annotations():
    found = tools(effects={"send": "read", "*": "unsafe"})
    assert {name: one.effect for name, one in found.items()} == {"look": "unsafe", "put": "unsafe", "send": "read"}


def test_only_the_tools_that_are_wanted_are_taken():
    assert list(tools(allowed_tools=["look", "send"], blocked_tools=["send"])) == ["look"]


def test_a_prefix_is_put_before_every_name():
    found = tools(tool_prefix="fs")
    assert list(found) == ["fs_look", "fs_put", "fs_send"]
    assert found["fs_look"].mcp is not None
    assert found["fs_look"].mcp.name == "look"


def test_where_a_name_is_taken_the_servers_is_put_before_it():
    assert list(tools(taken=["put"])) == ["look", "files_put", "send"]


def test_what_can_be_no_tool_is_left_out_with_the_reason():
    broken = [Offer("x", "X.", {"type": "nonsense"}), Offer("y", "Y.", SCHEMA), Offer("y", "Y.", SCHEMA)]
    found = listed(server(effects={"ghost": "read"}).spec, [*broken, Offer("y", "", SCHEMA)], ())
    assert [one.name for one in found.tools] == ["y", "files_y"]
    assert "effects names what the server does not offer: ghost." in found.notes
    assert any(note.startswith("Tool 'x' is left out: its JSON Schema is not valid") for note in found.notes)
    assert any("the name 'files_y' is taken" in note for note in found.notes)


def test_a_schema_that_is_nested_too_deeply_or_points_elsewhere_is_left_out():
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(3_000):
        deep = {"type": "object", "properties": {"a": deep}}
    elsewhere = {"type": "object", "properties": {"a": {"$ref": "http://elsewhere/schema"}}}
    found = listed(server().spec, [Offer("a", "A.", deep), Offer("b", "B.", elsewhere), OFFERS[0]], ())
    assert [one.name for one in found.tools] == ["look"]
    assert "nested too deeply" in found.notes[0]
    assert "points to nothing in the schema itself" in found.notes[1]


def test_a_server_that_offers_too_much_is_cut_off():
    large = {"type": "object", "description": "x" * 600_000}
    found = listed(server().spec, [Offer("a", "A.", large), Offer("b", "B.", large)], ())
    assert [one.name for one in found.tools] == ["a"]
    assert "too much" in found.notes[0]


def test_a_long_description_is_cut():
    assert len(tools([Offer("x", "y" * 9_000, SCHEMA)])["x"].description) < 5_000


def test_listed_tools_stand_behind_the_agents_own_and_are_asked_for_once():
    spec = Agent("a", "m:m", tools=[server()]).spec
    state = begin("r", spec, "go", None, "e")
    assert [one.name for one in due(state)] == ["files"]
    fold(state, ToolsReport(servers=[Listed(server="files", tools=list(tools().values()))]))
    assert [one.name for one in state.spec.tools] == ["look", "put", "send"]
    assert due(state) == []
    assert spec.tools == []


def test_a_run_that_can_not_learn_of_its_tools_fails_by_name_unless_it_was_cancelled():
    state = begin("r", Agent("a", "m:m", tools=[server()]).spec, "go", None, "e")
    fail(state, "It is away.", cancelled=True)
    assert state.outcome is None
    fail(state, "It is away.")
    assert state.outcome is not None
    assert state.outcome.failure == UNAVAILABLE
    assert [one.name for one in due(state)] == ["files"]


# -- what is returned --------------------------------------------------------------------------------------


def block(kind, **fields):
    return SimpleNamespace(type=kind, **fields)


def result(*blocks, structured=None):
    return SimpleNamespace(content=list(blocks), structured_content=structured)


def text(said):
    return block("text", text=said)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (result(text("a"), text("b")), "a\nb"),
        (result(text('{"a":1}'), structured={"a": 1}), {"a": 1}),
        (result(structured={"a": 1}), {"a": 1}),
        (result(text("5"), structured={"result": 5}), 5),
        (result(text("x"), structured={"result": "x"}), "x"),
        (result(text("1"), text("2"), structured={"result": [1, 2]}), [1, 2]),
        (result(text("in words"), structured={"a": 1}), 'in words\n{"a": 1}'),
        (result(), ""),
    ],
)
def test_structured_content_is_taken_where_it_says_all(given, value):
    assert content_of(given).value == value


@pytest.mark.reported(3)
def test_images_that_are_too_large_are_left_out_with_a_note():
    large = block("image", data="x" * (MOST_IMAGES + 4), mime_type="image/png")
    made = content_of(result(large, block("image", data="eA==", mime_type="image/svg+xml")))
    assert made.images == ()
    assert "too large" in made.note
    assert "image/svg+xml" in made.note


def test_an_embedded_image_is_shown_and_other_data_named():
    blob = SimpleNamespace(uri="mem://a", blob="eA==", mime_type="image/png")
    other = SimpleNamespace(uri="mem://b", blob="eA==", mime_type="application/zip")
    made = content_of(result(block("resource", resource=blob), block("resource", resource=other)))
    assert [image.url for image in made.images] == ["data:image/png;base64,eA=="]
    assert "resource mem://b (application/zip, 3 bytes)" in made.note


def test_an_error_is_told_in_the_servers_words():
    assert words_of(result(text("no such file"))) == "no such file"
    assert "not why" in words_of(result())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ""),
        (["no licence"], "It said: no licence."),
        (
            ["Traceback (most recent call last):", "KeyError: 'x'"],
            "It said: KeyError: 'x'. The worker's log has the rest.",
        ),
        (
            ["throw err;", "Error: Cannot find module '/x'", "at Module._load (x.js:1)", "}", "Node.js v20.1.0"],
            "It said: Error: Cannot find module '/x'. The worker's log has the rest.",
        ),
    ],
)
def test_what_a_server_says_at_its_end_is_one_line(lines, said):
    assert last_words(lines) == said
