"""What a model sees of a conversation, however long it is: it fits, nothing is torn apart, nothing exact is lost."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.compaction import DefaultStrategy
from perdure.context import NotWritten, Situation, Written, refs_of, visible
from perdure.ladder import Turns
from perdure.messages import (
    AssistantMessage,
    Compaction,
    Entry,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    Verbatim,
)
from perdure.models import ModelRequest
from perdure.models.dialect import request_tokens
from perdure.outcomes import news_of, waiting
from perdure.policies import ContextPolicy, ModelSettings, ToolSpec
from perdure.state import CallState
from perdure.verbatim import verbatim

TOOLS = [
    ToolSpec(name="search", description="Search.", parameters={}, effect="read"),
    ToolSpec(name="book", description="Book.", parameters={}, effect="unsafe"),
]


def tokens(messages: Sequence[Message]) -> int:
    return request_tokens(ModelRequest("Be kind.", messages, TOOLS, ModelSettings()))


def content_ref(text: str) -> str:
    """Return a handle, as a store might."""
    return hashlib.sha256(f"sealed {text}".encode()).hexdigest()[:32]


class Talk:
    """A conversation in the making."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.kept: dict[str, str] = {}
        self.asked: list[str] = []
        self._numbers = count(1)
        self._parked: list[CallState] = []

    def user(self, text: str, *, image: bool = False) -> None:
        content: Any = [TextPart(kind="text", text=text), ImagePart(kind="image", url="https://x/y")] if image else text
        self.entries.append(UserMessage(role="user", content=content))

    def note(self, text: str) -> None:
        self.entries.append(UserMessage(role="user", content=text, source="runtime"))

    def reply(self, text: str, *, reasoning: bool = False) -> None:
        items = [{"type": "reasoning", "encrypted_content": "r" * 40}] if reasoning else []
        self.entries.append(AssistantMessage(role="assistant", text=text, reasoning=items, provider="openai-responses"))

    def turn(self, *results: str, tool: str = "search", text: str = "", parks: bool = False, **arguments: Any) -> None:
        """Add a reply that makes as many calls as there are results."""
        calls = [ToolCall(id=f"c{next(self._numbers)}", name=tool, arguments=arguments) for _ in results]
        self.entries.append(AssistantMessage(role="assistant", text=text, calls=calls))
        for call, content in zip(calls, results, strict=True):
            result = ToolResult(call_id=call.id, name=tool, status="ok", content=content)
            if parks:
                state = CallState(call=call, position=f"{call.id[1:]}.1", key="k", result=result, arguments=arguments)
                self._parked.append(state)
                result = waiting(state)
            self.entries.append(ToolMessage(role="tool", result=result))

    def news(self) -> None:
        """Tell what became of a call that has waited for a person."""
        if self._parked:
            self.entries.append(news_of(self._parked.pop(0)))

    def compact(self, window: int, *, writes: Any = None, **policy: Any) -> Compaction | None:
        """Compact the conversation, unless it fits."""
        rules = ContextPolicy(window=window, **policy)

        async def keep(text: str) -> str:
            self.kept[content_ref(text)] = text
            return content_ref(text)

        async def write(instructions: str, text: str) -> Written:
            self.asked.append(text)
            if writes is None:
                raise NotWritten("There is no model.")
            return Written(writes, "m:m")

        situation = Situation(
            entries=self.entries,
            count=tokens,
            limit=int(window * rules.compact_at),
            target=int(window * rules.compact_to),
            window=window,
            tools=TOOLS,
            keep=keep,
            write=write,
        )
        entry = asyncio.run(DefaultStrategy(rules).compact(situation))
        self.entries.extend([entry] if entry else [])
        return entry

    @property
    def shown(self) -> list[Message]:
        return visible(self.entries)

    @property
    def text(self) -> str:
        return "\n".join(message.model_dump_json() for message in self.shown)


def paired(messages: Sequence[Message]) -> bool:
    """Whether each call is followed by its result, in order, and each result belongs to a call."""
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


def long_talk(turns: int, size: int = 1_000) -> Talk:
    talk = Talk()
    talk.user("Book me a flight to Shanghai.")
    for number in range(turns):
        talk.turn(f"result {number} " + "x" * size, query=f"q{number}")
    return talk


# -- what is shown -----------------------------------------------------------------------------------------


