"""A request that is sent again is carried out once, by its idempotency key."""

import asyncio
import threading

import pytest

import agl
from agl_runs.store import begin_run

from .store_calls import ask, enqueue


async def test_a_repeated_post_is_carried_out_once(http):
    headers = {"Idempotency-Key": "k-1"}
    body = {"rollouts": [{"input": 1}]}
    request = {"json": body, "headers": headers, "expect": 201}
    first = await ask(http, "POST", "queues/rollouts/enqueue", **request)
    assert await ask(http, "POST", "queues/rollouts/enqueue", **request) == first
    assert (await ask(http, "GET", "statistics", expect=200))["total_rollouts"] == 1
    headers["Idempotency-Key"] = "k-2"
    assert await ask(http, "POST", "queues/rollouts/enqueue", **request) != first


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
    about = {"json": {"rollouts": [{"input": 1}]}, "headers": {"AGL-Fence": fence}}
    answer = await ask(http, "POST", "queues/rollouts/enqueue", **about, expect=400)
    assert "AGL-Fence" in answer["detail"]
    assert (await ask(http, "GET", "statistics", expect=200))["total_rollouts"] == 0


async def test_posts_repeated_at_the_same_time_are_carried_out_once(http):
    async def wait_for_work() -> list[dict]:
        request = {"json": {"wait_seconds": 5}, "headers": {"Idempotency-Key": "k"}, "expect": 200}
        return await ask(http, "POST", "queues/rollouts/dequeue", **request)

    both = asyncio.gather(wait_for_work(), wait_for_work())
    await asyncio.sleep(0.1)
    await enqueue(http, 1, 2)
    first, second = await both
    assert first == second
    assert len(first) == 1


async def test_a_key_with_another_body_is_refused(http):
    request = {"headers": {"Idempotency-Key": "k"}}
    one, other = {"rollouts": [{"input": 1}]}, {"rollouts": [{"input": 2}]}
    first = await ask(http, "POST", "queues/rollouts/enqueue", json=one, expect=201, **request)
    said = await ask(http, "POST", "queues/rollouts/enqueue", json=other, expect=422, **request)
    assert "'k' was sent with another body" in said["detail"]
    again = await ask(http, "POST", "queues/rollouts/enqueue", json=one, expect=201, **request)
    assert again == first
    assert (await ask(http, "GET", "statistics", expect=200))["total_rollouts"] == 1


async def test_a_key_with_another_body_is_refused_while_the_first_is_in_work(http, store):
    dequeue, is_held = store.dequeue_many_rollouts, threading.Event()

    async def noted(**options):
        is_held.set()
        return await dequeue(**options)

    async def claim_with(body: dict, status: int):
        path, key = "queues/rollouts/dequeue", {"Idempotency-Key": "k"}
        return await ask(http, "POST", path, json=body, headers=key, expect=status)

    store.dequeue_many_rollouts = noted
    first = asyncio.create_task(claim_with({"wait_seconds": 30}, 200))
    assert await asyncio.to_thread(is_held.wait, 30)
    assert "another body" in (await claim_with({"limit": 0}, 422))["detail"]
    await enqueue(http, 1)
    assert len(await first) == 1


async def test_an_abandoned_post_answers_for_the_one_that_is_still_under_way(http):
    path, key = "queues/rollouts/dequeue", {"Idempotency-Key": "k"}
    await enqueue(http, 1)
    asked = key | {"AGL-Abandoned": "1"}
    assert await ask(http, "POST", path, json={"limit": 0}, headers=asked, expect=200) == []
    # The request whose client has given up comes only now, and claims nothing.
    assert await ask(http, "POST", path, json={"limit": 1}, headers=key, expect=200) == []
    assert len(await ask(http, "POST", path, json={"limit": 1}, expect=200)) == 1


async def test_an_abandoned_post_is_told_what_was_claimed(http):
    path, key = "queues/rollouts/dequeue", {"Idempotency-Key": "k"}
    await enqueue(http, 1)
    claimed = await ask(http, "POST", path, json={"limit": 1}, headers=key, expect=200)
    asked = key | {"AGL-Abandoned": "1"}
    assert await ask(http, "POST", path, json={"limit": 0}, headers=asked, expect=200) == claimed


async def test_a_refused_post_is_not_remembered(http):
    request = {"json": {"status": "cancelled"}, "headers": {"Idempotency-Key": "k"}}
    await ask(http, "POST", "rollouts/ro-none", expect=404, **request)
    (rollout_id,) = await enqueue(http, 1)
    await ask(http, "POST", f"rollouts/{rollout_id}", expect=200, **request)
