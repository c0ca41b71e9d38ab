"""Servers by names of their own, each with its address and key, in one agent."""

import json

import pytest

from perdure.activities.providers import address_of, declare, open_model, unregister
from perdure.errors import ModelError
from perdure.messages import AssistantMessage, UserMessage
from perdure.models import ModelRequest
from perdure.policies import ModelSettings
from perdure.settings import Provider
from perdure.testing import ModelServer

ELSEWHERE = ModelSettings(base_url="http://127.0.0.1:1/v1", api_key_env="OPENAI_API_KEY")
HELLO = UserMessage(role="user", content="hello")


@pytest.fixture
def named(monkeypatch):
    """Declares servers for one test."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    made: list[str] = []

    def make(**servers):
        declare({name: Provider.model_validate(server) for name, server in servers.items()})
        made.extend(servers)

    yield make
    for name in made:
        unregister(name)


async def ask(name, *messages):
    model = open_model(name, ELSEWHERE)
    try:
        return await model.generate(ModelRequest("", messages or [HELLO], [], ELSEWHERE))
    finally:
        await model.aclose()


async def test_a_server_of_the_settings_is_asked_at_its_own_address_whatever_the_agent_says(named):
    async with ModelServer(["hi"]) as server:
        named(mine={"base_url": server.base_url})
        assert (await ask("mine:m")).text == "hi"
        assert address_of("mine:m", ELSEWHERE) == server.base_url
        assert address_of("openai:m", ELSEWHERE) == ELSEWHERE.base_url


async def test_a_server_is_sent_its_own_key_and_never_another_ones(named, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    async with ModelServer(["hi", "hi"]) as server:
        named(mine={"base_url": server.base_url, "api_key_env": "MY_KEY"}, free={"base_url": server.base_url})
        await ask("mine:m")
        await ask("free:m")
        sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer sk-mine", "Bearer none"]


async def test_reasoning_goes_back_to_the_server_that_it_came_from_only(named):
    def said(provider):
        reasoning = [{"reasoning_content": "hm"}]
        return [HELLO, AssistantMessage(role="assistant", text="hi", reasoning=reasoning, provider=provider), HELLO]

    async with ModelServer(["hi", "hi"]) as server:
        named(mine={"base_url": server.base_url})
        await ask("mine:m", *said("mine"))
        await ask("mine:m", *said("openai"))
        carried = ["reasoning_content" in json.dumps(request.body) for request in server.requests]
    assert carried == [True, False]


def test_a_name_that_no_server_has_is_told_those_known(named):
    named(mine={"base_url": "http://127.0.0.1:1/v1"})
    with pytest.raises(ModelError, match="known providers are mine, openai"):
        open_model("yours:m", ELSEWHERE)