def test_a_conversation_that_was_never_compacted_is_shown_as_it_is() -> None:
    talk = long_talk(5)
    assert talk.shown == talk.entries


def test_what_fits_is_not_compacted() -> None:
    talk = long_talk(3)
    assert talk.compact(8_000) is None


def test_long_results_of_old_turns_become_previews_first_and_can_be_read_whole() -> None:
    talk = long_talk(12, 4_000)
    entry = talk.compact(16_000)
    assert entry is not None
    assert not entry.summary
    assert talk.asked == []
    results = [message.result for message in talk.shown if isinstance(message, ToolMessage)]
    assert len(results) == 12
    assert [result.size is None for result in results] == [False] * 6 + [True] * 6
    for number, result in enumerate(results[:6]):
        assert len(result.content) == 500
        assert result.ref is not None
        assert talk.kept[result.ref].startswith(f"result {number} ")
        assert len(talk.kept[result.ref]) == result.size


def test_a_result_that_was_spilled_keeps_its_handle_and_its_size() -> None:
    talk = long_talk(12, 4_000)
    old = talk.entries[2]
    assert isinstance(old, ToolMessage)
    spilled = old.result.model_copy(update={"ref": "r" * 32, "size": 1_000_000})
    talk.entries[2] = old.model_copy(update={"result": spilled})
    talk.compact(16_000)
    shown = next(message.result for message in talk.shown if isinstance(message, ToolMessage))
    assert (shown.ref, shown.size, len(shown.content)) == ("r" * 32, 1_000_000, 500)
    assert len(talk.kept) == 5


def test_old_turns_become_a_summary_where_previews_are_not_enough() -> None:
    talk = long_talk(40)
    entry = talk.compact(10_000, writes="Nothing was found so far.")
    assert entry is not None
    assert (entry.summary, entry.written_by) == ("Nothing was found so far.", "m:m")
    first, summary, *rest = talk.shown
    assert first == talk.entries[0]
    assert isinstance(summary, UserMessage)
    assert summary.source == "runtime"
    assert "Nothing was found so far." in str(summary.content)
    assert rest == talk.entries[entry.covers : -1]
    kept = sum(isinstance(message, AssistantMessage) for message in rest)
    assert kept >= 6
    assert entry.replies == 40 - kept


def test_a_model_that_sums_up_is_shown_what_is_covered_and_no_more() -> None:
    talk = long_talk(40)
    entry = talk.compact(10_000, writes="Nothing.")
    assert entry is not None
    (told,) = talk.asked
    for number in range(40):
        assert (f"result {number} " in told) == (number < entry.replies)


def test_without_a_model_each_turn_is_told_in_short() -> None:
    talk = long_talk(40)
    entry = talk.compact(10_000)
    assert entry is not None
    assert entry.written_by == ""
    assert "search" in entry.summary
    assert tokens(talk.shown) <= 4_000


def test_a_summary_that_is_too_long_is_cut() -> None:
    talk = long_talk(40)
    entry = talk.compact(10_000, writes="long " * 100_000)
    assert entry is not None
    assert 3_900 < len(entry.summary) <= 4_000
    assert tokens(talk.shown) <= 4_000


def test_a_later_compaction_folds_the_former_summary_in() -> None:
    talk = long_talk(40)
    talk.compact(10_000, writes="The first part.")
    for number in range(40):
        talk.turn("y" * 1_000, query=f"p{number}")
    entry = talk.compact(10_000, writes="Both parts.")
    assert entry is not None
    assert "The first part." in talk.asked[-1]
    assert "The first part." not in talk.text
    assert "Both parts." in talk.text
    assert 60 < entry.replies <= 74


def test_the_newest_message_of_the_user_stays_whole_and_older_ones_are_kept_word_for_word() -> None:
    talk = long_talk(20)
    talk.user("No, to Peking. " + "z" * 2_000)
    for number in range(20):
        talk.turn("y" * 1_000, query=f"p{number}")
    talk.compact(10_000)
    assert talk.shown[0] == UserMessage(role="user", content="No, to Peking. " + "z" * 2_000)
    assert "Book me a flight to Shanghai." in talk.text


