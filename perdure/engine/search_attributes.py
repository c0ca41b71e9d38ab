"""The search attributes by which runs are listed. Few: a namespace has room for some of each type only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode, ServiceClient

from perdure.errors import ConnectionFailed

STATUS = SearchAttributeKey.for_keyword("PerdureStatus")
"""A run's status, open ones included."""
AGENT = SearchAttributeKey.for_keyword("PerdureAgent")
"""The agent's name."""
KEYS = (STATUS, AGENT)

SESSION = SearchAttributeKey.for_keyword("PerdureSession")
"""The session whose turn it is; none of a run of its own. As diagnostics show it: see `told`."""
TENANT = SearchAttributeKey.for_keyword("PerdureTenant")
"""On whose behalf; none where that was not said. As diagnostics show it."""
WAITING_FOR = SearchAttributeKey.for_keyword_list("PerdureWaitingFor")
"""What of people an open run waits for: see `asking.kinds`; none where that is nothing."""
TOKENS = SearchAttributeKey.for_int("PerdureTokens")
"""Of a run that has ended: all tokens sent and received."""
COST = SearchAttributeKey.for_float("PerdureCostUSD")
"""Of a run that has ended: what it cost in USD; none where that is not known."""
MORE: tuple[SearchAttributeKey[Any], ...] = (SESSION, TENANT, WAITING_FOR, TOKENS, COST)
"""Those that a run can do without: where one of them is missing, it has none of them."""

PATIENCE = 15
"""Seconds that a server gets to list what was registered."""

_LONGEST = 255
"""Characters of a value that every visibility store takes."""

_there: WeakKeyDictionary[ServiceClient, set[str]] = WeakKeyDictionary()


def type_of(key: SearchAttributeKey[Any]) -> str:
    """Return the type of an attribute as the `temporal` command spells it: `KeywordList`."""
    name = IndexedValueType.Name(_number(key))
    return "".join(word.capitalize() for word in name.removeprefix("INDEXED_VALUE_TYPE_").split("_"))


def _number(key: SearchAttributeKey[Any]) -> IndexedValueType.ValueType:
    return IndexedValueType.ValueType(int(key.indexed_value_type))


def told(value: str) -> str:
    """Return what a user has named as it may be indexed: redacted, as all diagnostics are, and short enough."""
    from perdure.telemetry import redaction

    return redaction.current().text(value)[:_LONGEST]


def at_start(agent: str, *, more: bool, session: str = "", tenant: str = "") -> TypedSearchAttributes:
    """Return what a run is found by from its start on, which costs its history no event.

    Args:
        more: Whether the namespace has all of `MORE`.
        session: As `told`; "" for none.
        tenant: Likewise.
    """
    pairs: list[SearchAttributePair[Any]] = [SearchAttributePair(AGENT, agent)]
    if more:
        given = [(SESSION, session), (TENANT, tenant)]
        pairs += [SearchAttributePair(STATUS, "running"), *(SearchAttributePair(key, of) for key, of in given if of)]
    return TypedSearchAttributes(pairs)


async def ensure(client: Client) -> str:
    """Register those that the client's namespace lacks, and wait till the server lists them.

    Returns:
        Why runs have none of `MORE`, as a sentence; "" where they have.

    Raises:
        ConnectionFailed: If one of `KEYS` is missing and can't be registered, or has another type; the text has the
            command for someone who may.
    """
    await _ensure(client, KEYS)
    try:
        await _ensure(client, MORE)
    except ConnectionFailed as error:
        return f"Runs can't be found by session, tenant, what they wait for, tokens or cost. {error}"
    return ""


async def has_more(client: Client) -> bool:
    """Return whether the client's namespace has all of `MORE`; once it has, it is not asked again."""
    known = _there.setdefault(client.service_client, set())
    if client.namespace not in known:
        try:
            missing = await _missing(client, MORE)
        except ConnectionFailed:
            return False
        if not missing:
            known.add(client.namespace)
    return client.namespace in known


async def _ensure(client: Client, keys: Sequence[SearchAttributeKey[Any]]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while missing := await _missing(client, keys):
        if asyncio.get_running_loop().time() > deadline:
            raise ConnectionFailed(_advice(client, missing, f"not listed {PATIENCE} s after they were registered"))
        await _register(client, missing)
        await asyncio.sleep(0.05)


async def _register(client: Client, keys: Sequence[SearchAttributeKey[Any]]) -> None:
    types = {key.name: _number(key) for key in keys}
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=types)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # another worker was quicker
            raise ConnectionFailed(_advice(client, keys, error.message)) from error


async def _missing(client: Client, keys: Sequence[SearchAttributeKey[Any]]) -> list[SearchAttributeKey[Any]]:
    """Return those that are not registered."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        types = (await client.operator_service.list_search_attributes(request)).custom_attributes
    except RPCError as error:
        # Whoever may not list them may still search by them, which tells as well.
        if error.status is not RPCStatusCode.UNAVAILABLE and await _searchable(client, keys):
            return []
        raise ConnectionFailed(_advice(client, keys, error.message)) from error
    for key in keys:
        if types.get(key.name, key.indexed_value_type) != key.indexed_value_type:
            what = f"Search attribute {key.name} of namespace {client.namespace!r}"
            raise ConnectionFailed(f"{what} has to be a {type_of(key)}.")
    return [key for key in keys if key.name not in types]


async def _searchable(client: Client, keys: Sequence[SearchAttributeKey[Any]]) -> bool:
    try:
        await client.count_workflows(" AND ".join(f"{key.name} IS NULL" for key in keys))
    except RPCError:
        return False
    return True


def _advice(client: Client, missing: Sequence[SearchAttributeKey[Any]], reason: str) -> str:
    flags = " ".join(f"--name {key.name} --type {type_of(key)}" for key in missing)
    command = f"temporal operator search-attribute create --namespace {client.namespace} {flags}"
    names = " and ".join(key.name for key in missing)
    return f"Search attributes {names} are missing ({reason.rstrip('.')}); create them with `{command}`."
