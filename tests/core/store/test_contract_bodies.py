"""What the contract makes of its operations, for a store that writes no more than those."""

from agl.store.base import LightningStore
from agl.store.engine.store import OPERATIONS as OF_THE_ENGINE, EngineStore
from agl.store.memory import InMemoryLightningStore
from agl_testing.store_contract import StoreContract

OPERATIONS = {
    *("enqueue_many_rollouts", "start_rollout", "start_attempt", "turn", "wait_for_rollouts"),
    *("update_rollout", "update_attempt", "update_resources", "update_worker"),
    *("query_rollouts", "query_attempts", "query_spans", "query_resources", "query_workers"),
    *("put_documents", "query_documents", "delete_documents", "delete_rollouts"),
    "get_many_span_sequence_ids",
}


class OnlyOperations(InMemoryLightningStore):
    """Has no faster way for what follows from the operations."""

    add_many_spans = LightningStore.add_many_spans
    get_rollout_by_id = LightningStore.get_rollout_by_id
    get_latest_attempt = LightningStore.get_latest_attempt
    get_resources_by_id = LightningStore.get_resources_by_id
    get_latest_resources = LightningStore.get_latest_resources


class TestBodiesOfTheContract(StoreContract):
    component = OnlyOperations


def test_operations_are_few_and_the_engine_has_a_body_for_each():
    methods = {name: getattr(LightningStore, name) for name in dir(LightningStore)}
    marked = {name for name, method in methods.items() if hasattr(method, "is_operation")}
    assert marked == OPERATIONS
    called = {name for name in OPERATIONS if getattr(EngineStore, name) is methods[name]}
    assert called == OF_THE_ENGINE.keys() - {"add_many_spans"}
