"""A request that is sent again is carried out once, by its idempotency key."""

import asyncio
import threading

import pytest

import agl
from agl_runs.store import begin_run

from .store_calls import enqueue, get, post

DEQUEUE = "queues/rollouts/dequeue"
KEY, ABANDONED = {"Idempotency-Key": "k"}, {"AGL-Abandoned": "1"}


async def queue(http, task, expect=201, **headers):
    body = {"rollouts": [{"input": task}]}
    return await post(http, "queues/rollouts/enqueue", body, expect, **headers)


async def test_a_pipelined_request_has_no_writer_of_the_one_before(server, store):
    start = agl.RunStart(run_id="r", algorithm="a", pid=1, host="here")
    for _ in range(2):
        await begin_run(store, start)
    body = b'{"rollouts": [{"input": 1}]}'

    def request(*lines: str) -> bytes:
        head = ["POST /v1/agl/queues/rollouts/enqueue HTTP/1.1", "Host: localhost", *lines]
        about = ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join([*head, *about]).encode() + body

    reader, writer = await asyncio.open_connection(*server.endpoint[7:].split(":"))
    writer.write(request("AGL-Fence: 1 run.starts r") + request("Connection: close"))
    answers = await reader.read()
    writer.close()
    assert b" 409 " in answers.splitlines()[0]
    assert b"HTTP/1.1 201 " in answers


@pytest.mark.parametrize("fence", ["x", "1 kind", "12345678901234567 run.starts r"])
async def test_a_fence_that_cannot_be_read_lets_nothing_through(http, fence):
    answer = await queue(http, 1, 400, **{"AGL-Fence": fence})
    assert "AGL-Fence" in answer["detail"]
    assert (await get(http, "statistics"))["total_rollouts"] == 0


async def test_a_key_with_another_body_is_refused(http):
    first = await queue(http, 1, **KEY)
    assert "'k' was sent with another body" in (await queue(http, 2, 422, **KEY))["detail"]
    assert await queue(http, 1, **KEY) == first
    assert (await get(http, "statistics"))["total_rollouts"] == 1
    assert await queue(http, 1, **{"Idempotency-Key": "k-2"}) != first


async def test_a_key_with_another_body_is_refused_while_the_first_is_in_work(http, store):
    dequeue, is_held = store.dequeue_many_rollouts, threading.Event()

    async def noted(**options):
        is_held.set()
        return await dequeue(**options)

    store.dequeue_many_rollouts = noted
    first = asyncio.create_task(post(http, DEQUEUE, {"wait_seconds": 30}, **KEY))
    assert await asyncio.to_thread(is_held.wait, 30)
    assert "another body" in (await post(http, DEQUEUE, {"limit": 0}, 422, **KEY))["detail"]
    await enqueue(http, 1)
    assert len(await first) == 1


async def test_an_abandoned_post_answers_for_the_one_that_is_still_under_way(http):
    await enqueue(http, 1)
    assert await post(http, DEQUEUE, {"limit": 0}, **KEY, **ABANDONED) == []
    # The request whose client has given up comes only now, and claims nothing.
    assert await post(http, DEQUEUE, {"limit": 1}, **KEY) == []
    assert len(await post(http, DEQUEUE, {"limit": 1})) == 1


async def test_a_refused_post_is_not_remembered(http):
    cancel = {"status": "cancelled"}
    await post(http, "rollouts/ro-none", cancel, 404, **KEY)
    (rollout_id,) = await enqueue(http, 1)
    await post(http, f"rollouts/{rollout_id}", cancel, **KEY)
