"""What a model sees next, out of the transcript. Pure.

A request is, in this order: the instructions; where the conversation was compacted, the user's newest message as of
then and a summary of the rest; what has come since, whole; at its very end, what changes from call to call. Between two
compactions, all but the last of these stays as it is to the byte, so that a provider's prompt cache holds.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from perdure.messages import (
    DEFAULT_WINDOW,
    AssistantMessage,
    Compaction,
    Content,
    Entry,
    Message,
    TextPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.policies import READ_RESULT, AgentSpec, ContextPolicy, ToolSpec
from perdure.results import noted, preview, render_result

T = TypeVar("T")

SUMMARY = "This is a summary of the conversation up to here; the messages that it stands for are not shown any more."


# -- what is shown -----------------------------------------------------------------------------------------


def visible(entries: Sequence[Entry]) -> list[Message]:
    """Return what the model is shown of a transcript: what came before the last compaction in short."""
    last = last_compaction(entries)
    if last is None:
        return _messages(entries)
    shown: list[Message] = []
    if last.keeps is not None:
        shown.extend(_messages([shortened(entries[last.keeps], last.keeps, last)]))
    if said := summary_of(last):
        shown.append(said)
    short = min(max(last.shortened, last.covers), len(entries))
    shown.extend(_messages([shortened(entries[at], at, last) for at in range(last.covers, short)]))
    return [*shown, *_messages(entries[short:])]


def last_compaction(entries: Sequence[Entry]) -> Compaction | None:
    """Return the compaction that holds, or None."""
    return next((entry for entry in reversed(entries) if isinstance(entry, Compaction)), None)


def _messages(entries: Sequence[Entry]) -> list[Message]:
    return [entry for entry in entries if not isinstance(entry, Compaction)]


_HEADINGS = {
    "said": "What the user said:",
    "done": "What was done:",
    "decided": "What people decided:",
    "waiting": "What waited for a person at that moment:",
    "identifiers": "Values to be used exactly as they are:",
    "seen": "Values that were found:",
}


def summary_of(compaction: Compaction) -> UserMessage | None:
    """Return what the model is told in place of what is not shown any more; None where nothing is left out."""
    kept = compaction.verbatim
    parts = [compaction.summary] if compaction.summary else []
    for name, heading in _HEADINGS.items():
        if lines := getattr(kept, name):
            parts.append("\n".join([heading, *(f"- {line}" for line in lines)]))
    if kept.handles:
        lines = [f"- {what}: {ref}" for what, ref in kept.handles]
        parts.append("\n".join(["Results that can be read again, by their handle:", *lines]))
    if not parts:
        return None
    text = "\n\n".join([SUMMARY, *parts])
    return UserMessage(role="user", content=text, source="runtime", refs=[ref for _, ref in kept.handles])


def handles(messages: Sequence[Message]) -> list[str]:
    """Return the handles of that of which only a part is shown, oldest first: what `read_result` may read."""
    found: dict[str, None] = {}
    for message in messages:
        if isinstance(message, UserMessage):
            found |= dict.fromkeys(message.refs)
        result = message.result if isinstance(message, ToolMessage | UserMessage) else None
        if result and result.ref:
            found[result.ref] = None
    return list(found)


def offered_tools(spec: AgentSpec, messages: Sequence[Message]) -> list[ToolSpec]:
    """Return the tools that a model is offered: those of its spec, and `read_result` once it can read something."""
    wanted = handles(messages) and spec.tool(READ_RESULT.name) is READ_RESULT
    return [*spec.offered, READ_RESULT] if wanted else spec.offered


# -- what is shown in short --------------------------------------------------------------------------------


def shortened(entry: Entry, at: int, compaction: Compaction) -> Entry:
    """Return entry number `at` as it is shown after `compaction`: the same, or with less of what is long in it."""
    if at >= compaction.shortened:
        return entry
    limit, cut, ref = compaction.limit, compaction.cut, compaction.refs.get(at)
    return _views.get(entry, f"{limit}/{cut}/{ref}", lambda: _shortened(entry, limit, cut, ref))


def _shortened(entry: Entry, limit: int, cut: int, ref: str | None) -> Entry:
    match entry:
        case ToolMessage(result=result) if result.images or is_long(result, limit):
            told = _preview(result, limit, ref) if is_long(result, limit) else result
            return entry.model_copy(update={"result": _without_images(told)})
        case UserMessage(content=str(text), result=ToolResult() as result) if is_long(result, limit):
            told = _preview(result, limit, ref)
            words = text.removesuffix(render_result(result)) + render_result(told)
            return entry.model_copy(update={"content": words, "result": told})
        case UserMessage(content=content, result=None) if cut and content_bytes(content) > cut:
            changed = {"content": _without_middle(text_of(content), cut, ref), "refs": [ref] if ref else []}
            return entry.model_copy(update=changed)
        case _:
            return entry


def _without_images(result: ToolResult) -> ToolResult:
    return noted(result.model_copy(update={"images": []}), _NOT_SHOWN) if result.images else result


_NOT_SHOWN = "Its images are not shown any more."


def is_long(result: ToolResult, limit: int) -> bool:
    """Return whether a result's content is longer than `limit` bytes, and a preview would do."""
    return result.status == "ok" and len(result.content) * 4 > limit and len(_bytes(result.content)) > limit


