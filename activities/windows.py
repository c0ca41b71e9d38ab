"""How much a model can take, and what of a conversation it is shown: by its agent's strategy, or the default one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from temporalio import activity

from perdure.activities.prices import window_in_table
from perdure.activities.providers import address_of
from perdure.agents import Agent
from perdure.compaction import DefaultStrategy
from perdure.context import ContextStrategy, is_paired, last_compaction
from perdure.messages import DEFAULT_WINDOW, Entry, Message
from perdure.policies import AgentSpec
from perdure.results import words


def strategy_of(spec: AgentSpec, agent: Agent | None) -> ContextStrategy:
    """Return the strategy by which a run of `spec` compacts: the agent's own where it still has that one."""
    own = agent.context_strategy if agent else None
    if own is not None and own.name == spec.context.strategy:
        return own
    return DefaultStrategy(spec.context)


def shown(strategy: ContextStrategy, entries: Sequence[Entry]) -> list[Message]:
    """Return what the model is shown. Where a strategy fails, or tears a call from its result, it is the default's."""
    default = DefaultStrategy()
    if strategy.name == default.name:
        return strategy.view(entries)
    try:
        messages = list(strategy.view(entries))
    except Exception as error:  # noqa: BLE001 - application code may raise anything
        activity.logger.warning("context strategy %r failed: %s", strategy.name, words(error))
        return default.view(entries)
    if is_paired(messages):
        return messages
    activity.logger.warning("context strategy %r shows a call without its result, or the reverse", strategy.name)
    return default.view(entries)


def hidden(entries: Sequence[Entry]) -> int:
    """Return how many replies of the model it is not shown any more."""
    last = last_compaction(entries)
    return last.replies if last else 0


def window_of(spec: AgentSpec, told: int | None) -> int:
    """Return the tokens that a run's model can take.

    Args:
        told: What its provider said when it refused a request.
    """
    known = spec.context.window or _known(spec.model, address_of(spec.model, spec.settings)) or DEFAULT_WINDOW
    return min(known, told or known)


@lru_cache(maxsize=256)
def _known(model: str, address: str) -> int | None:
    return window_in_table(model.partition(":")[2], address)


def room_of(spec: AgentSpec, window: int) -> int:
    """Return the tokens that a request may have: some of the window stays free, at least for the longest reply."""
    reply = spec.settings.max_output_tokens or 0
    return min(int(window * spec.context.compact_at), max(window - reply, window // 4))
