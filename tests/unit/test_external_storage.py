"""What goes into the store beside a history, and what stays: the driver, without an engine."""

import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from temporalio.converter import (
    ActivitySerializationContext,
    ExternalStorage,
    SerializationContext,
    StorageDriverActivityInfo,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
    WorkflowSerializationContext,
)
from temporalio.testing import ActivityEnvironment

from perdure.engine.converter import data_converter
from perdure.engine.external_storage import MOST, THRESHOLD, Driver
from perdure.errors import PerdureError

RUN = StorageDriverStoreContext(target=StorageDriverWorkflowInfo(namespace="n", id="run"))
NOBODY = StorageDriverStoreContext()
ALONE = StorageDriverStoreContext(target=StorageDriverActivityInfo(namespace="n", id="1"))
WORKFLOW = WorkflowSerializationContext(namespace="n", workflow_id="run")
ACTIVITY = ActivitySerializationContext(
    namespace="n",
    workflow_id="run",
    workflow_type="W",
    activity_type="A",
    activity_id="1",
    activity_task_queue="q",
    is_local=False,
)


class Shelf:
    """A store in memory, and how often it was opened."""

    def __init__(self):
        self.kept: dict[str, bytes] = {}
        self.owners: list[str] = []
        self.opened = 0

    @asynccontextmanager
    async def open(self):
        self.opened += 1
        yield self

    async def put(self, data, owner):
        ref = f"blob {len(self.kept)}"
        self.kept[ref] = data
        self.owners.append(owner)
        return ref

    async def get(self, ref):
        if ref not in self.kept:
            raise LookupError(ref)
        return self.kept[ref]


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def converter(shelf):
    driver = Driver(shelf.open, lambda namespace, run_id: f"{namespace}/{run_id}")
    storage = ExternalStorage(drivers=[driver], driver_selector=driver.select, payload_size_threshold=THRESHOLD)
    return replace(data_converter, external_storage=storage)


async def encoded(converter, value, target=RUN, context: SerializationContext = WORKFLOW):
    """Return the payload that the SDK makes, in the order in which it does so."""
    plain = converter.with_context(context).payload_converter.to_payload(value)
    [payload] = await converter._with_store_context(target)._external_store_payload_sequence([plain])
    return payload


async def test_a_large_payload_of_a_run_is_kept_for_it_and_comes_back(converter, shelf):
    value = {"text": "x" * THRESHOLD}
    payload = await encoded(converter, value)
    assert payload.ByteSize() < 500
    assert shelf.owners == ["n/run"]
    assert await converter.decode([payload]) == [value]


@pytest.mark.parametrize(
    ("context", "target", "size"),
    [
        (WORKFLOW, RUN, THRESHOLD - 100),
        (WORKFLOW, NOBODY, THRESHOLD),
        (ACTIVITY, ALONE, THRESHOLD),
        (ACTIVITY, RUN, MOST - 100),
    ],
    ids=["small", "of nobody", "of an activity of its own", "of an activity of a run"],
)
async def test_what_stays_in_the_history_opens_no_store(converter, shelf, context, target, size):
    value = "x" * size
    payload = await encoded(converter, value, target, context)
    assert payload.ByteSize() > size
    assert await converter.decode([payload]) == [value]
    assert shelf.opened == 0


async def test_what_an_activity_returns_stays_in_the_history(converter, shelf):
    payload = await ActivityEnvironment().run(encoded, converter, "x" * (MOST - 100))
    assert payload.ByteSize() > THRESHOLD
    assert shelf.opened == 0


async def test_what_the_engine_would_refuse_of_an_activity_is_kept(converter, shelf):
    taken = await encoded(converter, "x" * MOST, context=ACTIVITY)
    returned = await ActivityEnvironment().run(encoded, converter, "y" * MOST)
    assert (taken.ByteSize() < 500, returned.ByteSize() < 500, len(shelf.kept)) == (True, True, 2)


async def test_a_small_payload_of_an_activity_is_written_as_ever():
    [plain] = await data_converter.encode([{"a": 1}])
    [marked] = await data_converter.with_context(ACTIVITY).encode([{"a": 1}])
    assert plain == marked


async def test_what_the_store_does_not_have_is_one_sentence(converter, shelf):
    payload = await encoded(converter, "x" * THRESHOLD)
    shelf.kept.clear()
    with pytest.raises(PerdureError, match="not in the store that is set here: blob 0"):
        await converter.decode([payload])


def test_who_only_makes_a_client_loads_no_database():
    code = "import sys, perdure.client, perdure.worker; assert 'sqlalchemy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
