"""A store that hands its calls to another one."""

from abc import ABC, abstractmethod
from operator import itemgetter
from typing import Any

from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.operation import operation


class ForwardingStore(LightningStore, ABC):
    """Every operation is that of ``target``; a subclass says which store that is."""

    @property
    @abstractmethod
    def target(self) -> LightningStore:
        """The store that does the work."""

    def otlp_traces_endpoint(self) -> str:
        return self.target.otlp_traces_endpoint()

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Call a method of ``target`` with what was given; every forwarded one passes here."""
        return await getattr(self.target, operation)(**arguments)


for _name in (  # what the contract makes of others, and the target may have of its own
    *("check_health", "close", "statistics", "enqueue_rollout", "dequeue_rollout"),
    *("dequeue_many_rollouts", "add_span", "add_many_spans", "add_otel_span", "add_resources"),
    *("get_next_span_sequence_id", "get_rollout_by_id", "get_latest_attempt", "get_worker_by_id"),
    *("get_resources_by_id", "get_latest_resources"),
):
    setattr(ForwardingStore, _name, operation(getattr(LightningStore, _name)))


class StandInStore(ForwardingStore):
    """Is to its user the store itself, with whatever that has beyond the contract, also pickled."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_store"], name)

    def __reduce__(self) -> Any:
        return itemgetter(0), ((self._store,),)  # the store itself

    @property
    def target(self) -> LightningStore:
        return self._store

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self._store.capabilities
