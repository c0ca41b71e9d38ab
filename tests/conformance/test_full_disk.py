"""A disk without room is one sentence, nothing half-written, and works again when there is room."""

import errno
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from perdure.activities.stores import open_store, run_owner
from perdure.errors import ConnectionFailed
from tests.conformance.conftest import tell, within

RUN = run_owner("default", "r1")
NOISE = os.urandom(700_000)


@contextmanager
def tiny(folder: Path, megabytes: int) -> Generator[None]:
    """Have `folder` be a disk of its own that is soon full; skip where we may not."""
    folder.mkdir(exist_ok=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("disks can't be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def test_a_disk_that_is_full_of_blobs_takes_the_next_when_there_is_room_again(tmp_path):
    with tiny(tmp_path / "disk", 1):
        store = open_store(f"sqlite:///{tmp_path / 'disk' / 'store.db'}")
        assert await store.agents() == []
        with pytest.raises(ConnectionFailed, match=r"can't be used: No space left on device: [^\n]*blobs\.$"):
            await store.put(NOISE * 2, RUN)
        assert [path for path in (tmp_path / "disk" / "blobs").rglob("*") if path.is_file()] == []
        ref = await store.put(NOISE[:1000], RUN)
        assert await store.get(ref) == NOISE[:1000]
        await store.aclose()


async def test_a_disk_that_is_full_of_rows_keeps_what_it_has(tmp_path):
    with tiny(tmp_path / "disk", 1):
        (tmp_path / "disk" / "ballast").write_bytes(NOISE)
        store = open_store(f"sqlite:///{tmp_path / 'disk' / 'store.db'}")
        refs: list[str] = []
        with pytest.raises(ConnectionFailed, match=r"(disk is full|No space left on device: .*)\.$"):  # noqa: PT012
            for number in range(10_000):
                refs.append(await store.put(b"%d" % number, RUN))  # noqa: PERF401
        assert refs
        (tmp_path / "disk" / "ballast").unlink()
        assert await store.get(await store.put(b"more", RUN)) == b"more"
        assert [await store.get(ref) for ref in refs] == [b"%d" % number for number in range(len(refs))]
        await store.aclose()


async def test_a_database_that_may_not_grow_is_one_sentence_and_keeps_what_it_has(tmp_path):
    def limit(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA max_page_count = 60")
        cursor.close()

    event.listen(Engine, "connect", limit)
    try:
        store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
        owners = [run_owner("default", f"{number}" * 1000) for number in range(1000)]
        kept = 0
        with pytest.raises(ConnectionFailed, match=r"can't be used: database or disk is full\.$"):  # noqa: PT012
            for owner in owners:
                await store.put(b"hello", owner)
                kept += 1
        await store.aclose()
    finally:
        event.remove(Engine, "connect", limit)
    rows = "SELECT count(*) FROM perdure_blob_owners"
    assert await within(f"sqlite:///{tmp_path / 'store.db'}", lambda c: c.scalar(text(rows))) == kept > 0


async def test_a_file_that_has_no_room_is_one_sentence_and_not_left_half_written(tmp_path, monkeypatch):
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConnectionFailed, match=r"can't be used: No space left on device: [^\n]*blobs\.$"):
            await store.put(b"hello", RUN)
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []
    assert await store.get(await store.put(b"hello", RUN)) == b"hello"
    await store.aclose()


async def test_a_postgresql_without_room_is_one_sentence_and_keeps_what_it_has(postgres_url, tmp_path):
    where = await within(postgres_url, lambda connection: connection.scalar(text("SHOW data_directory")))
    folder = Path(str(where)).parent / f"disk-{os.getpid()}"
    if not Path(str(where)).exists():
        pytest.skip("that PostgreSQL is on another machine")
    name = f"perdure_tiny_{os.getpid()}"
    with tiny(folder, 24):
        owner = Path(str(where)).stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        await tell(postgres_url, f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        await tell(postgres_url, f"CREATE DATABASE {name} TABLESPACE {name}")
        store = open_store(f"{postgres_url.rpartition('/')[0]}/{name}")
        try:
            ref = await store.put(b"before", RUN)
            with pytest.raises(ConnectionFailed, match=r"can't be used: could not extend file [^\n]* No space left"):
                await store.put(os.urandom(30_000_000), run_owner("default", "r2"))
            assert await store.get(ref) == b"before"
            rows = "SELECT count(*) FROM perdure_blobs"
            here = f"{postgres_url.rpartition('/')[0]}/{name}"
            assert await within(here, lambda connection: connection.scalar(text(rows))) == 1
            await store.put(b"after", RUN)
        finally:
            await store.aclose()
            await tell(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")
            await tell(postgres_url, f"DROP TABLESPACE {name}")
    folder.rmdir()
