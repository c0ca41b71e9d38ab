"""Facts that are remembered across sessions, and found by their words."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.memory import Circle, Fact

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ADA = Circle(namespace="default", agent="travel", user="ada", scopes=["user"])


def fact(id, text="", minutes=0, **more):
    values: dict[str, Any] = {
        "namespace": "default",
        "agent": "travel",
        "scope": "user",
        "subject": "ada",
        "source": "r1",
        **more,
    }
    return Fact(id=id, text=text or id, at=NOON + timedelta(minutes=minutes), **values)


async def recalled(store, query, circle=ADA, limit=10):
    return [each.id for each in await store.recall(circle, query, limit)]


async def test_a_fact_comes_back_whole(store):
    whole = fact("f1", "Ada likes a window seat. 靠窗\x00", source="person:bob", scope="tenant", subject="acme")
    await store.remember([whole])
    assert await store.facts("default") == [whole]
    firm = Circle(namespace="default", agent="travel", tenant="acme", scopes=["tenant"])
    assert await store.recall(firm, "window", 5) == []
    assert await store.facts("default", query="window", scope="tenant") == [whole]
    assert (await store.fact("default", "f1"), await store.fact("default", "f2")) == (whole, None)


async def test_remembering_again_changes_nothing(store):
    for _ in range(2):
        await store.remember([fact("f1", "an aisle seat")])
        await store.remember([fact("f2", "a window seat", minutes=1)], supersedes=["f1"])
    assert [f.id for f in await store.facts("default")] == ["f2"]
    assert [(f.id, f.superseded_by) for f in await store.facts("default", all=True)] == [("f2", ""), ("f1", "f2")]


async def test_nothing_remembered_is_nothing_found(store):
    assert await recalled(store, "seat") == []
    assert await store.facts("default") == []
    assert not await store.forget("default", "f1", NOON)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("WINDOW", ["seat"]),
        ("seats by the windows?", ["seat"]),
        ("cafe", ["cafe"]),
        ("Zürich", ["city"]),
        ("上海", ["chinese"]),
        ("我想去上海", ["chinese"]),
        ("住在北京", []),
        ("mu5101", ["flight"]),
        ("' OR \" | & * ( NOT window:*", ["seat"]),
        ("\x00 \ud800 !?", []),
        ("elephants", []),
    ],
)
async def test_a_fact_is_found_by_words_in_any_writing(store, query, found):
    await store.remember(
        [
            fact("seat", "Likes a window seat."),
            fact("cafe", "Meets at a Café"),
            fact("city", "Lives in Zurich"),
            fact("chinese", "她喜欢上海的酒店。"),
            fact("flight", "Took MU5101."),
        ]
    )
    assert await recalled(store, query) == found


async def test_what_fits_best_comes_first_and_a_rare_word_counts_most(store):
    await store.remember([fact(f"f{n}", f"the hotel number {n}", n) for n in range(5)])
    await store.remember([fact("quiet", "the quiet hotel"), fact("none", "breakfast at seven")])
    assert (await recalled(store, "the quiet hotel"))[0] == "quiet"
    assert (await recalled(store, "hotel 3"))[:2] == ["f3", "quiet"]
    assert await recalled(store, "hotel", limit=2) == ["quiet", "f4"]


async def test_without_a_query_the_newest_come_first(store):
    await store.remember([fact("a", minutes=1), fact("b", minutes=3), fact("c", minutes=2)])
    assert await recalled(store, "", limit=2) == ["b", "c"]


async def test_only_those_asked_about_are_recalled(store):
    await store.remember(
        [
            fact("mine", "seat"),
            fact("firm", "seat", tenant="acme", scope="tenant", subject="acme"),
            fact("other firm", "seat", tenant="acme"),
            fact("other user", "seat", subject="bob"),
            fact("other agent", "seat", agent="other"),
            fact("other scope", "seat", scope="agent"),
            fact("other namespace", "seat", namespace="elsewhere"),
        ]
    )
    assert await recalled(store, "seat") == ["mine"]
    both = ADA.model_copy(update={"tenant": "acme", "scopes": ["user", "tenant"]})
    assert sorted(await recalled(store, "seat", both)) == ["firm", "other firm"]
    assert await recalled(store, "seat", ADA.model_copy(update={"scopes": []})) == []
    assert [f.id for f in await store.facts("default", agent="other")] == ["other agent"]
    assert [f.id for f in await store.facts("default", subject="bob")] == ["other user"]


async def test_a_superseded_fact_is_kept_and_not_recalled(store):
    await store.remember([fact("old", "aisle seat"), fact("older", "middle seat")])
    await store.remember([fact("new", "window seat", 1), fact("more", "vegetarian", 1)], supersedes=["old", "older"])
    assert sorted(await recalled(store, "seat")) == ["new"]
    assert {f.id: f.superseded_by for f in await store.facts("default", all=True)} == {
        "old": "new",
        "older": "new",
        "new": "",
        "more": "",
    }


async def test_what_is_forgotten_is_gone_with_all_it_replaced(store):
    await store.remember([fact("f1", "lives in Rome")])
    await store.remember([fact("f2", "lives in Paris")], supersedes=["f1"])
    await store.remember([fact("f3", "lives in Berlin"), fact("other", "likes Berlin")], supersedes=["f2"])
    assert await store.forget("default", "f3", NOON)
    assert not await store.forget("default", "f3", NOON)
    assert await recalled(store, "rome paris berlin") == ["other"]
    gone = [f for f in await store.facts("default", all=True) if f.id != "other"]
    assert [(f.text, f.source, f.forgotten_at) for f in gone] == [("", "r1", NOON)] * 3
    await store.remember([fact("f3", "lives in Berlin")])  # the same turn again brings nothing back
    assert [f.id for f in await store.facts("default")] == ["other"]
