"""Calls of the store's HTTP interface, by plain requests."""

import asyncio
import contextlib
import subprocess
import sys

import aiohttp

from agl.types import Span


async def ask(http, method, path, *, expect, **request):
    async with http.request(method, path, **request) as response:
        answer = await response.json()
        assert response.status == expect, answer
        return answer


async def get(http: aiohttp.ClientSession, path: str, expect: int = 200, **request: object):
    return await ask(http, "GET", path, expect=expect, **request)


async def post(http, path, body=None, expect=200, **headers):
    return await ask(http, "POST", path, json=body, headers=headers, expect=expect)


async def enqueue(http: aiohttp.ClientSession, *inputs: object) -> list[str]:
    tasks = {"rollouts": [{"input": value} for value in inputs]}
    answer = await post(http, "queues/rollouts/enqueue", tasks, 201)
    return [rollout["rollout_id"] for rollout in answer]


async def claim(http: aiohttp.ClientSession, **body: object) -> list[dict]:
    return await post(http, "queues/rollouts/dequeue", body)


@contextlib.asynccontextmanager
async def store_process(path, port=0):
    """``agl store`` in its own process, killed at the end: it, and its address."""
    command = [sys.executable, "-c", "from agl.cli import main; main()", "store", "--open"]
    options = ["--port", str(port), "--path", str(path)]
    process = await asyncio.create_subprocess_exec(*command, *options, stderr=subprocess.PIPE)
    try:
        line = (await process.stderr.readline()).decode()
        assert str(path) in line
        yield process, next(word for word in line.split() if word.startswith("http://"))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def ids_of(rollout: dict) -> dict[str, str]:
    return {"rollout_id": rollout["rollout_id"], "attempt_id": rollout["attempt"]["attempt_id"]}


def span_of(rollout: dict, **changes: object) -> dict:
    span = Span.from_attributes(attributes={"a": 1}, **ids_of(rollout))
    return span.model_dump() | changes
