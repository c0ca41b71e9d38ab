"""What of a conversation must not be put in other words: who said and did what, and the values in it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, cast

from perdure.context import text_of
from perdure.messages import (
    JSON,
    AssistantMessage,
    Entry,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    Verbatim,
    canonical_json,
)
from perdure.parsing import parse_json
from perdure.policies import READ_RESULT, ToolSpec
from perdure.results import render_result

_SHARES = {"done": 3, "waiting": 2, "decided": 2, "identifiers": 3, "said": 3, "handles": 1, "seen": 2}
"""Sixteenths of the room that each part has for certain. What others leave goes to the first that need it."""

_LONGEST_LINE = 300
_LONGEST_SAYING = 1_000
_OF_AN_EFFECT, _OF_A_READ = 40, 12
"""Values that are taken from one result at most."""


def verbatim(
    entries: Sequence[Entry],
    before: Verbatim,
    tools: Sequence[ToolSpec],
    room: int,
    *,
    waiting: Iterable[str] = (),
    decided: Iterable[str] = (),
    refs: Mapping[str, str] | None = None,
) -> Verbatim:
    """Return what is to be kept word for word of `entries`, and of what was kept before.

    Args:
        entries: What is not shown any more from now on.
        before: What was kept of the part before them.
        tools: The agent's: what those with effects have done comes first.
        room: Bytes that all of it may take. The newest is kept, but for the first thing that the user said.
        waiting: What waits for a person now; what did so before is not kept.
        decided: What people have decided since.
        refs: Where the whole of long results is, by the ids of their calls: these handles are kept.
    """
    reads = {READ_RESULT.name, *(tool.name for tool in tools if tool.effect == "read")}
    calls = {call.id: call for entry in entries if isinstance(entry, AssistantMessage) for call in entry.calls}
    found = _Found(before)
    for entry in entries:
        _take(found, entry, calls, reads, refs or {})
    lists = {
        "waiting": list(waiting),
        "decided": [*before.decided, *decided],
        "done": [*before.done, *found.done],
        "said": [*before.said, *found.said],
        "identifiers": [*before.identifiers, *found.identifiers],
        "seen": [*before.seen, *found.seen],
    }
    handles = {what: f"{what}: {ref}" for what, ref in [*before.handles, *found.handles]}
    kept: dict[str, Any] = _shared({**lists, "handles": list(handles.values())}, room)
    pairs = [(what, ref) for what, _, ref in (line.rpartition(": ") for line in kept.pop("handles"))]
    return Verbatim(**kept, handles=pairs)


def _shared(lists: Mapping[str, list[str]], room: int) -> dict[str, list[str]]:
    """Return what is kept of each list: its share for certain, and of what the others leave, as much as it needs."""
    lines = {name: list(dict.fromkeys(lists[name])) for name in _SHARES}
    need = {name: _bytes(lines[name]) for name in lines}
    left = room - sum(min(need[name], room * share // 16) for name, share in _SHARES.items())
    kept: dict[str, list[str]] = {}
    for name, share in _SHARES.items():
        own = min(need[name], room * share // 16)
        more = min(left, need[name] - own)
        left -= more
        kept[name] = _fitting(lines[name], own + more, first=name == "said", cut=name in _NEVER_LOST)
    return kept


_NEVER_LOST = {"done", "waiting", "decided"}
"""Of these, the newest is cut where it does not fit."""


def _bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode("utf-8", "replace")) + 3 for line in lines)


class _Found:
    def __init__(self, before: Verbatim) -> None:
        self.said: list[str] = []
        self.done: list[str] = []
        self.identifiers: list[str] = []
        self.seen: list[str] = []
        self.handles: list[tuple[str, str]] = []
        self._known = {item for line in (*before.identifiers, *before.seen) for item in _items(line)}

    def note(self, into: list[str], source: str, values: Iterable[str], most: int) -> None:
        """Add a line with those of `values` that are new."""
        new = list(islice(self._unknown(values), most))
        while new:
            line, taken = f"{source}: {new[0]}", 1
            while taken < len(new) and len(line) + len(new[taken]) < _LONGEST_LINE:
                line, taken = f"{line}, {new[taken]}", taken + 1
            into.append(line)
            new = new[taken:]

    def _unknown(self, values: Iterable[str]) -> Iterator[str]:
        for value in values:
            if value not in self._known:
                self._known.add(value)
                yield value


def _items(line: str) -> list[str]:
    return line.partition(": ")[2].split(", ")


def _take(found: _Found, entry: Entry, calls: Mapping[str, ToolCall], reads: set[str], refs: Mapping[str, str]) -> None:
    match entry:
        case UserMessage(source="user", content=content):
            text = text_of(content)
            found.said.append(text if len(text) <= _LONGEST_SAYING else f"{text[:_LONGEST_SAYING]}…")
            found.note(found.identifiers, "user", values(text), _OF_AN_EFFECT)
        case UserMessage(content=str(text), result=ToolResult() as result):
            told = text.removesuffix(render_result(result)).rstrip(": ")
            found.done.append(f"{told}: {_outcome(result)}")
            _take_result(found, result, calls.get(result.call_id), refs, read=result.name in reads)
        case ToolMessage(result=result) if result.status != "waiting":
            call, read = calls.get(result.call_id), result.name in reads
            if not read and result.status != "skipped":
                found.done.append(f"{_call(result.name, call)}: {_outcome(result)}")
            _take_result(found, result, call, refs, read=read)
        case _:
            pass


def _take_result(
    found: _Found, result: ToolResult, call: ToolCall | None, refs: Mapping[str, str], *, read: bool
) -> None:
    into, most = (found.seen, _OF_A_READ) if read else (found.identifiers, _OF_AN_EFFECT)
    asked = _leaves(call.arguments) if call else ()
    found.note(into, result.name, chain(asked, values(result.content)), most)
    if result.status == "ok" and (ref := result.ref or refs.get(result.call_id)):
        found.handles.append((_call(result.name, call), ref))


def _call(name: str, call: ToolCall | None) -> str:
    return _brief(f"{name}({canonical_json(call.arguments)[1:-1] if call else '…'})", _LONGEST_LINE)


def _outcome(result: ToolResult) -> str:
    said = result.message or (result.content if result.status == "ok" else "")
    return f"{result.status}, {_brief(said, 120)}" if said.strip() else result.status


def _brief(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}…"


def _fitting(lines: list[str], room: int, *, first: bool, cut: bool) -> list[str]:
    """Return the newest of `lines` that fit into so many bytes.

    Args:
        first: The very first one as well, if it takes no more than half of the room.
        cut: The newest is cut where not even that fits.
    """
    kept: list[str] = []
    head = lines[:1] if first and lines and _bytes(lines[:1]) <= room // 2 else []
    left = room - _bytes(head)
    for line in reversed(lines[len(head) :]):
        left -= _bytes([line])
        if left < 0:
            break
        kept.append(line)
    if cut and lines and not kept and room > _LEAST_LINE:
        return [f"{lines[-1].encode('utf-8', 'replace')[: room - 6].decode('utf-8', 'ignore')}…"]
    return [*head, *reversed(kept)]


_LEAST_LINE = 24

# -- values ------------------------------------------------------------------------------------------------

_SPELT = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:Z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{4}年\d{1,2}月\d{1,2}日"
    r"|[$€£¥₹]\s?\d[\d,.]{0,20}"
    r"|(?<![\d,.])\d[\d,.]{0,20}\s?(?:USD|EUR|GBP|CNY|RMB|JPY|CHF|HKD|€|£|元|円)"
    r"|\+\d[\d -]{7,18}\d"
    r"|‹[a-z][a-z0-9_]{0,31}-\d{1,6}›"
)
"""Dates, amounts of money, telephone numbers, handles of private values.

