"""A facade that makes any store safe to use from every thread."""

import asyncio
import threading
from typing import Any

from agl.errors import StoreUnavailableError
from agl.store.base import LightningStore, LightningStoreCapabilities
from agl.store.forwarding import ForwardingStore


class LightningStoreThreaded(ForwardingStore):
    """Forwards every call to ``store``.

    A store that says it is thread-safe, as those of agl are, is called directly. The calls of any
    other one all run in one thread of the facade, on one event loop, so that the store never sees
    two threads; a call that waits there holds up nobody.

    Args:
        store: The store.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._guarded = not store.capabilities.get("thread_safe", False)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def target(self) -> LightningStore:
        return self._store

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {**self._store.capabilities, "thread_safe": True, "async_safe": True}

    def otlp_traces_endpoint(self) -> str:
        return self._store.otlp_traces_endpoint()

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
        method = getattr(self._store, name)
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
                    f"{type(self._store).__name__}: this LightningStoreThreaded is closed"
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
