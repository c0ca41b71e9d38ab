"""Whether a model's answer is what its agent's `output_type` says: judged once, where it was received."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from perdure import outputs
from perdure.activities.checking import complaints
from perdure.agents import Agent
from perdure.concealing import Book
from perdure.handling import texts
from perdure.messages import JSON
from perdure.policies import OutputSpec
from perdure.reports import Structured
from perdure.results import clean, short, words

if TYPE_CHECKING:
    from perdure.activities.judging import Run

_SECONDS = 5.0
"""How long the validators of a type may take."""

_MOST = 5
"""Complaints that a model is told of."""


async def fitted(text: str, spec: OutputSpec, agent: Agent | None, run: Run, book: Book) -> dict[str, Any]:
    """Return what a turn has besides its text: the `output`, or what is wrong with it as `misfit`.

    The schema is the run's own. Where the agent's type still has that schema, its validators have a say as well.

    Args:
        text: As the model has written it, handles and all.
        run: Runs the validators.
    """
    try:
        written = outputs.read(clean(text))
        value = book.arguments(written)
    except LookupError as error:
        return {"misfit": f"Your last answer can't be used: {error.args[0]}."}
    except ValueError as error:
        return {"misfit": f"Your last answer is not JSON: {short(str(error))}."}
    wrong = _by_schema(value, spec)
    if wrong and value != written and not _by_schema(texts(value), spec):
        value, wrong = texts(value), ""  # a value that one tool gives as a number, another takes as text
    if not wrong and agent and agent.spec.output == spec:
        wrong = await _by_type(outputs.unwrapped(value, spec), agent.output_type, run)
    if wrong:
        return {"misfit": f"Your last answer does not fit {spec.name}: {wrong}."}
    return {"output": Structured(value=outputs.unwrapped(value, spec))}


def _by_schema(value: JSON, spec: OutputSpec) -> str:
    try:
        return complaints(value, spec.json_schema)
    except Exception as error:  # noqa: BLE001 - a number or pattern that the validator can't take
        return f"it can't be checked: {short(words(error))}".rstrip(".")


async def _by_type(value: JSON, output_type: Any, run: Run) -> str:
    """Return what the validators of a type say against a value; "" for nothing."""
    try:
        await run(_validate, {"output_type": output_type, "value": value}, _SECONDS)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        told = [f"{'.'.join(map(str, one['loc'])) or 'as a whole'}: {_words(one['msg'])}" for one in found[:_MOST]]
        return "; ".join(told).rstrip(".")
    except Exception as error:  # noqa: BLE001 - a defect in a validator: nobody may pass on it
        return f"it can't be checked: {short(words(error))}".rstrip(".")
    return ""


def _words(said: str) -> str:
    return short(clean(said.removeprefix("Value error, ").removeprefix("Assertion failed, ")))


def _validate(output_type: Any, value: JSON) -> None:
    outputs.adapter_of(output_type).validate_python(value)
