"""The README's Python, run as it stands."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path
from uuid import uuid4

import perdure
from perdure.client import Client
from perdure.settings import Settings
from perdure.worker import serving

ROOT = Path(__file__).parents[2]


async def test_the_service_of_the_readme_starts_approves_and_gets_its_answer(
    engine: Settings, client: Client, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("CLERK_MODEL", f"scripted:{ROOT / 'examples/quickstart.json'}")
    monkeypatch.setenv("PERDURE_HOME", str(engine.home))
    monkeypatch.chdir(tmp_path)
    clerk = importlib.reload(importlib.import_module("perdure.examples.quickstart")).clerk
    queue = f"readme-{uuid4().hex[:8]}"
    monkeypatch.setenv("PERDURE_TASK_QUEUE", queue)
    shown = (ROOT / "README.md").read_text().split("```python\n")[2].partition("```")[0]
    service = shown[shown.index("client = ") :]
    names: dict[str, object] = {"perdure": perdure, "clerk": clerk}
    exec(f"async def service():\n{textwrap.indent(service, '    ')}", names)
    async with serving(client.temporal, [clerk], queue, engine):
        await names["service"]()  # type: ignore[operator]
    assert capsys.readouterr().out == "Ada knows.\n"
    assert (tmp_path / "outbox.txt").read_text().count("To: ada@example.com") == 1
