"""What makes a tool, and what does not."""

import functools
from datetime import timedelta

import pytest

from perdure import Tool, ToolContext, Unknown, tool
from perdure.errors import ToolDefinitionError
from perdure.policies import Remote
from perdure.tools import tool_from_function

OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@tool
def find(city: str) -> list[str]:
    """Find flights.

    Args:
        city: Where to.
    """
    return [city]


def test_function_becomes_a_tool_by_its_name_docstring_and_careful_defaults():
    assert (find.name, find.spec.description) == ("find", "Find flights.")
    assert find.spec.parameters["properties"]["city"] == {"type": "string", "description": "Where to."}
    spec = find.spec
    assert (spec.effect, spec.timeout, spec.tries, spec.in_doubt) == ("unsafe", timedelta(seconds=10), 1, "ask")
    assert (spec.approval, spec.local, spec.parallel, spec.probe, spec.remote) == (None, False, False, False, None)


def test_tool_can_still_be_called_as_the_function_that_it_was():
    assert find("Shanghai") == ["Shanghai"]
    assert find(city="Beijing") == ["Beijing"]


def test_options_beat_name_and_docstring():
    @tool(name="look up!", description="Look.", effect="read", timeout=2, local=True, result_limit=10)
    def lookup():
        """Not this."""

    spec = lookup.spec
    assert (spec.name, spec.description, spec.effect, spec.local) == ("look up!", "Look.", "read", True)
    assert (spec.timeout, spec.tries, spec.result_limit) == (timedelta(seconds=2), 2, 10)


def test_idempotent_tool_is_tried_as_often_as_it_says():
    @tool(effect="idempotent", attempts=5, timeout=timedelta(minutes=1))
    def put():
        """Put."""

    assert (put.spec.tries, put.spec.timeout) == (5, timedelta(minutes=1))


def test_probe_predicate_and_known_errors_stay_with_the_tool_and_only_their_names_in_its_spec():
    def probe(ctx: ToolContext, price: float):
        return Unknown()

    def costly(price: float) -> bool:
        return price > 100

    @tool(probe=probe, approval=costly, not_done=(KeyError,))
    def buy(price: float):
        """Buy."""

    assert buy.probe is probe
    assert buy.ask is costly
    assert buy.not_done == (KeyError,)
    assert (buy.spec.probe, buy.spec.approval) == (True, "predicate:buy")


def test_context_is_found_by_its_type_whatever_its_name():
    @tool
    async def find_with(city: str, handed: ToolContext):
        """Find."""

    assert find_with.context_parameter == "handed"
    assert list(find_with.spec.parameters["properties"]) == ["city"]


def test_methods_and_callables_can_be_tools():
    class Desk:
        def book(self, city: str) -> str:
            """Book."""
            return city

    booking = tool(Desk().book)
    assert list(booking.spec.parameters["properties"]) == ["city"]
    assert booking(city="A") == "A"


def test_tool_of_a_schema_keeps_it_but_for_refs():
    def call(**arguments):
        return arguments

    schema = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string", "title": "A"}}}
    made = Tool.from_schema(call, schema, name="call", description="Call.", effect="read")
    assert made.spec.parameters == {"type": "object", "properties": {"a": {"type": "string", "title": "A"}}}
    assert made.arguments is None
    assert made(a="x") == {"a": "x"}


def test_tool_on_another_worker_says_where_and_cannot_be_called_here():
    made = Tool.remote(
        activity="Charge", task_queue="java", parameters=OBJECT, description="Charge.", effect="idempotent"
    )
    assert made.spec.remote == Remote(activity="Charge", task_queue="java")
    assert made.name == "Charge"
    with pytest.raises(TypeError, match="'Charge' is served elsewhere"):
        made(city="x")


def described(**options):
    @tool(**options)
    def act():
        """Act."""


def undescribed():
    @tool
    def act(): ...


def lambda_tool():
    tool(lambda: None)


def from_schema(schema):
    return lambda: Tool.from_schema(print, schema, name="act", description="Act.")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (undescribed, "Tool 'act' needs a docstring or description="),
        (lambda_tool, "needs a docstring or description="),
        (lambda: described(name="perdure.model"), "names that begin with 'perdure.' are the runtime's own"),
        (lambda: described(effect="write"), "option effect: Input should be 'read', 'idempotent' or 'unsafe'"),
        (lambda: described(approval="sometimes"), "option approval: String should match"),
        (lambda: described(local=True), "local=True repeats after a crash, so only a 'read' may say it"),
        (lambda: described(timeout=0), "timeout has to be more than 0"),
        (lambda: described(timeout=timedelta(seconds=-1)), "timeout has to be more than 0"),
        (lambda: described(timeout="soon"), "Tool 'act'"),
        (lambda: described(attempts=0), "option attempts"),
        (lambda: described(result_limit=-1), "option result_limit"),
        (lambda: described(in_doubt="hope"), "option in_doubt"),
        (lambda: described(retries=3), "unknown option retries"),
        (lambda: described(not_done=["ValueError"]), "not_done has to be a list of exception types"),
        (lambda: described(probe="look"), "probe has to be a function, not 'look'"),
        (from_schema({"type": "array"}), "has to describe an object, not 'array'"),
        (from_schema({"type": ["object", "null"]}), "has to describe an object"),
        (from_schema({"type": "nonsense"}), "JSON Schema is not valid"),
        (from_schema({"properties": {"a": {"pattern": "("}}}), "JSON Schema is not valid"),
        (from_schema({"properties": {"a": {"$ref": "#/x"}}}), "points to nothing"),
        (lambda: Tool.from_schema(print, OBJECT, name="", description="Act."), "name"),
        (lambda: Tool.from_schema(print, OBJECT, name="act", description=""), "description"),
        (
            lambda: Tool.remote(
                activity="a", task_queue="q", parameters=OBJECT, description="A.", effect="read", local=True
            ),
            "a tool on another worker can't be local",
        ),
    ],
)
def test_bad_declaration_is_refused_in_one_sentence(make, said):
    with pytest.raises(ToolDefinitionError) as caught:
        make()
    text = str(caught.value)
    assert said in text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize("what", [3, functools.partial(print, 1), type("Desk", (), {})])
def test_what_is_no_function_is_refused(what):
    with pytest.raises(ToolDefinitionError, match="is not a function"):
        tool(what)


def test_one_exception_type_may_stand_alone_as_in_an_except_clause():
    def act():
        """Act."""

    assert tool_from_function(act, {"not_done": OSError}).not_done == (OSError,)
