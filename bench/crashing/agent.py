"""The workload: tools of every effect, which write into the ledger outside."""

from __future__ import annotations

from bench.crashing import ledger
from perdure import Agent, Done, NotDone, ToolContext, ask_user, tool
from perdure.testing.crash import point

_BIG = 60_000
"""Characters of what goes to the store, the model being shown the beginning."""


@tool(effect="read")
async def look(what: str) -> str:
    """Look something up."""
    return f"{what}: " + "x" * _BIG


@tool(effect="read", local=True)
async def glance(what: str) -> str:
    """Look something up that is near."""
    return what


@tool(effect="idempotent")
async def charge(order: str, ctx: ToolContext) -> str:
    """Charge an order. The service knows a request by its key."""
    ledger.enter(ctx.run_id, f"charge {order}", ctx.idempotency_key, once=True)
    point("has charged")
    return f"charged {order}"


@tool(approval="always")
async def pay(order: str, ctx: ToolContext) -> str:
    """Pay for an order. The service does it each time that it is asked."""
    ledger.enter(ctx.run_id, f"pay {order}", ctx.idempotency_key, once=False)
    point("has paid")
    return f"paid {order}"


async def _was_sent(ctx: ToolContext, order: str) -> Done | NotDone:
    return Done(f"sent {order}") if ledger.there(ctx.idempotency_key) else NotDone()


@tool(probe=_was_sent)
def send(order: str, ctx: ToolContext) -> str:
    """Send an order. Whether it was sent can be looked up."""
    ledger.enter(ctx.run_id, f"send {order}", ctx.idempotency_key, once=False)
    point("has sent")
    return f"sent {order}"


async def _release(ctx: ToolContext, result: str, order: str) -> str:
    del result
    ledger.enter(ctx.run_id, f"release {order}", ctx.idempotency_key, once=True)
    point("has released")
    return f"released {order}"


@tool(effect="idempotent", compensate=_release)
async def reserve(order: str, ctx: ToolContext) -> str:
    """Reserve what an order needs; it is released if the run fails."""
    ledger.enter(ctx.run_id, f"reserve {order}", ctx.idempotency_key, once=True)
    return f"reserved {order}"


shop = Agent(
    "shop",
    "scripted:orders.json",
    instructions="See to the orders.",
    tools=[look, glance, charge, pay, send, reserve, ask_user],
    compensate_on=["failed"],
)
