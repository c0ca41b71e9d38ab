"""Tools for any agent: `tools: [games]` in YAML."""

import secrets

from perdure import tool


@tool(effect="read")
def roll_dice(count: int = 1) -> list[int]:
    """Roll dice.

    Args:
        count: How many.
    """
    return [secrets.randbelow(6) + 1 for _ in range(count)]


@tool(effect="read")
def toss_coin() -> str:
    """Toss a coin."""
    return secrets.choice(["heads", "tails"])


TOOLS = [roll_dice, toss_coin]
