"""Facts that are remembered across sessions, and found by their words."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.memory import Circle, Fact

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def circle(*scopes, user="ada", tenant="", agent="travel", namespace="default"):
    return Circle(namespace=namespace, agent=agent, tenant=tenant, user=user, scopes=list(scopes or ["user"]))


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


async def recalled(store, query, *scopes, limit=10, **whom):
    return [each.id for each in await store.recall(circle(*scopes, **whom), query, limit)]


async def test_a_fact_comes_back_whole(store):
    text = "Ada likes a window seat. 靠窗\x00"
    whole = fact("f1", text, source="person:bob", tenant="acme", scope="tenant", subject="acme")
    await store.remember([whole])
    assert await store.facts("default") == [whole] == [await store.fact("default", "f1")]
    assert await store.recall(circle("tenant", tenant="acme"), "window", 5) == [whole]


async def test_remembering_again_changes_nothing(store):
    for _ in range(2):
        await store.remember([fact("f1", "an aisle seat")])
        await store.remember([fact("f2", "a window seat", minutes=1)], supersedes=["f1"])
    assert [f.id for f in await store.facts("default")] == ["f2"]
    assert [(f.id, f.superseded_by) for f in await store.facts("default", all=True)] == [("f2", ""), ("f1", "f2")]


async def test_nothing_remembered_is_nothing_found(store):
    assert await recalled(store, "seat") == []
    assert await store.facts("default") == []
    assert await store.fact("default", "f1") is None
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
            fact("other user", "seat", subject="bob"),
            fact("other agent", "seat", agent="other"),
            fact("other scope", "seat", scope="agent"),
            fact("other namespace", "seat", namespace="elsewhere"),
            fact("for the firm", "seat", tenant="acme"),
            fact("of the firm", "seat", tenant="acme", scope="tenant", subject="acme"),
            fact("of the agent", "seat", tenant="acme", scope="agent", subject="travel"),
            fact("of another firm's agent", "seat", tenant="other", scope="agent", subject="travel"),
        ]
    )
    for query in ("seat", ""):
        assert await recalled(store, query) == ["mine"]
        everything = await recalled(store, query, "user", "tenant", "agent", tenant="acme")
        assert sorted(everything) == ["for the firm", "of the agent", "of the firm"]
        assert await recalled(store, query, "user", user="") == []
        assert await recalled(store, query, "user", namespace="nowhere") == []


async def test_people_find_facts_by_whom_they_are_about_and_by_words(store):
    await store.remember(
        [
            fact("a", "window seat"),
            fact("b", "seat", 1, agent="other"),
            fact("c", "seat", 2, subject="bob", tenant="acme"),
            fact("d", "aisle", 3, scope="tenant", subject="acme", tenant="acme"),
            fact("e", "seat", namespace="elsewhere"),
        ]
    )

    async def listed(**asked):
        return [each.id for each in await store.facts("default", **asked)]

    assert await listed() == ["d", "c", "b", "a"]
    assert await listed(limit=2) == ["d", "c"]
    assert await listed(agent="other") == ["b"]
    assert await listed(subject="bob") == ["c"]
    assert await listed(tenant="acme") == ["d", "c"]
    assert await listed(tenant="", query="seats") == ["b", "a"]
    assert await listed(scope="tenant") == ["d"]
    assert await listed(query="window seat") == ["a", "c", "b"]


async def test_a_fact_of_somebody_elses_memory_can_not_be_replaced(store):
    await store.remember([fact("theirs", tenant="acme"), fact("another agent's", agent="other"), fact("old")])
    await store.remember([fact("new", minutes=1)], supersedes=["theirs", "another agent's", "old"])
    assert sorted(f.id for f in await store.facts("default")) == ["another agent's", "new", "theirs"]


async def test_what_replaced_a_fact_first_stays_what_replaced_it(store):
    await store.remember([fact("old")])
    await store.remember([fact("one")], supersedes=["old"])
    await store.remember([fact("two")], supersedes=["old"])
    assert (await store.fact("default", "old")).superseded_by == "one"
    assert sorted(f.id for f in await store.facts("default")) == ["one", "two"]


async def test_history_is_searched_where_all_is_asked_for(store):
    await store.remember([fact("old", "aisle seat")])
    await store.remember([fact("new", "window seat", 1)], supersedes=["old"])
    assert [f.id for f in await store.facts("default", query="aisle")] == []
    assert [f.id for f in await store.facts("default", query="aisle", all=True)] == ["old"]


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