def test_a_message_that_was_kept_stays_shown_where_only_results_are_shortened() -> None:
    talk = long_talk(24)
    first = talk.compact(8_000)
    talk.user("And a hotel.")
    talk.turn("y" * 16_000, query="p1")
    talk.turn("y" * 100, query="p2")
    second = talk.compact(8_000, keep_turns=1)
    assert first is not None
    assert second is not None
    assert (second.covers, second.keeps) == (first.covers, 0)
    assert talk.shown[0] == talk.entries[0]


def test_a_transcript_tells_which_blobs_it_refers_to() -> None:
    talk = long_talk(12, 4_000)
    talk.compact(16_000)
    assert set(refs_of(talk.entries)) == set(talk.kept)
    for number in range(40):
        talk.turn("y" * 3_000, query=f"p{number}")
    talk.compact(16_000)
    assert set(refs_of(talk.entries)) == set(talk.kept)


def test_results_of_the_newest_turn_become_previews_only_where_nothing_else_helps() -> None:
    talk = long_talk(3)
    talk.turn("first " + "a" * 20_000, "second " + "b" * 20_000)
    entry = talk.compact(8_000)
    assert entry is not None
    results = [message.result for message in talk.shown if isinstance(message, ToolMessage)]
    assert [len(result.content) for result in results[-2:]] == [1_000, 1_000]
    assert all(result.ref in talk.kept for result in results[-2:])


def test_a_message_of_the_user_that_does_not_fit_is_shown_without_its_middle_and_can_be_read_whole() -> None:
    talk = Talk()
    text = "Sum this up: " + "w" * 100_000 + " That is all."
    talk.user(text)
    entry = talk.compact(8_000)
    assert entry is not None
    (shown,) = talk.shown
    assert isinstance(shown, UserMessage)
    assert str(shown.content).startswith("Sum this up: ")
    assert str(shown.content).endswith(" That is all.")
    assert shown.refs == [content_ref(text)]
    assert content_ref(text) in str(shown.content)
    assert talk.kept[content_ref(text)] == text
    assert tokens(talk.shown) <= 6_000


def test_a_call_stays_together_with_what_was_told_of_it_later() -> None:
    talk = long_talk(5)
    booked = len(talk.entries)
    talk.turn("booked BK-1", tool="book", parks=True, flight="MU5101")
    for number in range(8):
        talk.turn("y" * 100, query=f"p{number}")
    talk.news()
    told = len(talk.entries)
    for number in range(3):
        talk.turn("z" * 100, query=f"r{number}")
    turns = Turns(talk.entries, 0)
    assert turns.start(2) == told + 2
    assert [turns.start(keep) for keep in (3, 4, 11)] == [booked] * 3  # the third begins with what was told
    assert turns.start(13) < booked
    assert Turns(talk.entries, booked + 2).start(3) == told - 1, "what is covered already can't be kept together"


def test_calls_with_effects_what_people_decided_and_what_waits_survive_word_for_word() -> None:
    talk = long_talk(2)
    talk.turn('{"reference": "BK-20461", "price": "1299.00 CNY"}', tool="book", flight="MU5101", passenger="Li Wei")
    for number in range(40):
        talk.turn("x" * 1_000, query=f"q{number}")
    rules = ContextPolicy(window=10_000)
    situation = Situation(
        talk.entries, tokens, 7_500, 4_000, 10_000, TOOLS, ["9.1 pay(12 EUR) waits for approval"], ["3.1 book approved"]
    )
    entry = asyncio.run(DefaultStrategy(rules).compact(situation))
    assert entry is not None
    talk.entries.append(entry)
    for exact in ("BK-20461", "1299.00 CNY", "MU5101", "Li Wei", "9.1 pay(12 EUR) waits for approval"):
        assert exact in talk.text, exact
    assert "3.1 book approved" in talk.text
    assert entry.verbatim.done == [
        'book("flight":"MU5101","passenger":"Li Wei"): ok, {"reference": "BK-20461", "price": "1299.00 CNY"}'
    ]


@pytest.mark.parametrize("window", [300, 600, 1_024, 4_000])
def test_in_the_smallest_window_a_model_is_told_which_effects_were_done(window: int) -> None:
    talk = Talk()
    talk.user("Reserve a copy of the book 'Boats', then read its chapters.")
    talk.turn('{"reservation": "RS-90817", "pickup": "2026-03-04"}', tool="book", title="Boats")
    talk.turn(*["x" * max(2_000, window)] * 4)
    assert talk.compact(window, writes="Chapters were read.") is not None
    assert "What was done:" in talk.text
    assert "book(" in talk.text