Every repetition is bounded, and a long row of digits is tried only once: texts come from anywhere."""

_WORD = re.compile(r"[A-Za-z0-9_\-/.:#@+]{4,200}")
_KEY = re.compile(
    r"(?:^|_)(?:ids?|refs?|reference|numbers?|no|codes?|pnr|keys?|names?|e?mail|phone|confirmation|ticket|order|booking"
    r"|seat|account|sku|price|amount|total|fare|cost)$"
)
_DIGIT, _LETTER, _SPACE = re.compile(r"\d"), re.compile(r"[^\W\d_]"), re.compile(r"\s")
_LONGEST_CODE = 64
_MOST_LEAVES = 500
_LOOKED_THROUGH = 65_536
"""Characters of a text that are looked through for values: of a longer one, the beginning."""


def values(text: str) -> Iterator[str]:
    """Yield what of `text` has to be repeated exactly, if at all: identifiers, dates, amounts, addresses.

    Of JSON, with its key: `reference=BK-1`.
    """
    start = text.lstrip()[:1]
    if start in ("{", "["):
        try:
            return _leaves(parse_json(text))
        except ValueError:
            pass
    return _in_words(text[:_LOOKED_THROUGH])


def _in_words(text: str) -> Iterator[str]:
    for spelt in _SPELT.finditer(text):
        yield spelt[0].rstrip(",. ")
    for word in _WORD.finditer(_SPELT.sub(" ", text)):
        code = word[0].strip(".:/-_+#")
        if _is_code(code):
            yield code


def _is_code(word: str) -> bool:
    """Return whether `word` looks like an identifier: digits among letters, four digits or more, an address."""
    if "://" in word or re.fullmatch(r"[\w.+-]{1,64}@[\w.-]{1,128}", word):
        return True
    if not 3 < len(word) <= _LONGEST_CODE or not _DIGIT.search(word) or _SPACE.search(word):  # noqa: PLR2004
        return False
    return bool(_LETTER.search(word)) or len(_DIGIT.findall(word)) >= 4  # noqa: PLR2004


def _leaves(value: JSON) -> Iterator[str]:
    """Yield the values of plain data that have to be repeated exactly, with their keys."""
    stack: list[tuple[str, JSON]] = [("", value)]
    seen, left = 0, _LOOKED_THROUGH
    while stack and seen < _MOST_LEAVES and left > 0:
        key, node = stack.pop()
        if isinstance(node, dict):
            stack.extend(reversed([*cast("dict[str, JSON]", node).items()]))
        elif isinstance(node, list):
            stack.extend((key, child) for child in reversed(cast("list[JSON]", node)))
        else:
            seen += 1
            told = node[:left] if isinstance(node, str) else node
            left -= len(told) if isinstance(told, str) else 0
            yield from _leaf(key, told)


def _leaf(key: str, value: JSON) -> Iterator[str]:
    named = bool(_KEY.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()))
    label = f"{key}=" if key else ""
    if isinstance(value, str):
        short = len(value) <= _LONGEST_CODE
        if short and value.strip() and (named or _SPELT.fullmatch(value) or _is_code(value)):
            yield f"{label}{value}"
        else:
            yield from _in_words(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and (named or abs(value) >= 1000):  # noqa: PLR2004
        yield f"{label}{json.dumps(value)}"
