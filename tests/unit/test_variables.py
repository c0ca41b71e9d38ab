"""Variables: how they are declared, given, written by tools, folded, and shown to the model."""

from __future__ import annotations

import itertools
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel, model_validator

from perdure import Agent, VariableError, tool
from perdure.activities.variables import Variables
from perdure.errors import AgentError
from perdure.messages import AssistantMessage, ToolCall
from perdure.outcomes import close, fold_report, result_of, start
from perdure.policies import AgentSpec
from perdure.reports import ModelTurn, ToolReport
from perdure.state import CallStatus, RunState, begin
from perdure.turns import fold_turn, open_turn
from perdure.variables import LARGEST, current, note, shown, starting
from tests.unit.histories import NOW


class Passenger(BaseModel):
    name: str
    bags: int = 0


class Trip(BaseModel):
    flight: str | None = None
    seats: Annotated[int, Field(ge=1)] = 1
    on: date | None = None
    passengers: list[Passenger] = []
    cabin: Literal["economy", "business"] = "economy"


class Needy(BaseModel):
    customer: str
    seats: int = 1


@tool(effect="read")
def look() -> str:
    """Look."""
    return ""


@tool(approval="always")
def pay() -> str:
    """Pay."""
    return ""


def agent(model: Any = Trip, **options: Any) -> Agent:
    return Agent("travel", "openai:gpt", tools=[look, pay], variables=model, **options)


def kept(values: dict[str, Any], write: Any, model: type[BaseModel] = Trip) -> dict[str, Any]:
    """Return what a tool that does `write` changes of `values`."""
    variables = Variables(model, values)
    write(variables.instance)
    return variables.changes()


# -- declared ----------------------------------------------------------------------------------------------


def test_an_agent_without_variables_has_the_hash_that_it_had_before_there_were_any():
    assert Agent("plain", "openai:gpt-5", "Be kind.").hash == "ba2eaa9e90d21de6"


def test_variables_are_in_the_spec_as_json_schema_with_their_defaults():
    declared = agent().spec.variables
    assert declared is not None
    assert list(declared.json_schema["properties"]) == ["flight", "seats", "on", "passengers", "cabin"]
    assert declared.initial == {"flight": None, "seats": 1, "on": None, "passengers": [], "cabin": "economy"}
    assert AgentSpec.model_validate_json(agent().spec.model_dump_json()) == agent().spec


class Frozen(BaseModel, frozen=True):
    seats: int = 1


class Whole(RootModel[int]):
    root: int = 0


class Odd(BaseModel, arbitrary_types_allowed=True):
    thing: object = object()


COUNTER = itertools.count()


class Restless(BaseModel):
    number: int = Field(default_factory=lambda: next(COUNTER))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": {"seats": 1}}, "pydantic model class"),
        ({"model": Trip()}, "pydantic model class"),
        ({"model": Whole}, "pydantic model class"),
        ({"model": Frozen}, "frozen"),
        ({"model": Odd}, "can't be kept as JSON"),
        ({"model": Restless}, "another one each time"),
        ({"show_variables": "seats"}, "list of names"),
        ({"show_variables": ["seat"]}, "'seat'; the variables are flight, seats"),
    ],
)
def test_a_declaration_that_can_not_work_is_refused_in_one_sentence(options: dict[str, Any], words: str):
    with pytest.raises(AgentError, match=words) as caught:
        agent(**options)
    assert "travel" in str(caught.value)
    assert "\n" not in str(caught.value)


# -- given -------------------------------------------------------------------------------------------------


def test_what_is_given_beats_the_session_and_the_session_the_defaults():
    values = starting(agent().spec, {"seats": 3}, {"seats": 2, "flight": "MU5101", "gone": "since a deploy"})
    assert values == {"flight": "MU5101", "seats": 3, "on": None, "passengers": [], "cabin": "economy"}


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (Trip, {"seat": 1}, "no variable 'seat'; it has flight, seats"),
        (Trip, {"seats": "two"}, "'seats'.*'two' is not of type 'integer'"),
        (Trip, {"seats": 0}, "'seats'.*0 is less than"),
        (Trip, {"passengers": [{"bags": 1}]}, "'passengers.0'.*'name' is a required"),
        (Trip, {"flight": "x" * LARGEST}, "65,536 bytes.*'flight'"),
        (Needy, {}, "needs variable 'customer'"),
        (None, {"seats": 1}, "declares no variables, so variable 'seats'"),
    ],
)
def test_what_can_not_be_a_variable_is_refused_in_one_sentence(model: Any, given: dict[str, Any], words: str):
    with pytest.raises(VariableError, match=words) as caught:
        starting(agent(model).spec, given)
    assert "\n" not in str(caught.value)


# -- written -----------------------------------------------------------------------------------------------


def test_a_tool_reads_its_own_types_and_what_it_assigns_is_kept_as_json():
    def write(trip: Trip) -> None:
        assert isinstance(trip, Trip)
        assert (trip.on, trip.passengers[0].name) == (date(2026, 3, 1), "Ann")
        trip.on = date(2026, 3, 2)

    values = {"on": "2026-03-01", "passengers": [{"name": "Ann", "bags": 2}]}
    assert kept(values, write) == {"on": "2026-03-02"}


def test_a_change_in_place_is_kept_and_a_value_assigned_as_it_was_is_no_change():
    def write(trip: Trip) -> None:
        trip.seats = 1
        trip.passengers.append(Passenger(name="Bo"))

    assert kept({}, write) == {"passengers": [{"name": "Bo", "bags": 0}]}


