"""What tokens cost: by the price that a user has set, else by pydantic's price table (`genai-prices`), offline."""

from __future__ import annotations

from decimal import Decimal

from perdure.messages import Usage
from perdure.policies import Price

_MILLION = 1_000_000


def cost(model: str, usage: Usage, price: Price | None = None, *, address: str = "") -> Decimal | None:
    """Return what `usage` costs in USD, or None where the price is not known.

    Args:
        model: As the provider calls it: `gpt-5`, `gpt-5-2025-08-07`.
        price: Beats the table.
        address: Where the model is served: the same name costs nothing, or something else, on another server. A
            server that the table does not have is unknown.
    """
    sent, received = usage.input_tokens, usage.output_tokens
    cached = min(usage.cached_tokens, sent)
    if not sent + received:
        return Decimal(0)
    if price is None:
        return _from_table(model, sent, cached, received, address) if address.startswith("http") else None
    cached_price = price.input if price.cached is None else price.cached
    return ((sent - cached) * price.input + cached * cached_price + received * price.output) / _MILLION


def window_in_table(model: str, address: str) -> int | None:
    """Return the tokens that a model can take, by the price table; None where it does not know."""
    from genai_prices import data_snapshot

    if not address.startswith("http"):
        return None
    try:
        _, found = data_snapshot.get_snapshot().find_provider_model(model, None, None, address)
    except LookupError:
        return None
    return found.context_window


def _from_table(model: str, sent: int, cached: int, received: int, address: str) -> Decimal | None:
    # Importing it takes half a second. It reads the table of its own package: only `UpdatePrices` would fetch one.
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    tokens = Tokens(input_tokens=sent, cache_read_tokens=cached, output_tokens=received)
    try:
        return calc_price(tokens, model, provider_api_url=address).total_price
    except (LookupError, ValueError):  # no such server or model; ValueError: no price fits, such as for its tier
        return None
