"""What the model says, and what the tools do: the same as in `bench/crashing`, without an agent around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.crashing import ledger
from perdure.testing.crash import point

TASK = "See to a long order."
ORDERS = Path(__file__).parents[1] / "crashing" / "orders.json"


def reply(turn: int) -> dict[str, Any]:
    """Return what the model says in a turn, from 1."""
    replies = [one for one in json.loads(ORDERS.read_text()) if one.get("about", "") in TASK]
    found: dict[str, Any] = replies[min(turn, len(replies)) - 1]
    return found


def act(tool: str, run: str, what: str, key: str) -> str:
    """Do what a tool does, and return what it tells."""
    if tool in ("look", "glance"):
        return f"{what}: " + "x" * (1_000 if tool == "look" else 0)
    ledger.enter(run, f"{tool} {what}", key, once=tool == "charge")
    point("has had its effect")
    return f"{tool} {what}: done"
