"""A runner that has more attempts than the head of one request has room for their tokens."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.stores import served

import agl
from agl.runner.heartbeat import Heartbeat, Running
from agl_http.tokens import issue_token
from agl_testing.store_steps import span_of

MANY = 1000


@pytest.fixture
async def runner():
    async with served() as (server, _):
        await server.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input="x")] * MANY)
        token = await issue_token(server.target, "runner")
        client = agl.LightningStoreClient(server.endpoint, token=token, retry_delays=())
        yield client
        await client.close()


async def test_it_writes_spans_of_all_of_them(runner):
    claimed = await runner.dequeue_many_rollouts(limit=MANY)
    spans = list(map(span_of, claimed))
    added = await runner.add_many_spans(spans)
    assert [span.span_id for span in added] == [span.span_id for span in spans]


async def test_it_shows_that_all_of_them_are_alive(runner):
    claimed = await runner.dequeue_many_rollouts(limit=MANY)
    call: Any = SimpleNamespace(is_coroutine=False)
    running = {one.attempt.attempt_id: Running(one, call) for one in claimed}
    heartbeat = Heartbeat(runner, "runner-1", running, interval=10.0, include_gpu=False)
    begin = time.time()
    await heartbeat.beat()
    for one in (claimed[0], claimed[-1]):
        (attempt,) = await runner.query_attempts(one.rollout_id)
        assert (attempt.last_heartbeat_time or 0.0) >= begin
