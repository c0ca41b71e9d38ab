import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesResponse
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from perdure.engine.search_attributes import AGENT, KEYS, MORE, STATUS, ensure, has_more
from perdure.engine.server import find_binary
from perdure.errors import ConnectionFailed

COMMAND = (
    "`temporal operator search-attribute create --namespace trips "
    "--name PerdureStatus --type Keyword --name PerdureAgent --type Keyword`"
)


@pytest.fixture
async def client():
    """A server that knows nothing of Perdure."""
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=find_binary()) as environment:
        yield environment.client


def guarded_client(*, may_list, may_search):
    """A client of a server that refuses."""

    async def refuse(*_):
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")

    async def nothing(*_):
        return ListSearchAttributesResponse()

    operator = SimpleNamespace(list_search_attributes=nothing if may_list else refuse, add_search_attributes=refuse)
    count = nothing if may_search else refuse
    fake: Any = SimpleNamespace(namespace="trips", operator_service=operator, count_workflows=count)
    return fake


async def test_those_missing_are_registered_and_can_be_searched_at_once(client):
    await ensure(client)
    await client.count_workflows(f"{STATUS.name} = 'running' AND {AGENT.name} = 'travel'")


async def test_those_that_a_run_can_do_without_are_registered_as_well(client):
    assert not await has_more(client)
    assert await ensure(client) == ""
    assert await has_more(client)


async def test_a_namespace_without_room_for_more_is_told_of_once_and_can_be_used(client, monkeypatch):
    add = client.operator_service.add_search_attributes

    async def two_at_most(request):
        if set(request.search_attributes) - {key.name for key in KEYS}:
            raise RPCError("cannot have more than 2 custom search attributes", RPCStatusCode.INVALID_ARGUMENT, b"")
        return await add(request)

    monkeypatch.setattr(client.operator_service, "add_search_attributes", two_at_most)
    lacking = await ensure(client)
    assert lacking.startswith("Runs can't be found by session, tenant, what they wait for, tokens or cost. Search")
    assert "--name PerdureWaitingFor --type KeywordList --name PerdureTokens --type Int" in lacking
    assert not await has_more(client)


async def test_workers_that_start_together_all_succeed(client):
    await asyncio.gather(*(ensure(client) for _ in range(5)))


async def test_one_that_exists_already_is_left_alone(client):
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={STATUS.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD}
    )
    await client.operator_service.add_search_attributes(request)
    await ensure(client)
    await client.count_workflows(" AND ".join(f"{key.name} IS NULL" for key in (*KEYS, *MORE)))


async def test_one_of_another_type_is_one_sentence(client):
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes={STATUS.name: IndexedValueType.INDEXED_VALUE_TYPE_INT}
    )
    await client.operator_service.add_search_attributes(request)
    with pytest.raises(ConnectionFailed, match=r"^Search attribute PerdureStatus of namespace 'default' has to be a"):
        await ensure(client)


async def test_without_permission_the_text_has_the_command_for_someone_who_has():
    with pytest.raises(ConnectionFailed) as caught:
        await ensure(guarded_client(may_list=True, may_search=False))
    assert COMMAND in str(caught.value)


async def test_whoever_may_not_even_list_them_gets_the_same_command():
    with pytest.raises(ConnectionFailed) as caught:
        await ensure(guarded_client(may_list=False, may_search=False))
    assert COMMAND in str(caught.value)


async def test_whoever_may_not_list_them_but_can_search_by_them_goes_on():
    await ensure(guarded_client(may_list=False, may_search=True))
