"""Runs that a schedule begins: what they know of the run before them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from perdure.messages import JSON, Content, Data, RunResult, TextPart, canonical_json

if TYPE_CHECKING:
    from perdure.wire import RunRequest

SCHEDULED_AT = "TemporalScheduledStartTime"
"""The search attribute in which the engine keeps for when a run was scheduled."""

NOTHING = "(nothing: no run of this schedule has completed before)"
"""Stands for what is said of the last run where there was none."""

_LAST = ("text", "output", "variables", "status", "reason", "run_id")
_MARK = re.compile(r"\{\{\s*(last(?:\.[^{}\s]*)?|scheduled_at)\s*\}\}")


SCHEDULED_BY = "TemporalScheduledById"
"""The one in which it keeps which schedule has begun a run."""

_SUFFIX = re.compile(r"-\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
"""What the engine makes a run's id of, after the schedule's."""


def is_of(schedule: str, run_id: str) -> bool:
    """Return whether a run has an id of those that the runs of a schedule have."""
    return run_id.startswith(schedule) and _SUFFIX.fullmatch(run_id[len(schedule) :]) is not None


class Recurring(Data):
    """What a schedule says of the runs that it begins.

    Attributes:
        schedule: Its id.
        by: Who has created it.
        keep_variables: A run begins with the variables as the last one that completed left them.
    """

    schedule: str
    by: str = ""
    keep_variables: bool = False


def wrong(content: Content) -> str:
    """Return what is wrong with the marks in what a schedule's runs are to do, as a sentence; "" for nothing."""
    for text in _texts(content):
        for name in _MARK.findall(text):
            root, _, path = name.partition(".")
            first = path.partition(".")[0]
            below = first in ("output", "variables")
            if root == "last" and (first not in _LAST or (not below and "." in path)):
                known = ", ".join(f"{{{{last.{one}}}}}" for one in _LAST)
                return f"{{{{{name}}}}} says nothing of the last run; known are {known} and {{{{scheduled_at}}}}."
    return ""


def _texts(content: Content) -> list[str]:
    return [content] if isinstance(content, str) else [part.text for part in content if isinstance(part, TextPart)]


def rendered(request: RunRequest, last: RunResult | None, at: datetime | None) -> RunRequest:
    """Return the request of a run as it begins: with what it says of the last run filled in.

    Args:
        last: What the last run of the schedule that completed gave; None where there is none.
        at: For when the run was scheduled.
    """
    recurring = request.recurring
    if recurring is None or request.carried or request.packed:
        return request
    changes: dict[str, Any] = {"input": filled(request.input, last, at)}
    if last:
        changes["private"] = [*request.private, *last.private]
    if last and recurring.keep_variables and request.spec.variables:
        declared: Mapping[str, Any] = request.spec.variables.json_schema.get("properties", {})
        kept = {name: value for name, value in last.variables.items() if name in declared}
        changes["variables"] = {**request.variables, **kept}
    return request.model_copy(update=changes)


def filled(content: Content, last: RunResult | None, at: datetime | None) -> Content:
    """Return what a run is to do, each `{{last.…}}` and `{{scheduled_at}}` in it replaced by what it stands for."""

    def fill(text: str) -> str:
        return _MARK.sub(lambda found: _value(found[1], last, at), text)

    if isinstance(content, str):
        return fill(content)
    return [
        part.model_copy(update={"text": fill(part.text)}) if isinstance(part, TextPart) else part for part in content
    ]


def _value(name: str, last: RunResult | None, at: datetime | None) -> str:
    if name == "scheduled_at":
        return at.isoformat() if at else ""
    if last is None:
        return NOTHING
    value: JSON = {field: getattr(last, field) for field in _LAST}
    for step in name.split(".")[1:]:
        value = _step(value, step)
    return value if isinstance(value, str) else "" if value is None else canonical_json(value)


def _step(value: JSON, step: str) -> JSON:
    """Return what is at `step` of a value; None where there is nothing."""
    if isinstance(value, dict):
        return cast("dict[str, JSON]", value).get(step)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(cast("list[JSON]", value)):
        return cast("list[JSON]", value)[int(step)]
    return None
