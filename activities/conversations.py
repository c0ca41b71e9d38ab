"""Conversations kept in this process, so that a model call need not carry them through history.

A conversation is named by its chained hash: what is found under it is right whatever was reset, forked or
resumed meanwhile. What is missing is asked of the workflow, by Query, in pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client

from perdure.messages import Entry, content_hash
from perdure.policies import AgentSpec
from perdure.transcripts import Chain, Load, linked, put_away
from perdure.wire import TRANSCRIPT, ModelInput, Page, PutAway

Fetch = Callable[[int, int], Coroutine[Any, Any, Page]]
"""Asks the workflow for messages `start` to `length`; the answer may be shorter than asked for."""

QUERY_PATIENCE = timedelta(seconds=10)
"""A frozen worker may be asked first; the next try goes elsewhere."""


def asking(client: Client) -> Fetch:
    """Return what asks the workflow of the activity that is being executed."""
    info = activity.info()
    handle = client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)

    async def fetch(start: int, length: int) -> Page:
        page: Page = await handle.query(TRANSCRIPT, args=[start, length], result_type=Page, rpc_timeout=QUERY_PATIENCE)
        return page

    return fetch


@dataclass
class _Kept:
    messages: list[Entry] = field(default_factory=list[Entry])
    chain: Chain = field(default_factory=Chain)
    size: int = 0


class Conversations:
    """A bounded cache of conversations by run, and of messages that were just made here.

    Args:
        limit: Bytes of message JSON kept; the least recently used go first.
        load: Reads what was put away.
    """

    def __init__(self, limit: int, load: Load) -> None:
        self._limit = limit
        self._load = load
        self._runs: OrderedDict[str, _Kept] = OrderedDict()
        self._fresh: OrderedDict[str, tuple[Entry, int]] = OrderedDict()
        self._specs: OrderedDict[str, AgentSpec] = OrderedDict()
        self._fresh_size = 0
        self.misses = 0

    def remember(self, message: Entry) -> None:
        """Keep a message that an activity of this process has just made."""
        key, size = content_hash(message), len(message.model_dump_json())
        if key in self._fresh:
            return
        self._fresh[key] = (message, size)
        self._fresh_size += size
        while self._fresh_size > self._limit // 4 and self._fresh:
            _, (_, dropped) = self._fresh.popitem(last=False)
            self._fresh_size -= dropped

    async def messages(self, run_id: str, wanted: ModelInput, fetch: Fetch) -> list[Entry]:
        """Return the conversation that `wanted` names.

        Raises:
            LookupError: If what the workflow answers has other hashes (it has moved on: a reset).
        """
        kept = self._runs.pop(run_id, None)
        if kept is None or not self._reaches(kept, wanted):
            kept = self._elsewhere(wanted)
        found = self._take_fresh(wanted) if len(kept.messages) == wanted.base else None
        if found is None:
            found = await self._ask(len(kept.messages), wanted.length, fetch)
        self._extend(kept, found)
        if kept.chain.head(wanted.length) != wanted.head:
            raise LookupError(f"The conversation of run {run_id} is another one than this call was made for.")
        self._runs[run_id] = kept
        self._evict()
        return list(kept.messages)

    async def part(self, run_id: str, wanted: PutAway, fetch: Fetch) -> list[Entry]:
        """Return the entries that `wanted` names."""
        start, kept = wanted.before.length if wanted.before else 0, self._runs.get(run_id)
        if kept and len(kept.messages) >= wanted.length and kept.chain.head(wanted.length) == wanted.head:
            return kept.messages[start : wanted.length]
        return await self._ask(start, wanted.length, fetch)

    async def spec(self, wanted: ModelInput, known: AgentSpec | None, fetch: Fetch) -> AgentSpec:
        """Return the spec that `wanted` names: `known` where its hash fits, else from the workflow."""
        if wanted.spec not in self._specs:
            if known is None or content_hash(known) != wanted.spec:
                known = (await fetch(0, 0)).spec
                assert known is not None  # noqa: S101 - a page from 0 has it
            self._specs[wanted.spec] = known
            if len(self._specs) > 256:  # noqa: PLR2004
                self._specs.popitem(last=False)
        return self._specs[wanted.spec]

    def _reaches(self, kept: _Kept, wanted: ModelInput) -> bool:
        """Return whether `kept` begins as `wanted` does; a retried call finds it one reply ahead and cuts it."""
        length = wanted.base
        if length > len(kept.messages) or linked(kept.chain.head(length), wanted.new) != wanted.head:
            return False
        for message in kept.messages[length:]:
            kept.size -= len(message.model_dump_json())
        del kept.messages[length:]
        kept.chain.cut(length)
        return True

    def _elsewhere(self, wanted: ModelInput) -> _Kept:
        """Return the beginning of `wanted` as another run has it, such as the turn before; nothing where none has."""
        length = wanted.base
        for kept in reversed(self._runs.values()) if length else ():
            if length <= len(kept.messages) and linked(kept.chain.head(length), wanted.new) == wanted.head:
                begun = _Kept()
                self._extend(begun, kept.messages[:length])
                return begun
        return _Kept()

    def _take_fresh(self, wanted: ModelInput) -> list[Entry] | None:
        found = [self._fresh[key][0] for key in wanted.new if key in self._fresh]
        return found if len(found) == len(wanted.new) else None

    async def _ask(self, start: int, length: int, fetch: Fetch) -> list[Entry]:
        self.misses += 1
        found: list[Entry] = []
        while start + len(found) < length:
            page = await fetch(start + len(found), length)
            more = page.messages or await put_away(page.before, self._load, start + len(found))
            if not more:
                raise LookupError("The workflow has fewer messages than this call was made for.")
            found.extend(more)
        return found

    def _extend(self, kept: _Kept, messages: list[Entry]) -> None:
        kept.messages.extend(messages)
        kept.chain.extend(kept.messages)
        kept.size += sum(len(message.model_dump_json()) for message in messages)

    def _evict(self) -> None:
        total = sum(kept.size for kept in self._runs.values())
        while total > self._limit and len(self._runs) > 1:
            _, dropped = self._runs.popitem(last=False)
            total -= dropped.size
