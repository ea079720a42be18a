"""Many that wait keep nobody from working, and no request writes another line into a log."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from tests.stores import served

import agl

WAITING = 300


@pytest.fixture
async def server() -> AsyncGenerator[agl.LightningStoreServer]:
    async with served(open=True) as (server, _):
        yield server


async def test_claims_that_wait_keep_no_work_from_others(server: agl.LightningStoreServer) -> None:
    claim = b'{"wait_seconds": 60, "worker_id": "idle"}'
    head = b"POST /v1/agl/queues/rollouts/dequeue HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(claim)
    client = agl.LightningStoreClient(server.endpoint, retry_delays=(), request_timeout=5.0)
    with ExitStack() as waiting:
        for _ in range(WAITING):
            address = ("127.0.0.1", urlsplit(server.endpoint).port)
            sock = waiting.enter_context(socket.create_connection(address, timeout=30))
            sock.sendall(head + claim)
        begun = await client.start_rollout("a task")
        await client.update_attempt(begun.rollout_id, "latest", status="succeeded")
        queued = [await client.enqueue_rollout(number) for number in range(2)]
        while await client.query_rollouts(status=["queuing"]):
            pass  # one of those that wait gets it
    # One claim each, and what nobody waits for any more is claimed by nobody.
    claimed = await client.query_rollouts(rollout_ids=[one.rollout_id for one in queued])
    begun = [one for one in claimed if isinstance(one, agl.AttemptedRollout)]
    assert [one.attempt.worker_id for one in begun] == ["idle", "idle"]
    await client.enqueue_rollout("for who is there")
    (mine,) = await client.dequeue_many_rollouts(worker_id="busy", wait_seconds=30)
    assert mine.input == "for who is there"
    await client.close()


async def test_a_path_writes_no_line_into_the_log(server, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="agl.http")
    client = agl.LightningStoreClient(server.endpoint)
    assert await client.get_rollout_by_id("a\nERROR agl: the store is damaged") is None
    told: list[str] = []
    async with asyncio.timeout(60):
        while not told:  # the server writes it after its answer
            told = [one.getMessage() for one in caplog.records if "damaged" in one.getMessage()]
            await asyncio.sleep(0)
    assert all("\n" not in line for line in told)
    await client.close()
