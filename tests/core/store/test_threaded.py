import inspect

import pytest

from agl.errors import StoreUnavailableError
from agl.server import LightningStoreServer
from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore
from agl.store.memory import InMemoryLightningStore
from agl.store.threaded import LightningStoreThreaded


class LoopBoundStore(InMemoryLightningStore):
    @property
    def capabilities(self):
        return {"async_safe": True}


@pytest.mark.parametrize("facade", [LightningStoreThreaded, LightningStoreServer])
def test_every_method_is_forwarded(facade):
    own = {name for name, value in vars(LightningStore).items() if inspect.isfunction(value)}
    assert own <= {*vars(ForwardingStore), *vars(facade)}


def test_it_is_thread_safe_whatever_it_wraps():
    assert LightningStoreThreaded(LoopBoundStore()).capabilities["thread_safe"]


async def test_closed_facade_says_so():
    store = LightningStoreThreaded(LoopBoundStore())
    await store.enqueue_rollout("task")
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.enqueue_rollout("task")


async def test_errors_come_through():
    store = LightningStoreThreaded(LoopBoundStore())
    with pytest.raises(ValueError, match="ro-none"):
        await store.start_attempt("ro-none")
    await store.close()
