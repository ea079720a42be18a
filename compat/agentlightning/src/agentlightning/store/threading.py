"""A facade that makes a store of 0.3 safe to use from every thread."""

import asyncio
import functools
import inspect
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

from agl.errors import StoreUnavailableError
from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.forwarding import ForwardingStore
from agl.store.queries import check_seconds

_LOOK_AGAIN_SECONDS = 0.05
_CLAIM = frozenset({"limit", "worker_id", "key"})


class LightningStoreThreaded(ForwardingStore):
    """Forwards every call to ``store``.

    A store that says it is thread-safe, as those of agl are, is called directly. Any other gets one
    call at a time, from its beginning to its end, all in one thread of the facade and on one event
    loop. Only waits, for work or for ends, hold up nobody: the store is then asked at intervals.

    Args:
        store: The store.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._guarded = not store.capabilities.get("thread_safe", False)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    @property
    def target(self) -> LightningStore:
        return self._store

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self._store.capabilities, "thread_safe": True, "async_safe": True}

    async def close(self) -> None:
        """Close the store, and end the facade's thread if it has one."""
        if self._closed:
            return
        await super().close()
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._stop(loop), loop)

    async def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        async with self._one_at_a_time:  # who asked before gets an answer, which is under way
            loop.call_soon(loop.stop)

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Call a method of the store as it may be called."""
        if not self._guarded:
            return await super().call(operation, arguments)
        for name in ("wait_seconds", "timeout"):
            check_seconds(name, arguments.get(name))
        if operation == "wait_for_rollouts":
            return await self._wait(**arguments)
        end = time.monotonic() + arguments.pop("wait_seconds", 0.0)
        answer = await self._alone(operation, arguments)
        if operation == "turn" and arguments.get("limit", 1) > 0 and not answer.claimed:
            claim = {key: arguments[key] for key in _CLAIM & arguments.keys()}
            claimed = await self._claim_until(end, "dequeue_many_rollouts", claim)
            return answer._replace(claimed=claimed or [])
        if operation.startswith("dequeue") and arguments.get("limit", 1) > 0 and not answer:
            return await self._claim_until(end, operation, arguments) or answer
        return answer

    async def _claim_until(self, end: float, claim: str, arguments: dict[str, Any]) -> Any:
        claimed = None
        while not claimed and not self._closed and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(_LOOK_AGAIN_SECONDS, left))
            claimed = await self._alone(claim, arguments)
        return claimed

    async def _wait(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> Any:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            look = {"rollout_ids": rollout_ids, "timeout": 0}
            ended = await self._alone("wait_for_rollouts", look)
            pending = set(rollout_ids) - {rollout.rollout_id for rollout in ended}
            left = end - time.monotonic()
            if not pending or left <= 0 or self._closed:
                return ended
            if not await self._alone("query_rollouts", {"rollout_id_in": sorted(pending)}):
                return ended  # nobody knows the others
            await asyncio.sleep(min(_LOOK_AGAIN_SECONDS, left))

    async def _alone(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Call a method of the store in its thread, when no other call is under way."""
        home = self._home()
        named = dict(arguments)
        placed = [named.pop(name) for name in _required_of(operation)]

        async def call() -> Any:
            async with self._one_at_a_time:
                return await getattr(self._store, operation)(*placed, **named)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), home))

    def _home(self) -> asyncio.AbstractEventLoop:
        """The loop on which a store that is not thread-safe lives."""
        with self._lock:
            if self._closed:
                raise StoreUnavailableError(
                    f"{type(self._store).__name__}: this LightningStoreThreaded is closed"
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run, args=(self._loop,), name="agl-store", daemon=True
                ).start()
            return self._loop


@functools.cache
def _required_of(operation: str) -> list[str]:
    """The arguments that 0.3 gave by position: a store's author may have other names for them."""
    _, *parameters = inspect.signature(getattr(LightningStore, operation)).parameters.values()
    return [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]


def guarded(store: LightningStore) -> LightningStore:
    """The store; behind a facade, unless it says that it is thread-safe."""
    is_safe = store.capabilities.get("thread_safe", False)
    return store if is_safe else LightningStoreThreaded(store)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
