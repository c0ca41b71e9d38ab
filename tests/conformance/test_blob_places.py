"""Where the bytes of blobs are: files, a table, a bucket."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perdure.activities.stores import Store, open_store, run_owner, store_of
from perdure.errors import ConnectionFailed
from perdure.settings import Settings
from tests.conformance.bucket import KEY, BucketServer

RUN = run_owner("default", "r1")
HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e"


def later() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with BucketServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server


@pytest.fixture
async def remote(url: str, bucket: BucketServer) -> AsyncGenerator[Store]:
    """A store whose blobs are in the bucket."""
    store = open_store(url, "s3://bucket/some/where")
    yield store
    await store.aclose()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncGenerator[Store]:
    """A store of files."""
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield store
    await store.aclose()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# -- whatever the place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "s3://bucket/some/where"])
async def test_forty_megabytes_come_back(url, bucket, place):
    data = os.urandom(40_000_000)
    store = open_store(url, place)
    ref = await store.put(data, RUN)
    assert await store.get(ref) == data
    assert await store.put(data, run_owner("default", "r2")) == ref
    await store.drop_runs("default", ["r1", "r2"])
    assert (await store.sweep(later())).size == len(data)
    assert not bucket.objects
    await store.aclose()


@pytest.mark.parametrize("place", ["", "s3://bucket/some/where"])
async def test_what_is_put_while_it_is_swept_survives(url, bucket, place):
    stores = [open_store(url, place) for _ in range(3)]
    putting, owning, sweeping = stores
    for turn in range(12):
        data = os.urandom(200_000)
        ref = await putting.put(data, run_owner("default", "before"))
        await putting.drop_runs("default", ["before"])  # nobody owns it now
        again = run_owner("default", f"r{turn}")
        sweep = asyncio.create_task(sweeping.sweep(later()))
        if turn % 2:
            assert await putting.put(data, again) == ref
            kept = True
        else:
            try:
                await owning.own([ref], again)
                kept = True
            except LookupError:
                kept = False  # the sweep came first, and whoever wanted it knows
        await sweep
        if kept:
            assert await putting.get(ref) == data
    assert (await sweeping.sweep(later())).size == 0
    await asyncio.gather(*(store.aclose() for store in stores))


# -- files -----------------------------------------------------------------------------------------------------------


async def test_a_sqlite_store_keeps_bytes_as_files_beside_it(local, tmp_path):
    await local.put(b"hello", RUN)
    assert (tmp_path / "blobs" / HELLO[:2] / HELLO[2:]).read_bytes() == b"hello"
    assert files(tmp_path / "blobs") == [f"{HELLO[:2]}/{HELLO[2:]}"]


async def test_two_stores_of_one_folder_keep_their_bytes_apart(tmp_path):
    stores = [open_store(f"sqlite:///{tmp_path / name}.db") for name in ("store", "other")]
    for store in stores:
        await store.put(b"hello", RUN)
    await stores[0].drop_runs("default", ["r1"])
    assert (await stores[0].sweep(later())).size == 5
    assert await stores[1].get(HELLO) == b"hello"
    await asyncio.gather(*(store.aclose() for store in stores))


@pytest.mark.parametrize("damage", [b"hallo", b"", b"hello "])
async def test_a_damaged_file_is_told_and_never_read(local, tmp_path, damage):
    await local.put(b"hello", RUN)
    (tmp_path / "blobs" / HELLO[:2] / HELLO[2:]).write_bytes(damage)
    with pytest.raises(LookupError, match=rf"^Blob {HELLO} of the store is damaged: its bytes are not those that were"):
        await local.get(HELLO)


async def test_a_file_that_was_lost_or_cut_off_is_written_again_when_it_is_put_again(local, tmp_path):
    await local.put(b"hello", RUN)
    path = tmp_path / "blobs" / HELLO[:2] / HELLO[2:]
    path.unlink()
    with pytest.raises(LookupError, match="does not have blob"):
        await local.get(HELLO)
    await local.put(b"hello", RUN)
    path.write_bytes(b"hel")
    await local.put(b"hello", RUN)
    assert await local.get(HELLO) == b"hello"


async def test_what_a_killed_writer_left_is_swept(local, tmp_path):
    code = f"""
import asyncio, os
from perdure.activities.stores import open_store, run_owner

