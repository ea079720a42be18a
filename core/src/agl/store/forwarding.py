"""A store that hands its calls to another one."""

import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, cast

from agl.store.base import LightningStore, LightningStoreCapabilities

F = TypeVar("F", bound=Callable[..., Any])


def _forwarded(method: F) -> F:
    @functools.wraps(method)
    async def forward(self: "ForwardingStore", *args: Any, **kwargs: Any) -> Any:
        return await self.call(method.__name__, args, kwargs)

    return cast(F, forward)


class ForwardingStore(LightningStore):
    """Every operation is that of ``target``; a subclass says which store that is."""

    @property
    @abstractmethod
    def target(self) -> LightningStore:
        """The store that does the work."""

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of ``target``; every forwarded one passes here."""
        return await getattr(self.target, name)(*args, **kwargs)

    async def close(self) -> None:
        await self.call("close", (), {})

    check_health = _forwarded(LightningStore.check_health)
    statistics = _forwarded(LightningStore.statistics)
    enqueue_rollout = _forwarded(LightningStore.enqueue_rollout)
    enqueue_many_rollouts = _forwarded(LightningStore.enqueue_many_rollouts)
    dequeue_rollout = _forwarded(LightningStore.dequeue_rollout)
    dequeue_many_rollouts = _forwarded(LightningStore.dequeue_many_rollouts)
    start_rollout = _forwarded(LightningStore.start_rollout)
    start_attempt = _forwarded(LightningStore.start_attempt)
    add_span = _forwarded(LightningStore.add_span)
    add_many_spans = _forwarded(LightningStore.add_many_spans)
    add_otel_span = _forwarded(LightningStore.add_otel_span)
    get_next_span_sequence_id = _forwarded(LightningStore.get_next_span_sequence_id)
    get_many_span_sequence_ids = _forwarded(LightningStore.get_many_span_sequence_ids)
    query_spans = _forwarded(LightningStore.query_spans)
    query_rollouts = _forwarded(LightningStore.query_rollouts)
    get_rollout_by_id = _forwarded(LightningStore.get_rollout_by_id)
    query_attempts = _forwarded(LightningStore.query_attempts)
    get_latest_attempt = _forwarded(LightningStore.get_latest_attempt)
    wait_for_rollouts = _forwarded(LightningStore.wait_for_rollouts)
    update_rollout = _forwarded(LightningStore.update_rollout)
    update_attempt = _forwarded(LightningStore.update_attempt)
    turn = _forwarded(LightningStore.turn)
    add_ledger_parts = _forwarded(LightningStore.add_ledger_parts)
    query_ledger_parts = _forwarded(LightningStore.query_ledger_parts)
    add_resources = _forwarded(LightningStore.add_resources)
    update_resources = _forwarded(LightningStore.update_resources)
    get_resources_by_id = _forwarded(LightningStore.get_resources_by_id)
    get_latest_resources = _forwarded(LightningStore.get_latest_resources)
    query_resources = _forwarded(LightningStore.query_resources)
    query_workers = _forwarded(LightningStore.query_workers)
    get_worker_by_id = _forwarded(LightningStore.get_worker_by_id)
    update_worker = _forwarded(LightningStore.update_worker)


class StandInStore(ForwardingStore):
    """Is to its user the store itself, with whatever that has beyond the contract.

    Args:
        store: The store; it is also what is pickled.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_store"], name)

    def __reduce__(self) -> Any:
        return _itself, (self._store,)

    @property
    def target(self) -> LightningStore:
        return self._store

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._store.capabilities

    def otlp_traces_endpoint(self) -> str:
        return self._store.otlp_traces_endpoint()


def _itself(store: LightningStore) -> LightningStore:
    return store
