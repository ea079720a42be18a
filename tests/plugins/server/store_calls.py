"""Calls of the store's HTTP interface, by plain requests."""

import aiohttp

from agl.types import Span


async def ask(
    http: aiohttp.ClientSession, method: str, path: str, *, expect: int, **request: object
) -> object:
    async with http.request(method, path, **request) as response:
        answer = await response.json()
        assert response.status == expect, answer
        return answer


async def enqueue(http: aiohttp.ClientSession, *inputs: object) -> list[str]:
    answer = await ask(
        http,
        "POST",
        "queues/rollouts/enqueue",
        json={"rollouts": [{"input": value} for value in inputs]},
        expect=201,
    )
    return [rollout["rollout_id"] for rollout in answer]


async def claim(http: aiohttp.ClientSession, **body: object) -> list[dict]:
    return await ask(http, "POST", "queues/rollouts/dequeue", json=body, expect=200)


def span_of(rollout: dict, **changes: object) -> dict:
    span = Span.from_attributes(
        attributes={"a": 1},
        rollout_id=rollout["rollout_id"],
        attempt_id=rollout["attempt"]["attempt_id"],
    )
    return span.model_dump() | changes
