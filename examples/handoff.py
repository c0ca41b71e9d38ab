"""A service desk: one agent sorts what comes in, and hands the conversation over to the one who can do it.

`python examples/handoff.py` runs it by itself, with a scripted model; DESK_MODEL names another one.
"""

import asyncio
import os
from pathlib import Path

from perdure import Agent, Handoff, run, tool

MODEL = os.environ.get("DESK_MODEL", f"scripted:{Path(__file__).with_suffix('.json')}")


@tool(effect="read")
def find_order(name: str) -> dict[str, str]:
    """Find a customer's last order."""
    return {"order": "A-1017", "what": "kettle", "state": "delivered", "customer": name}


@tool(effect="idempotent")
def refund(order: str, reason: str) -> str:
    """Pay an order back."""
    return f"Order {order} is paid back: {reason}."


refunds = Agent(
    "refunds",
    MODEL,
    "You pay orders back. Hand the customer back to `desk` for anything else.",
    tools=[refund],
    handoffs=["desk"],
)
desk = Agent(
    "desk",
    MODEL,
    "You find out what a customer wants, and hand over to whoever can do it.",
    tools=[find_order],
    handoffs=[Handoff(refunds, "Right for whoever wants money back.")],
)

if __name__ == "__main__":
    print(asyncio.run(run(desk, "I am Ada. My kettle leaks, I want my money back.")).text)