def test_room_that_nothing_else_needs_goes_to_what_was_done() -> None:
    done = [ToolMessage(role="tool", result=ToolResult(call_id="c", name="book", status="ok", content="y" * 90))]
    kept = verbatim(done * 1, Verbatim(done=[f"book({number}): ok" + "z" * 40 for number in range(10)]), TOOLS, 800)
    assert len(kept.done) > 800 * 3 // 16 // 55
    assert sum(len(line) for line in kept.done) <= 800


def test_what_was_kept_word_for_word_survives_further_compactions() -> None:
    talk = Talk()
    talk.user("Take the flight MU5101 on 2026-03-01, customer C-778.")
    talk.turn('{"reference": "BK-20461"}', tool="book")
    for _ in range(4):
        for number in range(30):
            talk.turn("x" * 1_000, query=f"q{number}")
        assert talk.compact(10_000) is not None
    for exact in ("MU5101", "2026-03-01", "C-778", "BK-20461"):
        assert exact in talk.text, exact
    last = talk.entries[-1]
    assert isinstance(last, Compaction)
    assert last.verbatim.identifiers.count("book: reference=BK-20461") == 1


# -- whatever the transcript, whatever the window ----------------------------------------------------------

sizes = st.sampled_from([0, 10, 300, 1_000, 3_000, 20_000])
windows = st.sampled_from([600, 1_000, 4_000, 16_000])


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    talk = Talk()
    talk.user("start " + "s" * draw(sizes), image=draw(st.booleans()))
    for number in range(draw(st.integers(0, 25))):
        go_on(talk, draw, number)
    return talk


def go_on(talk: Talk, draw: Any, number: int) -> None:
    text = f"{number} " + draw(st.sampled_from("ab字")) * draw(sizes)
    match draw(st.integers(0, 8)):
        case 0:
            talk.user(f"said {text}", image=draw(st.booleans()))
        case 1:
            talk.note(f"note {number}")
        case 2:
            talk.news()
        case 3:
            talk.reply(f"reply {text}", reasoning=draw(st.booleans()))
        case 4:
            talk.turn(*[f"r{number} {'c' * draw(sizes)}" for _ in range(draw(st.integers(1, 6)))], text=text)
        case 5:
            talk.turn(f"BK-{number}77 {text}", tool="book", flight=f"MU{number}99")
        case 6:
            talk.turn(f"parked {text}", tool="book", parks=True)
        case _:
            talk.turn(f"found {text}", query=text)


def newest(entries: Sequence[Entry]) -> UserMessage:
    return next(e for e in reversed(entries) if isinstance(e, UserMessage) and e.source == "user")


