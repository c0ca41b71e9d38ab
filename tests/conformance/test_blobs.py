"""Bytes by their hash, kept as long as they have an owner."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.activities.stores import run_owner, session_owner

RUN = run_owner("default", "r1")
LATER = timedelta(hours=1)


def later():
    return datetime.now(UTC) + LATER


async def test_what_is_put_comes_back_by_its_hash(store):
    ref = await store.put(b"hello", RUN)
    assert ref == "2cf24dba5fb0a30e26e83b2ac5b9e29e"
    assert await store.get(ref) == b"hello"
    assert await store.get(await store.put(b"", RUN)) == b""


async def test_putting_again_is_the_same_and_gives_it_a_further_owner(store):
    refs = {await store.put(b"hello", owner) for owner in (RUN, RUN, session_owner("default", "s"))}
    assert len(refs) == 1
    await store.drop_runs("default", ["r1"])
    assert (await store.sweep(later())).size == 0
    await store.drop_session("default", "s")
    assert (await store.sweep(later())).size == 5
    with pytest.raises(LookupError, match="does not have blob"):
        await store.get(refs.pop())


async def test_what_was_never_put_is_not_there_and_cant_be_owned(store):
    ref = await store.put(b"here", RUN)
    with pytest.raises(LookupError, match="does not have blob 0000"):
        await store.get("0" * 32)
    with pytest.raises(LookupError, match="does not have blob 0000"):
        await store.own([ref, "0" * 32], session_owner("default", "s"))
    await store.drop_runs("default", ["r1"])
    assert (await store.sweep(later())).size == 4  # nobody owns a part of what was refused


async def test_an_owner_keeps_what_others_put(store):
    refs = [await store.put(data, RUN) for data in (b"a", b"bb")]
    await store.own(refs, session_owner("default", "s"))
    await store.drop_runs("default", ["r1"])
    assert (await store.sweep(later())).size == 0
    assert [await store.get(ref) for ref in refs] == [b"a", b"bb"]


async def test_runs_of_one_name_in_two_namespaces_own_apart(store):
    ref = await store.put(b"hello", run_owner("other", "r1"))
    await store.put(b"hello", RUN)
    await store.drop_runs("default", ["r1"])
    assert (await store.sweep(later())).size == 0
    assert await store.get(ref) == b"hello"


async def test_what_lost_its_owner_lately_stays(store):
    ref = await store.put(b"hello", RUN)
    await store.drop_runs("default", ["r1"])
    assert (await store.sweep(datetime.now(UTC) - LATER)).size == 0
    assert await store.get(ref) == b"hello"
