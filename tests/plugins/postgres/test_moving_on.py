"""A client of several servers before one database goes to the next when one dies."""

import asyncio
import signal
import time

import pytest

import agl
from agl import LightningStoreClient
from agl.errors import ConfigError, StoreUnavailableError
from agl.store.base import AttemptEnd
from agl.types import EnqueueRolloutRequest

from .test_doors import served_process


@pytest.fixture
def servers(url):
    with served_process(url) as one, served_process(url) as two, served_process(url) as three:
        yield [one, two, three]


def client_of(servers, **options):
    return LightningStoreClient(",".join(address for _, address in servers), **options)


async def test_a_wait_goes_on_at_the_next_server_at_once(servers):
    client, other = client_of(servers), LightningStoreClient(servers[2][1])
    await client.statistics()
    waiting = asyncio.create_task(client.dequeue_many_rollouts(worker_id="w", wait_seconds=20))
    await asyncio.sleep(0.3)
    servers[0][0].kill()
    await asyncio.sleep(0.3)
    rollout = await other.enqueue_rollout(1)
    begin = time.monotonic()
    (claimed,) = await waiting
    assert time.monotonic() < begin + 2
    assert claimed.rollout_id == rollout.rollout_id
    assert client.server_address == servers[1][1]
    await client.close()
    await other.close()


async def test_nothing_is_lost_or_done_twice_while_servers_die(servers):
    """Runners and a producer work on while two of three servers are killed."""
    client = client_of(servers)
    ended = []

    async def produce():
        for number in range(30):
            tasks = [EnqueueRolloutRequest(input=[number, n]) for n in range(10)]
            await client.enqueue_many_rollouts(tasks)
            await asyncio.sleep(0.03)

    async def work(worker):
        finish = None
        while len(ended) < 300:
            done = await client.turn(finish=finish, worker_id=worker, wait_seconds=1)
            finish = None
            for one in done.claimed:
                ended.append(one.rollout_id)
                ids = {"rollout_id": one.rollout_id, "attempt_id": one.attempt.attempt_id}
                finish = AttemptEnd(**ids, status="succeeded")
        await client.turn(finish=finish, limit=0)

    async def kill():
        for process, _ in servers[:2]:
            await asyncio.sleep(0.4)
            process.send_signal(signal.SIGKILL)

    async with asyncio.timeout(60):
        await asyncio.gather(produce(), kill(), *(work(f"w{n}") for n in range(16)))
    rollouts = await client.query_rollouts()
    assert len(ended) == len(set(ended)) == len(rollouts) == 300
    assert {one.status for one in rollouts} == {"succeeded"}
    assert client.server_address == servers[2][1]
    await client.close()


async def test_who_finds_none_of_them_names_all():
    client = LightningStoreClient(
        ["http://127.0.0.1:1", "http://127.0.0.1:2/"], retry_delays=[0.01], token=None
    )
    with pytest.raises(StoreUnavailableError, match=r"127.0.0.1:\d, http://127.0.0.1:\d:"):
        await client.statistics()
    await client.close()


def test_servers_of_one_store_have_one_token():
    with pytest.raises(ConfigError, match="one token"):
        LightningStoreClient("http://agl:aaaaaaaaaaaaaaaa@h:1,http://agl:bbbbbbbbbbbbbbbb@h:2")
    with pytest.raises(ConfigError, match="'ftp://h'"):
        LightningStoreClient("http://h:1,ftp://h")


def test_addresses_are_a_store():
    trainer = agl.Trainer(store="http://a:4747,http://b:4747")
    assert isinstance(trainer.store, LightningStoreClient)
    assert trainer.store.server_address == "http://a:4747"
