"""By which keys a namespace is encrypted."""

from datetime import UTC, datetime, timedelta

from perdure.keychecks import KeyCheck

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


async def test_checks_are_kept_once_the_oldest_first_and_by_namespace(store):
    assert await store.key_checks("default") == []
    new = KeyCheck(id="new", since=NOON + timedelta(hours=1), sealed=b"\x00n")
    old = KeyCheck(id="old", since=NOON, sealed=b"\xffo")
    await store.keep_key_check("default", new)
    await store.keep_key_check("default", old)
    await store.keep_key_check("default", old.model_copy(update={"sealed": b"another"}))
    await store.keep_key_check("elsewhere", new)
    assert await store.key_checks("default") == [old, new]
