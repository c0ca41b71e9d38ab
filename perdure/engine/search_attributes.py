"""The search attributes by which runs are listed."""

from __future__ import annotations

import asyncio

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import ConnectionFailed

STATUS = SearchAttributeKey.for_keyword("PerdureStatus")
"""A run's status, open ones included."""
AGENT = SearchAttributeKey.for_keyword("PerdureAgent")
"""The agent's name."""
KEYS = (STATUS, AGENT)

KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
PATIENCE = 15
"""Seconds that a server gets to list what was registered."""


async def ensure(client: Client) -> None:
    """Register those that the client's namespace lacks, and wait till the server lists them.

    Raises:
        ConnectionFailed: If one is missing and can't be registered, or has another type; the text has the
            command for someone who may.
    """
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while missing := await _missing(client):
        if asyncio.get_running_loop().time() > deadline:
            raise ConnectionFailed(_advice(client, missing, f"not listed {PATIENCE} s after they were registered"))
        await _register(client, missing)
        await asyncio.sleep(0.05)


async def _register(client: Client, names: list[str]) -> None:
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=dict.fromkeys(names, KEYWORD))
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # another worker was quicker
            raise ConnectionFailed(_advice(client, names, error.message)) from error


async def _missing(client: Client) -> list[str]:
    """Return the names that are not registered."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    names = [key.name for key in KEYS]
    try:
        types = (await client.operator_service.list_search_attributes(request)).custom_attributes
    except RPCError as error:
        # Whoever may not list them may still search by them, which tells as well.
        if await _searchable(client):
            return []
        raise ConnectionFailed(_advice(client, names, error.message)) from error
    for name in names:
        if types.get(name, KEYWORD) != KEYWORD:
            raise ConnectionFailed(f"Search attribute {name} of namespace {client.namespace!r} has to be a Keyword.")
    return [name for name in names if name not in types]


async def _searchable(client: Client) -> bool:
    try:
        await client.count_workflows(" AND ".join(f"{key.name} = 'x'" for key in KEYS))
    except RPCError:
        return False
    return True


def _advice(client: Client, missing: list[str], reason: str) -> str:
    flags = " ".join(f"--name {name} --type Keyword" for name in missing)
    command = f"temporal operator search-attribute create --namespace {client.namespace} {flags}"
    names = " and ".join(missing)
    return f"Search attributes {names} are missing ({reason.rstrip('.')}); create them with `{command}`."
