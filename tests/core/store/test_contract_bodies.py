"""What the contract makes of its operations, for a store that writes no more than those."""

import pytest

from agl.store.base import LightningStore
from agl.store.engine.store import EngineStore
from agl.store.memory import InMemoryLightningStore
from agl_testing.store_contract import StoreContract

OPERATIONS = {
    "delete_documents",
    "delete_rollouts",
    "enqueue_many_rollouts",
    "get_many_span_sequence_ids",
    "put_documents",
    "query_attempts",
    "query_documents",
    "query_resources",
    "query_rollouts",
    "query_spans",
    "query_workers",
    "start_attempt",
    "start_rollout",
    "turn",
    "update_attempt",
    "update_resources",
    "update_rollout",
    "update_worker",
    "wait_for_rollouts",
}


class OnlyOperations(InMemoryLightningStore):
    """Has no faster way for what follows from the operations."""

    add_many_spans = LightningStore.add_many_spans
    get_rollout_by_id = LightningStore.get_rollout_by_id
    get_latest_attempt = LightningStore.get_latest_attempt
    get_resources_by_id = LightningStore.get_resources_by_id
    get_latest_resources = LightningStore.get_latest_resources


@pytest.fixture
async def store(tmp_path):
    store = OnlyOperations(scan_interval_seconds=0.05)
    yield store
    await store.close()


class TestBodiesOfTheContract(StoreContract):
    pass


def test_operations_are_few_and_the_engine_has_a_body_for_each():
    methods = {name: getattr(LightningStore, name) for name in dir(LightningStore)}
    assert {
        name for name, method in methods.items() if hasattr(method, "is_operation")
    } == OPERATIONS
    for name in OPERATIONS:
        assert getattr(EngineStore, name) is not methods[name]
