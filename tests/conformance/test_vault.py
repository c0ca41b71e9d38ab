"""Secrets of runs, which come sealed."""


async def test_secrets_are_kept_until_they_are_dropped(store):
    assert await store.secrets("d1") == {}
    assert await store.deposits("default") == []
    await store.keep_secrets("default", "r1", "d1", {"pin": b"\x00\xff", "id": b"2"})
    await store.keep_secrets("default", "r1", "d1", {"pin": b"other"})
    await store.keep_secrets("default", "r2", "d2", {"pin": b"3"})
    await store.keep_secrets("elsewhere", "r1", "d3", {"pin": b"4"})
    assert await store.secrets("d1") == {"pin": b"\x00\xff", "id": b"2"}
    found = await store.deposits("default")
    assert [(one.id, one.run_id, one.names) for one in found] == [("d1", "r1", ["id", "pin"]), ("d2", "r2", ["pin"])]
    assert found[0].kept_at.tzinfo is not None
    assert await store.drop_secrets("d1")
    assert not await store.drop_secrets("d1")
    assert await store.secrets("d1") == {}
    assert [one.id for one in await store.deposits("default")] == ["d2"]
