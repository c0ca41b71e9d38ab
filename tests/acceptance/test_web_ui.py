"""Encrypted runs in the Web UI, looked at with a real browser."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests import browser
from tests.acceptance.conftest import Cli, write_agents

TOKEN = "a-token-of-a-test"


@pytest.mark.long
@pytest.mark.skipif(not browser.PATH, reason="there is no browser")
def test_web_ui_shows_what_is_encrypted_to_those_with_the_token_alone(tmp_path: Path) -> None:
    write_agents(tmp_path)
    cli = Cli(tmp_path, tmp_path / "home")
    cli.env |= {"PERDURE_ENCRYPTION_KEY": base64.b64encode(b"k" * 32).decode(), "PERDURE_CODEC_TOKEN": TOKEN}
    with cli.process("dev", "agents.py", "--json") as dev:
        assert dev.stdout
        page = f"{json.loads(dev.stdout.readline())['ui_url']}/namespaces/default/workflows/seen"
        cli("run", "agents.py:talker", "a private lawn", "--id", "seen")
        serving = cli.process("codec-server", "--port", "0", "--json")
        with serving as codec, browser.opened(tmp_path / "profile") as seen:
            assert codec.stdout
            endpoint = json.loads(codec.stdout.readline())["endpoint"]
            seen.open(page)
            assert "a private lawn" not in seen.until("COMPLETED")
            use(seen, endpoint.replace(TOKEN, "another-token-of-a-test"))
            seen.open(page)
            assert "a private lawn" not in seen.until("COMPLETED")
            use(seen, endpoint)
            seen.open(page)
            seen.until("a private lawn")
            seen.until("ada@example.com")  # what it came to
        dev.terminate()
        dev.wait()


def use(page: browser.Page, endpoint: str) -> None:
    """Have the Web UI ask there, as its dialog does."""
    for name, value in (("endpoint", endpoint), ("overrideRemoteCodecConfiguration", True)):
        page.run(f"localStorage.setItem('{name}', '{json.dumps(value)}')")