def barest(talk: Talk, window: int) -> int:
    """Return what the least that can be shown may take: a summary, what is kept, and the newest message in short."""
    each = min(window // 10, 2_000)
    return tokens([]) + 2 * each + window // 16 + 400


@settings(max_examples=80, deadline=None)
@given(talk=talks(), window=windows, keep=st.sampled_from([1, 2, 6]), data=st.data())
@pytest.mark.reported(16)
def test_whatever_was_said_what_is_shown_fits_is_paired_and_has_the_newest_message(
    talk: Talk, window: int, keep: int, data: st.DataObject
) -> None:
    for number in range(data.draw(st.integers(1, 3))):
        go_on(talk, data.draw, 100 + number)
        talk.compact(window, keep_turns=keep, writes=data.draw(st.sampled_from([None, "Short.", "w" * 50_000])))
        assert paired(talk.shown)
        assert tokens(talk.shown) <= max(window * 0.75, barest(talk, window))
        said = newest(talk.entries)
        text = said.content if isinstance(said.content, str) else said.content[0].model_dump()["text"]
        assert text[:20] in "\n".join(json.loads(m.model_dump_json())["content"].__str__() for m in shown_users(talk))


def shown_users(talk: Talk) -> Iterator[UserMessage]:
    return (message for message in talk.shown if isinstance(message, UserMessage))


@settings(max_examples=50, deadline=None)
@given(talk=talks(), window=windows, writes=st.sampled_from([None, "Short.", "w" * 50_000]))
def test_compacting_twice_is_compacting_once_where_nothing_new_came(talk: Talk, window: int, writes: str) -> None:
    talk.compact(window, writes=writes)
    shown = talk.shown
    assert talk.compact(window, writes=writes) is None
    assert talk.shown == shown


@settings(max_examples=50, deadline=None)
@given(talk=talks(), window=windows, data=st.data())
def test_between_two_compactions_what_was_shown_stays_shown_as_it_was(
    talk: Talk, window: int, data: st.DataObject
) -> None:
    talk.compact(window)
    before = talk.shown
    for number in range(data.draw(st.integers(1, 5))):
        go_on(talk, data.draw, 100 + number)
    assert talk.shown[: len(before)] == before


@settings(max_examples=50, deadline=None)
@given(talk=talks(), window=st.sampled_from([16_000, 40_000]))
def test_everything_shown_in_short_can_be_read_whole(talk: Talk, window: int) -> None:
    talk.compact(window)
    for message in talk.shown:
        refs = message.refs if isinstance(message, UserMessage) else []
        result = message.result if isinstance(message, UserMessage | ToolMessage) else None
        for ref in [*refs, *([result.ref] if result and result.ref else [])]:
            assert content_ref(talk.kept[ref]) == ref


@settings(max_examples=50, deadline=None)
@given(talk=talks(), keep=st.sampled_from([1, 6]))
def test_values_of_what_was_done_are_never_lost(talk: Talk, keep: int) -> None:
    done = [e for e in talk.entries if isinstance(e, ToolMessage) and e.result.content.startswith("BK-")]
    talk.compact(16_000, keep_turns=keep, writes="Short.")
    for entry in done:
        assert entry.result.content.split()[0] in talk.text


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Your booking BK-20461 is confirmed.", ["BK-20461"]),
        ("Flight MU5101 on 2026-03-01 08:30, 1,299.00 CNY.", ["2026-03-01 08:30", "1,299.00 CNY", "MU5101"]),
        ("于2026年3月1日出发,票价560元,订单号BK20461。", ["2026年3月1日", "560元", "BK20461"]),
        ("mail li.wei@example.com or +86 138 0013 8000", ["+86 138 0013 8000", "li.wei@example.com"]),
        ("see https://example.com/a?b=1", ["https://example.com/a"]),
        (
            '{"id": "a", "passenger_name": "Li Wei", "n": 2, "price": 12.5}',
            ["id=a", "passenger_name=Li Wei", "price=12.5"],
        ),
        ('[{"bookingId": "XKCDQW"}, {"note": "gate B12 at noon"}]', ["bookingId=XKCDQW"]),
        ("nothing of that kind, 12 of them", []),
    ],
)
def test_values_that_must_stay_exact_are_found(text: str, found: list[str]) -> None:
    from perdure.verbatim import values

    assert list(values(text)) == found


class Counting:
    """A pattern that counts the characters which it is given to look through."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern, self.looked = pattern, 0

    def __getattr__(self, name: str) -> Any:
        def method(*arguments: Any) -> Any:
            self.looked += len(arguments[-1])
            return getattr(self._pattern, name)(*arguments)

        return method


@pytest.mark.parametrize(
    "text",
    [
        *("a." * 200_000, "1" * 400_000, "a@" * 200_000, "{" * 400_000, "+1 " * 100_000, "1," * 200_000),
        json.dumps(["1" * 2_000] * 400),
        json.dumps({"id": "1" * 400_000, "price": "2 " * 200_000}),
    ],
    ids=lambda text: f"{text[:4]} {len(text)}",
)
def test_what_is_looked_through_for_values_does_not_grow_with_the_text(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure import verbatim as module

    patterns = [Counting(getattr(module, name)) for name in ("_SPELT", "_WORD")]
    for name, pattern in zip(("_SPELT", "_WORD"), patterns, strict=True):
        monkeypatch.setattr(module, name, pattern)
    list(module.values(text))
    assert 0 < sum(pattern.looked for pattern in patterns) < 250_000


def test_a_long_row_of_digits_is_tried_once_and_not_at_each_of_them() -> None:
    from perdure.verbatim import values

    assert next(values("1234567890" * 3 + " USD and 12,5 USD")) == "12,5 USD"


def test_values_are_found_in_the_beginning_of_a_long_text() -> None:
    from perdure.verbatim import values

    assert next(values("booked BK-20461 " + "x " * 400_000)) == "BK-20461"
