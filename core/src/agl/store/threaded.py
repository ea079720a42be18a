"""A facade that makes any store safe to use from every thread."""

import asyncio
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from agl.errors import StoreUnavailableError
from agl.store.base import LightningStore, LightningStoreCapabilities

F = TypeVar("F", bound=Callable[..., Any])


def _forwarded(method: F) -> F:
    @wraps(method)
    async def forward(self: "LightningStoreThreaded", *args: Any, **kwargs: Any) -> Any:
        return await self.call(method.__name__, args, kwargs)

    forward.__isabstractmethod__ = False  # type: ignore[attr-defined]
    return cast(F, forward)


class LightningStoreThreaded(LightningStore):
    """Forwards every call to ``store``.

    A store that says it is thread-safe, as those of agl are, is called directly. The calls of any
    other one all run in one thread of the facade, on one event loop, so that the store never sees
    two threads; a call that waits there holds up nobody.

    Args:
        store: The store.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self._guarded = not store.capabilities.get("thread_safe", False)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self.store.capabilities, "thread_safe": True, "async_safe": True}

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

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
    add_resources = _forwarded(LightningStore.add_resources)
    update_resources = _forwarded(LightningStore.update_resources)
    get_resources_by_id = _forwarded(LightningStore.get_resources_by_id)
    get_latest_resources = _forwarded(LightningStore.get_latest_resources)
    query_resources = _forwarded(LightningStore.query_resources)
    query_workers = _forwarded(LightningStore.query_workers)
    get_worker_by_id = _forwarded(LightningStore.get_worker_by_id)
    update_worker = _forwarded(LightningStore.update_worker)

    async def close(self) -> None:
        """Close the store, and end the facade's thread if it has one."""
        if self._closed:
            return
        await self.call("close", (), {})
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the store in the thread where it may be called."""
        method = getattr(self.store, name)
        if not self._guarded:
            return await method(*args, **kwargs)
        home = self._home()
        pending = asyncio.run_coroutine_threadsafe(method(*args, **kwargs), home)
        return await asyncio.wrap_future(pending)

    def _home(self) -> asyncio.AbstractEventLoop:
        """The loop on which a store that is not thread-safe lives."""
        with self._lock:
            if self._closed:
                raise StoreUnavailableError(
                    f"{type(self.store).__name__}: this LightningStoreThreaded is closed"
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run, args=(self._loop,), name="agl-store", daemon=True
                ).start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
