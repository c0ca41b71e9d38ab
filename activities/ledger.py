"""The usage ledger: what the requests of a run have used, each a row, and writing them down at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from perdure.activities.afterwards import Copy, Kept
from perdure.activities.prices import cost
from perdure.activities.providers import address_of
from perdure.activities.stores.copied import Ledger
from perdure.context import visible
from perdure.messages import Compaction, Entry, Message, ToolMessage, Usage, UserMessage
from perdure.models.dialect import BYTES_PER_TOKEN, instruction_bytes, message_bytes
from perdure.policies import AgentSpec
from perdure.reports import Spent
from perdure.state import RunState
from perdure.telemetry.askings import Asking
from perdure.telemetry.projection import Projection
from perdure.transcripts import Load, put_away
from perdure.usage import Kind, Prompt, UsageRow


def usage_copy(ledger: Ledger, load: Load) -> Copy:
    """Return what writes down the usage of each execution that has been archived."""

    async def copy(kept: Kept) -> None:
        await ledger.keep_usage(await rows_of(kept.projection, kept.run.namespace, load))

    return copy


async def rows_of(projection: Projection, namespace: str, load: Load) -> list[UsageRow]:
    """Return what a run has used, as far as the projection goes; `load` reads what was put away before that.

    Raises:
        ConnectionFailed: If the store is down.
    """
    entries: list[Entry] | None
    try:
        entries = [*await put_away(projection.earlier.before, load), *projection.entries]
    except LookupError:
        entries = None
    return rows(projection, namespace, entries)


def rows(projection: Projection, namespace: str, entries: Sequence[Entry] | None) -> list[UsageRow]:
    """Return what a run has used, in order: the requests of calls that have ended, as far as the projection goes.

    Args:
        entries: The whole transcript, from its very first entry on; None where that can't be read.
    """
    state, found = projection.state, list[UsageRow]()
    if state is None:
        return found
    prompts = None if entries is None else _Prompts(state.spec, entries)
    for asking in projection.askings:
        prompt = prompts.of(asking) if prompts else None
        spent = _requests(asking, prompt, ended=projection.ended is not None)
        common = {"namespace": namespace, "run_id": projection.run_id, "step": asking.step}
        place = {"position": asking.position, "at": asking.scheduled}
        found += requests_of(state, asking.kind, spent, {**common, **place}, prompt)
    return found


def requests_of(
    state: RunState, kind: Kind, spent: Sequence[Spent], common: Mapping[str, Any], prompt: Parts | None = None
) -> list[UsageRow]:
    """Return the rows of the requests of one call.

    Args:
        common: What is the same in all of them: `namespace`, `run_id`, `position`, `at`, `step`.
        prompt: What each of them showed.
    """
    whose = {"agent": state.spec.name, "tenant": state.tenant, "user": state.user, "kind": kind}
    session = state.session.name if state.session else ""
    found: list[UsageRow] = []
    each = [one for one in spent for _ in range(one.times)]
    for attempt, one in enumerate(each, 1):
        told = {"model": one.model, "usage": one.usage, "status": one.status, "why": one.why, "sent_at": one.at}
        costs = {"cost_usd": one.cost_usd, "input_usd": input_cost(state.spec, one.model, one.usage)}
        shares = {"prompt": prompt.of_all(one.usage.input_tokens) if prompt else None}
        row = {**common, **whose, **told, **costs, **shares, "session": session, "attempt": attempt}
        found.append(UsageRow.model_validate(row))
    return found


def input_cost(spec: AgentSpec, model: str, usage: Usage) -> Decimal | None:
    """Return what the input of a request costs with a model of an agent; None where that is not known."""
    sent = usage.model_copy(update={"output_tokens": 0, "reasoning_tokens": 0})
    price = spec.settings.price if model == spec.model else None  # the settings have that of the first one only
    return cost(model.partition(":")[2], sent, price, address=address_of(model, spec.settings))


def _requests(asking: Asking, prompt: Parts | None, *, ended: bool) -> list[Spent]:
    """Return the requests of a call, each for itself; of one that was cut off, with the one that was under way."""
    each = list(asking.spent)
    cut_off = ended and asking.ended is None  # whether a worker had it by then, no history tells
    if asking.lost or cut_off:
        tokens = prompt.total // BYTES_PER_TOKEN if prompt else 0
        lost, why = Usage(input_tokens=tokens, estimated=True), asking.why or "ended"
        each.append(Spent(model=asking.model, status="lost", why=why, usage=lost, cost_usd=None, at=asking.started))
    return each


# -- what prompts are made of ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """Bytes of a prompt."""

    instructions: int
    reread: int
    results: Counter[str]
    total: int

    def of_all(self, tokens: int) -> Prompt:
        """Return the same in tokens, where so many are in all of it."""
        scale = tokens / max(self.total, 1)
        results = {name: round(size * scale) for name, size in self.results.items()}
        return Prompt(instructions=round(self.instructions * scale), reread=round(self.reread * scale), results=results)


class _Prompts:
    """Walks along a transcript and weighs what each call shows of it."""

    def __init__(self, spec: AgentSpec, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._instructions = instruction_bytes(spec.instructions, spec.offered)
        self._at = 0
        self._shown = 0
        self._results = Counter[str]()

    def of(self, asking: Asking) -> Parts:
        """Return the parts of the prompt of a call. Calls have to come in order."""
        asked = asking.asked
        self._go(min(asked.length, len(self._entries)))
        total = self._instructions + self._shown
        if asking.kind == "summary":  # all of it is what was shown before
            return Parts(0, total, Counter(), total)
        new = sum(_size(entry) for entry in self._entries[max(asked.base, 0) : self._at])
        return Parts(self._instructions, max(self._shown - new, 0), Counter(self._results), total)

    def _go(self, length: int) -> None:
        for at in range(self._at, length):
            entry = self._entries[at]
            if isinstance(entry, Compaction):
                self._shown, self._results = 0, Counter[str]()
                for message in visible(self._entries[: at + 1]):
                    self._add(message)
            else:
                self._add(entry)
        self._at = max(self._at, length)

    def _add(self, message: Message) -> None:
        size = message_bytes(message)
        self._shown += size
        result = message.result if isinstance(message, ToolMessage | UserMessage) else None
        if result:
            self._results[result.name] += size


def _size(entry: Entry) -> int:
    return 0 if isinstance(entry, Compaction) else message_bytes(entry)