def _preview(result: ToolResult, limit: int, ref: str | None) -> ToolResult:
    head, size = preview(result.content, limit // 4)
    changed: dict[str, Any] = {"content": head, "size": result.size or size, "ref": result.ref or ref}
    if result.shown is not None:  # handles and what they stand for differ in length: rather some bytes twice than never
        part = len(_bytes(head)) / max(len(_bytes(result.content)), 1)
        changed["shown"] = max(int(result.shown * part) - _OVERLAP, 0)
    return result.model_copy(update=changed)


_OVERLAP = 200


def content_bytes(content: Content) -> int:
    """Return how long a message is; an attachment counts as a thousand tokens."""
    if isinstance(content, str):
        return len(_bytes(content))
    return sum(len(_bytes(part.text)) if isinstance(part, TextPart) else _ATTACHMENT for part in content)


_ATTACHMENT = 4_000


def text_of(content: Content) -> str:
    """Return a message as text; of attachments, what they are."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}: left out here]" for part in content)


def _without_middle(text: str, limit: int, ref: str | None) -> str:
    data = _bytes(text)
    if len(data) <= limit:
        return text
    each = limit // 2
    head, tail = data[:each].decode("utf-8", "ignore"), data[len(data) - each :].decode("utf-8", "ignore")
    more = f'; {READ_RESULT.name}("{ref}", offset={each}) gives them' if ref else ""
    return f"{head}\n[Cut: {len(data) - 2 * each} of {len(data)} bytes are left out here{more}.]\n{tail}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def to_keep(entries: Sequence[Entry], compaction: Compaction) -> Iterator[tuple[int, str]]:
    """Yield what the store has to hold, so that all that `compaction` shows in short can be read whole.

    That is the place of an entry, and its text. What was kept for an earlier compaction is left out.
    """
    before = last_compaction(entries)
    places = set(range(before.covers if before else 0, compaction.shortened))
    for at in sorted(places | ({compaction.keeps} if compaction.keeps is not None else set())):
        entry = entries[at]
        if before and at in before.refs:
            continue
        match entry:
            case ToolMessage(result=result) | UserMessage(result=ToolResult() as result):
                if is_long(result, compaction.limit) and result.ref is None and result.size is None:
                    yield at, result.content
            case UserMessage(content=content) if compaction.cut and content_bytes(content) > compaction.cut:
                yield at, text_of(content)
            case _:
                pass


def refs_of(entries: Sequence[Entry]) -> list[str]:
    """Return the blobs that a transcript refers to: whoever goes on from it has to own them."""
    found: dict[str, None] = {}
    for entry in entries:
        match entry:
            case ToolMessage(result=result) | UserMessage(result=ToolResult() as result) if result.ref:
                found[result.ref] = None
            case Compaction(refs=refs, verbatim=kept):
                found |= dict.fromkeys([*refs.values(), *(ref for _, ref in kept.handles)])
            case _:
                pass
    return list(found)


class Once(Generic[T]):
    """What was computed of an object, for as long as the object lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], dict[str, T]]] = {}

    def get(self, of: object, key: str, compute: Callable[[], T]) -> T:
        """Return what `compute` gave the first time for this object and key."""
        id_ = id(of)
        if id_ not in self._known:
            self._known[id_] = weakref.ref(of, lambda _: self._known.pop(id_, None)), {}
        known = self._known[id_][1]
        if key not in known:
            known[key] = compute()
        return known[key]


