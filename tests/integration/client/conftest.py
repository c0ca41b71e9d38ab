"""What the tests of the client share."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest

from perdure import Client
from tests.integration.client.office import Office


@pytest.fixture
async def office(client: Client) -> AsyncGenerator[Office]:
    """An office on the engine that all tests share."""
    async with AsyncExitStack() as stack:
        office = Office(client, stack)
        yield office
        await office.stop()