os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
asyncio.run(open_store("sqlite:///{tmp_path / "store.db"}").put(b"hello", run_owner("default", "r1")))
"""
    await local.put(b"other", RUN)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(files(tmp_path / "blobs")) == 2
    with pytest.raises(LookupError):
        await local.get(HELLO)
    with pytest.raises(LookupError):
        await local.own([HELLO], RUN)
    await local.sweep(datetime.now(UTC) - timedelta(minutes=5))  # it might be written still
    assert len(files(tmp_path / "blobs")) == 2
    await local.sweep(later())
    assert len(files(tmp_path / "blobs")) == 1


# -- a bucket --------------------------------------------------------------------------------------------------------


async def test_a_bucket_holds_the_bytes_below_the_prefix(remote, bucket):
    await remote.put(b"hello", RUN)
    await remote.put(b"hello", RUN)
    assert bucket.objects == {f"some/where/{HELLO[:2]}/{HELLO[2:]}": b"hello"}
    assert bucket.puts == 1
    assert await remote.get(HELLO) == b"hello"


async def test_a_damaged_or_lost_object_is_told(remote, bucket):
    await remote.put(b"hello", RUN)
    (key,) = bucket.objects
    bucket.objects[key] = b"hallo"
    with pytest.raises(LookupError, match="damaged"):
        await remote.get(HELLO)
    del bucket.objects[key]
    with pytest.raises(LookupError, match="does not have blob"):
        await remote.get(HELLO)


@pytest.mark.parametrize(
    ("status", "words"), [(403, "the credentials are refused: s3://bucket/some/where"), (503, ".*503.*: s3://bucket")]
)
async def test_a_bucket_that_refuses_is_one_sentence_and_nothing_is_owned(remote, bucket, status, words):
    bucket.refuses = status
    with pytest.raises(ConnectionFailed, match=rf"^The store at [^\n]* can't be used: {words}[^\n]*\.$"):
        await remote.put(b"hello", RUN)
    bucket.refuses = 0
    with pytest.raises(LookupError):
        await remote.own([HELLO], RUN)
    await remote.put(b"hello", RUN)
    assert await remote.get(HELLO) == b"hello"


async def test_a_bucket_that_is_not_there_or_does_not_answer_is_one_sentence(url, bucket, monkeypatch):
    nowhere = open_store(url, "s3://nowhere")
    with pytest.raises(ConnectionFailed, match=r"there is no such bucket: s3://nowhere\.$"):
        await nowhere.put(b"hello", RUN)
    await nowhere.aclose()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    away = open_store(url, "s3://bucket")
    with pytest.raises(ConnectionFailed, match=r"can't be used: [^\n]*: s3://bucket\.$"):
        await away.put(b"hello", RUN)
    await away.aclose()


async def test_what_was_kept_in_an_earlier_place_is_still_read_and_swept_there(url, bucket):
    before = open_store(url)
    await before.put(b"hello", RUN)
    await before.aclose()
    now = open_store(url, "s3://bucket")
    assert await now.get(HELLO) == b"hello"
    await now.own([HELLO], run_owner("default", "r2"))
    await now.put(b"new", RUN)
    assert len(bucket.objects) == 1
    await now.drop_runs("default", ["r1", "r2"])
    assert (await now.sweep(later())).size == 8
    assert not bucket.objects
    with pytest.raises(LookupError):
        await now.get(HELLO)
    await now.aclose()


async def test_the_setting_names_the_bucket(tmp_path, bucket):
    store = store_of(Settings(home=tmp_path, blobs="s3://bucket/here"))
    await store.put(b"hello", RUN)
    assert list(bucket.objects) == [f"here/{HELLO[:2]}/{HELLO[2:]}"]
    await store.aclose()


@pytest.mark.parametrize("name", ["s3://", "s3:///prefix", "http://bucket", "bucket", "files2"])
def test_another_place_says_what_it_has_to_be(tmp_path, name):
    words = f"Blobs can't be in '{name}': PERDURE_BLOBS is s3://BUCKET or s3://BUCKET/PREFIX."
    with pytest.raises(ConnectionFailed, match=f"^{re.escape(words)}$"):
        open_store(f"sqlite:///{tmp_path / 'store.db'}", name)


def test_a_process_that_used_a_bucket_ends_in_peace(tmp_path, bucket):
    bucket.refuses = 503
    code = f"""
import asyncio
from perdure.activities.stores import open_store, run_owner
from perdure.errors import ConnectionFailed
try:
    asyncio.run(open_store("sqlite:///{tmp_path}/store.db", "s3://bucket").put(b"hello", run_owner("default", "r1")))
except ConnectionFailed:
    pass
"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
