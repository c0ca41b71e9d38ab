"""What a model call may spend, checked before it is sent. Pure."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Literal

from perdure.budgets import Allowance
from perdure.messages import Usage

_LEAST_REPLY = 16
"""Tokens: OpenAI's Responses API takes no smaller limit of a reply, and nothing useful is shorter."""

_LONGEST_REPLY = 32_768
"""Tokens: a limit above it is not sent, since no reply gets there, while many models refuse a limit that is larger than
what they can write."""

_PROBE = 1_000
"""Output tokens by which their price is found, whichever tier of prices the input is in."""

PriceOf = Callable[[Usage], Decimal | None]


class NotAllowed(Exception):
    """The call may not be made: it would spend more than what is left. Its text is for a person."""

    def __init__(self, kind: Literal["budget", "price_unknown"], message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def left_of(allowance: Allowance, wasted: Usage, cost_usd: Decimal | None) -> Allowance:
    """Return what is left of `allowance` after attempts that failed half-way; an unknown cost counts as none."""
    tokens_in, tokens_out, usd = allowance.input_tokens, allowance.output_tokens, allowance.usd
    return allowance.model_copy(
        update={
            "input_tokens": None if tokens_in is None else tokens_in - wasted.input_tokens,
            "output_tokens": None if tokens_out is None else tokens_out - wasted.output_tokens,
            "usd": None if usd is None else usd - (cost_usd or 0),
        }
    )


def reply_limit(allowance: Allowance, tokens: int, model: str, price_of: PriceOf) -> int | None:
    """Return the most tokens that the reply to a request may have, or None: as many as it likes.

    Args:
        allowance: What is left.
        tokens: Of the request, estimated.
        model: For the text.
        price_of: Returns what usage costs with this model.

    Raises:
        NotAllowed: `budget` if not even the shortest reply is affordable, `price_unknown` if nobody can tell.
    """
    if allowance.input_tokens is not None and tokens > allowance.input_tokens:
        left = max(allowance.input_tokens, 0)
        text = f"the next model call needs about {tokens:,}, and {left:,} are left."
        raise NotAllowed("budget", f"The run's input tokens are used up: {text}")
    limits = [limit for limit in (allowance.output_tokens, _affordable(allowance, tokens, model, price_of)) if limit]
    if allowance.output_tokens is not None and allowance.output_tokens < _LEAST_REPLY:
        left = max(allowance.output_tokens, 0)
        raise NotAllowed("budget", f"The run's output tokens are used up: {left} are left, too few for a reply.")
    return min(limits) if limits and min(limits) < _LONGEST_REPLY else None


def _affordable(allowance: Allowance, tokens: int, model: str, price_of: PriceOf) -> int | None:
    """Return how many output tokens the USD that are left pay for; None without a limit, or where they are free."""
    if allowance.usd is None:
        return None
    sent = price_of(Usage(input_tokens=tokens))
    both = price_of(Usage(input_tokens=tokens, output_tokens=_PROBE))
    if sent is None or both is None:
        text = "so the run's limit in USD can't be kept. Set ModelSettings(price=Price(input=…, output=…)), in USD per"
        raise NotAllowed("price_unknown", f"The price of {model} is not known, {text} million tokens, or no limit.")
    each = (both - sent) / _PROBE
    left = allowance.usd - sent
    if left < each * _LEAST_REPLY or left < 0:
        text = f"the next model call costs about {sent + each * _LEAST_REPLY:.6f} USD at least"
        raise NotAllowed(
            "budget", f"The run's money is used up: {text}, and {max(allowance.usd, Decimal(0))} are left."
        )
    return int(left / each) if each else None