_views: Once[Entry] = Once()


# -- what decides how it is made shorter -------------------------------------------------------------------


class NotWritten(Exception):
    """No model could write what it was asked for; says why."""


@dataclass(frozen=True)
class Written:
    """What a model wrote, and which one, as the agent names it."""

    text: str
    model: str


async def _nothing_kept(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


async def _nobody_writes(instructions: str, text: str) -> Written:  # noqa: ARG001 - stands for a model
    raise NotWritten("There is no model.")


@dataclass(frozen=True)
class Situation:
    """A transcript that is too long, and what there is to make it shorter with.

    Attributes:
        entries: The whole transcript.
        count: Returns the tokens of a request that shows these messages.
        limit: Tokens that the request may have at most.
        target: Tokens that it had better have at most.
        window: Tokens that the model can take.
        tools: The agent's.
        waiting: What waits for a person now, in words.
        decided: What people have decided since the last compaction, in words.
        free: No model may be asked.
        keep: Puts a text into the store, and returns its handle.
        write: Asks a model; given instructions and a text. Raises `NotWritten`.
    """

    entries: Sequence[Entry]
    count: Callable[[Sequence[Message]], int]
    limit: int
    target: int
    window: int = DEFAULT_WINDOW
    tools: Sequence[ToolSpec] = ()
    waiting: Sequence[str] = ()
    decided: Sequence[str] = ()
    free: bool = False
    keep: Callable[[str], Awaitable[str]] = field(default=_nothing_kept)
    write: Callable[[str, str], Awaitable[Written]] = field(default=_nobody_writes)


@runtime_checkable
class ContextStrategy(Protocol):
    """What decides how a conversation is shown and compacted: `Agent(context=…)`.

    Attributes:
        name: Kept in a run's rules; a run that finds another strategy under its agent's name, or none, is served by
            the default one.
        policy: Its settings, kept in a run's rules likewise.
    """

    name: str
    policy: ContextPolicy

    def view(self, entries: Sequence[Entry]) -> list[Message]:
        """Return what the model is shown of a transcript. Pure, and with the calls of each reply before their results.

        As long as no compaction is added, a longer transcript has to be shown with the same messages at its start.
        """
        ...

    async def compact(self, situation: Situation) -> Compaction | None:
        """Return what is to be added to the transcript so that less of it is shown; None where nothing is left to do.

        It may be called again with the same transcript. What it raises is logged, and the default strategy does it.
        """
        ...


def is_paired(messages: Sequence[Message]) -> bool:
    """Return whether each call is followed by its result, in order, and each result belongs to a call."""
    due: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not due or due.pop(0) != message.result.call_id:
                return False
        elif due:
            return False
        if isinstance(message, AssistantMessage):
            due = [call.id for call in message.calls]
    return not due


LARGEST = 500_000
"""Bytes of a compaction: it is kept in a history."""


def fits(entry: Compaction, entries: Sequence[Entry]) -> bool:
    """Return whether a compaction is about `entries`, which it follows, and can be kept in a history."""
    length, keeps = len(entries), entry.keeps
    about = 0 <= entry.covers <= length and 0 <= entry.shortened <= length
    kept = keeps is None or 0 <= keeps < min(entry.covers, length)
    return about and kept and len(entry.model_dump_json().encode("utf-8", "replace")) <= LARGEST
