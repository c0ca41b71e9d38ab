"""Where two transcripts part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.comparing import parting, turns
from perdure.messages import AssistantMessage, Compaction, Entry, ToolCall, ToolMessage, ToolResult, UserMessage


def said(text: str) -> Entry:
    return UserMessage(role="user", content=text)


def turn(text: str = "", *calls: tuple[str, Any, Any, str], ids: str = "c") -> list[Entry]:
    """A reply with calls (name, arguments, status, content), and their results."""
    asked = [ToolCall(id=f"{ids}{at}", name=name, arguments=given) for at, (name, given, *_) in enumerate(calls)]
    results = [
        ToolResult(call_id=f"{ids}{at}", name=name, status=status, content=content)
        for at, (name, _, status, content) in enumerate(calls)
    ]
    reply = AssistantMessage(role="assistant", text=text, calls=asked)
    return [reply, *(ToolMessage(role="tool", result=result) for result in results)]


LOOK = ("look", {"q": "x"}, "ok", "seen")


def parted(left: list[Entry], right: list[Entry]) -> tuple[int, list[tuple[str, str]]] | None:
    found = parting(left, right)
    return (found.step, [(one.what, one.call) for one in found.differences]) if found else None


def test_same_conversations_do_not_part_whatever_their_calls_ids_are() -> None:
    left = [said("go"), *turn("I look.", LOOK, ids="a"), *turn("done")]
    right = [said("go"), *turn("I look.", LOOK, ids="b"), *turn("done")]
    assert parted(left, right) is None


def test_a_compaction_is_no_difference() -> None:
    left = [said("go"), *turn("one", LOOK), *turn("done")]
    right = [said("go"), *turn("one", LOOK), Compaction(role="compaction", covers=1, summary="s"), *turn("done")]
    assert parted(left, right) is None


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ([said("go"), *turn("I see.", LOOK)], [("text", "")]),
        ([said("stay"), *turn("I look.", LOOK)], [("said", "")]),
        ([said("go"), *turn("I look.", ("find", {"q": "x"}, "ok", "seen"))], [("calls", "")]),
        ([said("go"), *turn("I look.", LOOK, LOOK)], [("calls", "")]),
        ([said("go"), *turn("I look.", ("look", {"q": "y"}, "ok", "seen"))], [("arguments", "1.1")]),
        ([said("go"), *turn("I look.", ("look", {"q": "x"}, "error", "seen"))], [("status", "1.1")]),
        ([said("go"), *turn("I look.", ("look", {"q": "x"}, "ok", "none"))], [("result", "1.1")]),
        ([said("go"), *turn("I look.", LOOK)[:1]], [("status", "1.1"), ("result", "1.1")]),
        ([said("go")], [("end", "")]),
    ],
)
def test_what_differs_is_named(other: list[Entry], what: list[tuple[str, str]]) -> None:
    base = [said("go"), *turn("I look.", LOOK)]
    assert parted(base, other) == (1, what)


def test_the_first_turn_that_differs_counts() -> None:
    left = [said("go"), *turn("one", LOOK), *turn("two", LOOK), *turn("three")]
    right = [said("go"), *turn("one", LOOK), *turn("zwei", LOOK), *turn("drei")]
    assert parted(left, right) == (2, [("text", "")])


def test_where_one_goes_on_it_is_said_how() -> None:
    left = [said("go"), *turn("one", LOOK)]
    found = parting(left, [*left, *turn("two", LOOK)])
    assert found is not None
    assert (found.step, found.differences[0].what) == (2, "end")
    assert (found.differences[0].left, found.differences[0].right) == (None, {"text": "two", "calls": ["look"]})


CALL = st.tuples(
    st.sampled_from(["look", "pay"]),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 1)),
    st.sampled_from(["ok", "error"]),
    st.sampled_from(["", "x"]),
)
TURN = st.builds(lambda text, calls: turn(text, *calls), st.sampled_from(["", "t"]), st.lists(CALL, max_size=2))
TRANSCRIPT = st.lists(st.one_of(st.builds(lambda text: [said(text)], st.sampled_from("xy")), TURN), max_size=4).map(
    lambda parts: [entry for part in parts for entry in part]
)


@given(left=TRANSCRIPT, right=TRANSCRIPT)
def test_two_transcripts_part_exactly_where_their_turns_differ(left: list[Entry], right: list[Entry]) -> None:
    ours, theirs = list(turns(left)), list(turns(right))
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    found = parting(left, right)
    if ours == theirs:
        assert found is None
    else:
        assert found is not None
        assert found.step == (ours[same] if same < len(ours) else theirs[same]).step
    back = parting(right, left)
    assert (found is None) == (back is None)
    if found and back:
        assert [(one.left, one.right) for one in found.differences] == [
            (one.right, one.left) for one in back.differences
        ]
