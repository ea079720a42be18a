"""What packed bodies do to a store's server: they cost what they were sent as, or are refused."""

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp
import pytest
from tests.stores import served

import agl
from agl_http import layers

DEQUEUE = "/v1/agl/queues/rollouts/dequeue"
MEBIBYTE = 2**20
EMPTY = gzip.compress(b"{}", mtime=0)


class Noting(agl.InMemoryLightningStore):
    """Counts claims that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Semaphore(0)

    async def dequeue_many_rollouts(self, **options: Any) -> Sequence[agl.AttemptedRollout]:
        if options.get("wait_seconds"):
            self.waiting.release()
        return await super().dequeue_many_rollouts(**options)


@pytest.fixture
def store() -> Noting:
    return Noting()


@pytest.fixture
async def http(store: Noting) -> AsyncGenerator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        served(store, open=True) as (server, _),
        aiohttp.ClientSession(server.endpoint, connector=connector) as session,
    ):
        yield session


def bomb(size: int, **claim: Any) -> bytes:
    """A claim that is followed by so many spaces, in a thousandth of that size."""
    return gzip.compress(json.dumps(claim).encode() + b" " * size)


async def post(http: aiohttp.ClientSession, body: bytes, **headers: str) -> tuple[int, Any]:
    sent = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(DEQUEUE, data=body, headers=sent) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (EMPTY * 2, "more than one member"),
        (EMPTY + gzip.compress(b"", mtime=0) * 1000, "more than one member"),
        (EMPTY + b"\0", "more than one member"),
        (EMPTY[:-1], "ends early"),
        (b"", "ends early"),
        (EMPTY[:-8] + b"\0" * 8, "not gzip"),
        (b"{}", "not gzip"),
        (zlib.compress(b"{}"), "not gzip"),
    ],
    ids=["two", "many", "garbage", "truncated", "nothing", "wrong sum", "plain", "zlib"],
)
async def test_a_body_is_one_whole_member_of_gzip(http, body, why) -> None:
    status, said = await post(http, body)
    assert (status, said["error_type"]) == (400, "InvalidBody")
    assert why in said["detail"]
    assert await post(http, gzip.compress(b"{}")) == (200, [])


async def test_repetitions_wait_packed(http, store, monkeypatch) -> None:
    unpacked: list[int] = []
    gunzip = layers.gunzip

    def noted(data: bytes, limit: int) -> bytes:
        unpacked.append(len(data))
        return gunzip(data, limit)

    monkeypatch.setattr(layers, "gunzip", noted)
    body = bomb(MEBIBYTE, wait_seconds=30)
    asked = [asyncio.create_task(post(http, body, Idempotency_Key="k")) for _ in range(20)]
    await asyncio.to_thread(store.waiting.acquire)
    assert (await post(http, body, Idempotency_Key="another", Content_Encoding="br"))[0] == 415
    assert len(unpacked) == 1
    await store.enqueue_rollout("a task")
    answers = await asyncio.gather(*asked)
    assert {status for status, _ in answers} == {200}
    assert len({claimed["rollout_id"] for _, (claimed,) in answers}) == 1
    assert len(unpacked) == 1


async def test_unpacked_bodies_together_have_a_limit(http, store, monkeypatch) -> None:
    monkeypatch.setattr(layers, "MAX_UNPACKED_BYTES", 3 * MEBIBYTE)
    first = asyncio.create_task(post(http, bomb(2 * MEBIBYTE, wait_seconds=30)))
    await asyncio.to_thread(store.waiting.acquire)
    status, said = await post(http, bomb(2 * MEBIBYTE))
    assert (status, said["error_type"]) == (503, "ServiceUnavailable")
    await store.enqueue_rollout("a task")
    assert (await first)[0] == 200
    assert (await post(http, bomb(2 * MEBIBYTE)))[0] == 200
