"""What a worker has to know of a run before it tells of it: which words of it are private."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from temporalio import activity
from temporalio.client import Client

from perdure.activities.conversations import asking
from perdure.agents import Agent
from perdure.context import Once
from perdure.messages import Entry
from perdure.policies import AgentSpec
from perdure.results import words
from perdure.telemetry import acquaintance
from perdure.transcripts import Load, put_away
from perdure.wire import ToolInput

_PATIENCE = 10.0
"""Seconds: a tool does not wait longer to learn which words are private. After a crash, the engine asks the worker that
is lost first, for two seconds."""

_MOST_RUNS = 10_000


class Acquaintance:
    """The runs of which this worker knows what is private.

    Args:
        client: To ask a run for its transcript.
        load: Reads what was put away.
    """

    def __init__(self, client: Client, load: Load) -> None:
        self._client = client
        self._load = load
        self._met: OrderedDict[str, None] = OrderedDict()
        self._specs: Once[AgentSpec] = Once()

    def with_talk(self, entries: list[Entry], spec: AgentSpec, key: str) -> None:
        """Learn what is private in the whole transcript of the run whose activity is being executed."""
        self._meet()
        acquaintance.meet(entries, spec, key)

    async def with_call(self, call: ToolInput, agent: Agent | None) -> None:
        """Learn what is private in a call, and in the run that makes it, where this worker knows nothing of it.

        Never fails: what looks private is redacted in any case.
        """
        if agent is None:
            return
        spec = self._specs.get(agent, "", lambda: agent.spec)
        if not acquaintance.declares(spec):
            return
        tool = spec.tool(activity.info().activity_type)
        if tool is not None:
            acquaintance.meet_value(call.arguments, tool.parameters)
        if activity.info().is_local or not self._meet():
            return  # a local activity is a part of the run's own task, which could not answer
        try:
            async with asyncio.timeout(_PATIENCE):
                acquaintance.meet(await self._transcript(), spec, agent.name)
        except Exception as error:  # noqa: BLE001 - the engine, the store: none of it is the tool's
            self._met.pop(activity.info().workflow_id or "", None)
            activity.logger.warning("which words of this run are private is not known: %s", words(error))

    def _meet(self) -> bool:
        """Return whether the run was not met before."""
        run_id = activity.info().workflow_id or ""
        is_new = run_id not in self._met
        self._met[run_id] = None
        self._met.move_to_end(run_id)
        while len(self._met) > _MOST_RUNS:
            self._met.popitem(last=False)
        return is_new

    async def _transcript(self) -> list[Entry]:
        fetch, found = asking(self._client), list[Entry]()
        while True:
            page = await fetch(len(found), _ALL)
            before = page.before.length if page.before else 0
            more = page.messages or (await put_away(page.before, self._load) if len(found) < before else [])
            if not more:
                return found
            found.extend(more)


_ALL = 1_000_000_000
