"""The guide's way to back up a store, as it stands, while it is in use."""

import asyncio
import re
from pathlib import Path

from perdure.activities.stores import open_store, run_owner

GUIDE = Path(__file__).parents[2] / "docs/guides/store.md"


async def test_a_backup_holds_all_that_was_kept_before_it_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backup").mkdir()
    [commands] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    store = open_store("sqlite:///.perdure/store.db")
    refs = [await store.put(b"%d" % number, run_owner("default", "r1")) for number in range(20)]

    async def go_on() -> None:
        for number in range(20, 100):
            await store.put(b"%d" % number, run_owner("default", "r1"))

    going_on = asyncio.create_task(go_on())
    await asyncio.to_thread(exec, commands, {})
    await going_on
    await store.aclose()
    copy = open_store("sqlite:///backup/store.db")
    assert [await copy.get(ref) for ref in refs] == [b"%d" % number for number in range(20)]
    await copy.aclose()
