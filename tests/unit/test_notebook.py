"""What people do with what is remembered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import PerdureError, Settings
from perdure.errors import FactNotFound
from perdure.notebook import Notebook


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(Settings(home=tmp_path / ".perdure"), "default")


async def test_what_a_person_enters_is_about_the_user_or_the_tenant_or_the_agent(notebook: Notebook) -> None:
    ann = await notebook.add(" Likes\nGraz. ", agent="travel", user="ann", tenant="acme", by="bob")
    acme = await notebook.add("Is in Graz.", agent="travel", tenant="acme")
    own = await notebook.add("Dates come first.", agent="travel")
    assert [(f.scope, f.subject, f.tenant) for f in (ann, acme, own)] == [
        ("user", "ann", "acme"),
        ("tenant", "acme", "acme"),
        ("agent", "travel", ""),
    ]
    assert (ann.text, ann.source) == ("Likes Graz.", "person:bob")
    assert acme.source.startswith("person:")
    assert await notebook.facts() == [own, acme, ann]


async def test_facts_are_listed_by_whom_they_are_about_and_searched(notebook: Notebook) -> None:
    ann = await notebook.add("Likes Graz.", agent="travel", user="ann", tenant="acme")
    ben = await notebook.add("Likes Linz.", agent="mail", user="ben")
    tenant = await notebook.add("Is in Graz.", agent="travel", tenant="ann")
    assert await notebook.facts(user="ann") == [ann]
    assert await notebook.facts(tenant="ann") == [tenant]
    assert await notebook.facts(tenant="") == [ben]
    assert await notebook.facts(agent="mail") == [ben]
    assert await notebook.facts(query="LINZ?") == [ben]
    assert await notebook.facts(limit=1) == [tenant]
    assert await notebook.fact(ann.id) == ann


async def test_a_correction_takes_the_place_of_what_was_there_and_keeps_it(notebook: Notebook) -> None:
    before = await notebook.add("Likes Graz.", agent="travel", user="ann", by="ann")
    after = await notebook.correct(before.id, "Likes Linz.", by="ben")
    assert await notebook.facts() == [after]
    assert (after.subject, after.agent, after.source) == ("ann", "travel", "person:ben")
    history = await notebook.facts(all=True)
    assert [(f.text, f.superseded_by) for f in history] == [("Likes Linz.", ""), ("Likes Graz.", after.id)]
    with pytest.raises(PerdureError, match=f"was replaced by {after.id}; correct that one"):
        await notebook.correct(before.id, "Likes Wels.")


async def test_of_two_who_correct_at_once_one_is_told_that_the_other_was_quicker(notebook: Notebook) -> None:
    before = await notebook.add("Likes Graz.", agent="travel", user="ann")
    ended = await asyncio.gather(
        *(notebook.correct(before.id, f"Likes {city}.") for city in ("Linz", "Wels", "Ried")), return_exceptions=True
    )
    assert sum(isinstance(one, PerdureError) for one in ended) == 2
    assert len(await notebook.facts()) == 1


async def test_what_is_deleted_is_gone_with_all_that_it_replaced(notebook: Notebook) -> None:
    first = await notebook.add("Likes Graz.", agent="travel", user="ann")
    second = await notebook.correct(first.id, "Likes Linz.")
    assert await notebook.forget(second.id) == ""
    assert await notebook.facts() == []
    assert [f.text for f in await notebook.facts(all=True)] == ["", ""]
    assert await notebook.facts(query="likes graz linz", all=True) == []
    for gone in (first.id, second.id, "nothing"):
        with pytest.raises(FactNotFound, match="remembered under"):
            await notebook.forget(gone)
        with pytest.raises(FactNotFound, match="remembered under"):
            await notebook.correct(gone, "Likes Wels.")


async def test_deleting_history_says_what_stays(notebook: Notebook) -> None:
    first = await notebook.add("Likes Graz.", agent="travel", user="ann")
    second = await notebook.correct(first.id, "Likes Linz.")
    assert await notebook.forget(first.id) == second.id
    assert await notebook.facts() == [second]


@pytest.mark.parametrize(("text", "words"), [(" \n", "empty text"), ("x" * 501, "at most 500 characters; .* has 501")])
async def test_what_can_not_be_kept_says_why(notebook: Notebook, text: str, words: str) -> None:
    with pytest.raises(PerdureError, match=words):
        await notebook.add(text, agent="travel")


async def test_nothing_is_known_of_a_fact_that_was_never_there(notebook: Notebook) -> None:
    assert await notebook.facts(all=True) == []
    with pytest.raises(FactNotFound, match="Nothing is remembered under 'f1'"):
        await notebook.fact("f1")