def test_a_wrong_value_is_refused_at_once_and_leaves_what_was_there():
    def write(trip: Any) -> None:
        trip.flight = "MU5101"
        for name, value in {"seats": "two", "cabin": "bus", "flights": 2, "flight": "x" * LARGEST}.items():
            with pytest.raises(VariableError, match=name) as caught:
                setattr(trip, name, value)
            assert "\n" not in str(caught.value)

    assert kept({}, write) == {"flight": "MU5101"}


def test_a_rule_over_several_variables_holds_at_each_assignment():
    class Ruled(BaseModel):
        least: int = 1
        most: int = 2

        @model_validator(mode="after")
        def _in_order(self) -> Ruled:
            if self.least > self.most:
                raise ValueError("least is more than most")
            return self

    def write(ruled: Any) -> None:
        with pytest.raises(VariableError, match="least is more than most"):
            ruled.least = 3
        assert ruled.least == 1
        ruled.most = 4

    assert kept({}, write, Ruled) == {"most": 4}


def test_what_was_changed_in_place_to_something_that_can_not_be_kept_is_told():
    def wrong(trip: Any) -> None:
        trip.passengers.append({"bags": "many"})

    def large(trip: Any) -> None:
        trip.passengers.append(Passenger(name="x" * LARGEST))

    for write, words in ((wrong, "passengers.0.name"), (large, "65,536")):
        with pytest.raises(VariableError, match=words):
            kept({}, write)


def test_values_that_a_new_version_of_the_class_does_not_take_are_told_by_name():
    with pytest.raises(VariableError, match=r"'seats'.*valid integer"):
        Variables(Trip, {"seats": "a row"})
    assert kept({"gone": 1}, lambda trip: setattr(trip, "seats", 2)) == {"seats": 2}


# -- folded ------------------------------------------------------------------------------------------------


def a_turn(*names: str) -> RunState:
    state = begin("r", agent().spec, "go", None, "e", variables={"flight": "old", "seats": 1})
    _call(state, *names)
    return state


def _call(state: RunState, *names: str) -> None:
    calls = [
        ToolCall(id=f"{state.steps}-{n}", name=name, ask="Pay?" if name == "pay" else None)
        for n, name in enumerate(names)
    ]
    fold_turn(state, ModelTurn(message=AssistantMessage(role="assistant", calls=calls), finish="calls"), NOW)


def report(state: RunState, position: str, wrote: dict[str, Any], status: Any = "ok") -> None:
    call = state.find(position)
    assert call is not None
    start(state, call)
    fold_report(state, call, ToolReport(result=result_of(call, status), wrote=wrote))


@pytest.mark.parametrize("order", [("1.1", "1.2"), ("1.2", "1.1")])
def test_of_parallel_calls_the_last_in_call_order_wins_whoever_ends_first(order: tuple[str, str]):
    state = a_turn("look", "look")
    wrote: dict[str, Any] = {"1.1": {"flight": "A", "seats": 2}, "1.2": {"flight": "B"}}
    for position in order:
        report(state, position, wrote[position])
    assert state.variables == {"flight": "B", "seats": 2}
    assert [record.wrote for record in state.records] == [["flight", "seats"], ["flight"]]


def test_a_call_sees_what_the_calls_before_it_have_written_in_the_same_turn():
    state = a_turn("look", "look")
    report(state, "1.1", {"flight": "A"})
    assert current(state) == {"flight": "A", "seats": 1}
    assert state.variables["flight"] == "old"  # folded with the others, in call order


def test_a_call_in_doubt_has_written_nothing():
    state = a_turn("look")
    report(state, "1.1", {"flight": "A"}, status="in_doubt")
    assert current(state)["flight"] == "old"


def test_a_parked_call_is_folded_when_the_model_is_told_of_it():
    state = a_turn("pay", "look")
    report(state, "1.2", {"seats": 4})
    open_turn(state, answer_only=False)
    [parked] = state.parked
    assert (state.variables, parked.status) == ({"flight": "old", "seats": 4}, CallStatus.ASKING)
    parked.wrote = {"flight": "B"}
    close(state, parked, result_of(parked, "ok"))
    assert (state.variables["flight"], current(state)["flight"]) == ("old", "B")
    open_turn(state, answer_only=False)
    assert state.variables == {"flight": "B", "seats": 4}


# -- shown -------------------------------------------------------------------------------------------------


def showing(show: Any, **values: Any) -> dict[str, Any] | None:
    return shown(begin("r", agent(show_variables=show).spec, "go", None, "e", variables=values))


def test_the_model_is_shown_what_the_agent_says():
    assert showing(True, flight="A", seats=2) == {"flight": "A", "seats": 2}
    assert showing(["seats"], flight="A", seats=2) == {"seats": 2}
    assert showing(False, flight="A") is None
    assert shown(begin("r", agent(None).spec, "go", None, "e")) is None


def test_what_is_shown_is_bounded_and_says_what_was_cut():
    told = showing(True, flight="x" * 20_000, seats=2, passengers=["y" * 1_000] * 50)
    assert told is not None
    [message] = note(told)
    assert len(str(message.content)) < 9_000
    assert "cut: 2000 of 20002 characters" in told["flight"]
    assert told["seats"] == 2
    assert note(None) == []
