import asyncio
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.stores import served

from agentlightning import LightningStore as StoreOf03
from agentlightning.store.client_server import LightningStoreServer as OpenServer
from agentlightning.store.threading import LightningStoreThreaded
from agl.errors import NotSupportedError, StoreUnavailableError
from agl.store.base import UNSET, LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.types import Worker
from agl_server.server import LightningStoreServer


class LoopBoundStore(InMemoryLightningStore):
    @property
    def capabilities(self):
        return {"async_safe": True}


@pytest.mark.parametrize("facade", [LightningStoreThreaded, LightningStoreServer])
async def test_every_method_is_forwarded(facade):
    class Noted(LightningStore):
        @property
        def capabilities(self):
            return {"thread_safe": True}

        def __getattribute__(self, name):
            async def note(*required, **arguments):
                called.append(name)

            return note if name in methods else super().__getattribute__(name)

    members = inspect.getmembers(LightningStore, inspect.iscoroutinefunction)
    methods = {name for name, _ in members if name != "call"}
    called = []
    front = facade(Noted())
    for name in sorted(methods):
        parameters = list(inspect.signature(getattr(LightningStore, name)).parameters.values())[1:]
        needed = {each.name: "x" for each in parameters if each.default is each.empty}
        await getattr(front, name)(**needed)
    assert called == sorted(methods)
    assert {"turn", "close", "add_otel_span", "query_spans"} <= methods


def test_it_is_thread_safe_whatever_it_wraps():
    assert LightningStoreThreaded(LoopBoundStore()).capabilities["thread_safe"]


async def test_closed_facade_says_so():
    store = LightningStoreThreaded(LoopBoundStore())
    await store.enqueue_rollout("task")
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.enqueue_rollout("task")


async def test_call_that_is_asked_just_before_the_thread_ends_is_answered():
    store = LightningStoreThreaded(Counter())
    loop, both_are_asked = store._home(), threading.Event()
    loop.call_soon_threadsafe(both_are_asked.wait)
    asked = asyncio.create_task(store.get_worker_by_id("w"))
    await asyncio.sleep(0)
    asyncio.run_coroutine_threadsafe(store._stop(loop), loop)
    both_are_asked.set()
    async with asyncio.timeout(10):
        assert await asked is None


class Counter(StoreOf03):
    """A store as one wrote them for 0.3: a few methods, and nothing said about threads."""

    def __init__(self):
        self.workers, self.num_inside, self.most_inside = {}, 0, 0

    async def update_worker(self, worker_id, heartbeat_stats=UNSET):
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        count = self.workers.get(worker_id, 0)
        await asyncio.sleep(0.001)
        self.workers[worker_id] = count + 1
        self.num_inside -= 1
        return Worker(worker_id=worker_id)

    async def dequeue_many_rollouts(self, *, limit=1, worker_id=None):
        return []


@pytest.mark.parametrize("serve", [False, True])
async def test_store_that_says_nothing_gets_one_call_at_a_time(serve):
    inner = Counter()
    store = OpenServer(inner, port=0) if serve else LightningStoreThreaded(inner)

    async def work():
        await asyncio.gather(*(store.update_worker("w") for _ in range(5)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: asyncio.run(work()), range(8)))
    assert (inner.workers, inner.most_inside) == ({"w": 40}, 1)
    await store.close()


async def test_call_that_waits_for_work_holds_up_nobody():
    store = LightningStoreThreaded(Counter())
    begin = time.monotonic()
    waiting = asyncio.create_task(store.dequeue_rollout(wait_seconds=0.5))
    ending = asyncio.create_task(store.turn(limit=1, wait_seconds=0.5))
    await store.update_worker("w")
    assert not waiting.done()
    assert not ending.done()
    assert await waiting is None
    assert (await ending).claimed == []
    assert time.monotonic() - begin >= 0.5
    await store.close()


async def test_method_that_a_store_lacks_says_so_when_it_is_called():
    store = Counter()
    assert not any(store.capabilities.values())
    assert await store.statistics() == {"name": "Counter"}
    with pytest.raises(NotSupportedError, match=r"Counter has no enqueue_many_rollouts\(\)"):
        await store.enqueue_rollout("task")
    async with served(store) as (_, client):
        with pytest.raises(NotImplementedError, match=r"Counter has no query_spans\(\)"):
            await client.query_spans("ro-1")
