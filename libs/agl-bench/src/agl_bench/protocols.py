"""The ways in which a load program speaks to a store server.

The first three are the wire of Agent Lightning 0.3, which any such server understands; the others
need what our server has beyond it.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import aiohttp

from agl.errors import StoreError
from agl_bench.payloads import SpanDraft, json_span, otlp_request
from agl_http import wire

WayName = Literal["wire", "single", "otlp", "batch", "turn"]
WAIT_SECONDS = 10.0
"""How long a claim is held, by a server that holds them."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between claims, by a server that does not; doubled after each one in vain."""

_JSON = {"Content-Type": "application/json"}
_OTLP = {"Content-Type": "application/x-protobuf"}


@dataclass
class Claimed:
    """An attempt in the hands of a runner."""

    rollout_id: str
    attempt_id: str
    task: int
    drafts: list[SpanDraft] = field(default_factory=list[SpanDraft])
    """Spans that are still to be sent."""
    num_spans: int = 0


class Way:
    """Requests of a runner, as bytes.

    Args:
        http: A session with the server's address as its base.
        name: Which way.
        holds: Whether the server holds a claim until there is work.
    """

    def __init__(self, http: aiohttp.ClientSession, name: WayName, holds: bool) -> None:
        self.http = http
        self.name: WayName = name
        self.holds = holds

    async def enqueue(self, tasks: Sequence[int]) -> list[str]:
        """Queue tasks; their rollouts' ids."""
        body = json.dumps({"rollouts": [{"input": {"task": task}} for task in tasks]})
        answer = await self._post(f"{wire.PREFIX}/queues/rollouts/enqueue", body)
        return [rollout["rollout_id"] for rollout in answer]

    async def claim(self, worker_id: str) -> Claimed:
        """Claim a rollout; returns when there is one."""
        body: dict[str, Any] = {"limit": 1, "worker_id": worker_id}
        if self.holds:
            body["wait_seconds"] = WAIT_SECONDS
        content = json.dumps(body)
        pause = FIRST_PAUSE
        while True:
            claimed = await self._post(f"{wire.PREFIX}/queues/rollouts/dequeue", content)
            if claimed:
                return _claimed(claimed[0])
            if not self.holds:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def emit(self, claimed: Claimed, draft: SpanDraft) -> None:
        """Send a span, or keep it for ``finish``."""
        claimed.num_spans += 1
        if self.name not in ("wire", "single"):
            claimed.drafts.append(draft)
            return
        rollout_id, attempt_id, number = claimed.rollout_id, claimed.attempt_id, 0
        if self.name == "wire":
            whose = json.dumps({"rollout_id": rollout_id, "attempt_id": attempt_id})
            number = (await self._post(f"{wire.PREFIX}/spans/next", whose))["sequence_id"]
        span = json_span(draft, rollout_id, attempt_id, number)
        await self._post(f"{wire.PREFIX}/spans", span)

    async def finish(
        self, claimed: Claimed, worker_id: str, *, claim_next: bool = True
    ) -> Claimed | None:
        """Send the spans that were kept, report success; the next rollout, if that is one turn."""
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt_id
        if self.name == "otlp":
            traces = otlp_request(claimed.drafts, rollout_id, attempt_id)
            await self._send(wire.TRACES, traces, _OTLP)
        elif self.name in ("batch", "turn"):
            spans = [json_span(draft, rollout_id, attempt_id, 0) for draft in claimed.drafts]
            array = f"[{','.join(spans)}]"
            if self.name == "turn":
                # Without waiting: the end of this rollout is known when the answer comes.
                body = (
                    f'{{"spans":{array},"finish":{{"rollout_id":"{rollout_id}","attempt_id":'
                    f'"{attempt_id}","status":"succeeded"}},"claim":{{"limit":{int(claim_next)},'
                    f'"worker_id":"{worker_id}"}}}}'
                )
                answer = await self._post(f"{wire.PREFIX}/turn", body)
                return _claimed(answer["claimed"][0]) if answer["claimed"] else None
            await self._post(f"{wire.PREFIX}/spans/batch", array)
        path = f"{wire.PREFIX}/rollouts/{rollout_id}/attempts/{attempt_id}"
        await self._post(path, '{"status":"succeeded"}')
        return None

    async def rollout(self, rollout_id: str) -> dict[str, Any]:
        """The rollout as the store has it."""
        async with self.http.get(f"{wire.PREFIX}/rollouts/{rollout_id}") as answer:
            return await _content(answer)

    async def spans(self, rollout_id: str) -> list[dict[str, Any]]:
        """All spans of the rollout."""
        body = json.dumps({"rollout_id": rollout_id})
        return (await self._post(f"{wire.PREFIX}/spans/search", body))["items"]

    async def _post(self, path: str, body: str) -> Any:
        return json.loads(await self._send(path, body.encode(), _JSON))

    async def _send(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        async with self.http.post(path, data=body, headers=headers) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise StoreError(f"POST {path}: HTTP {answer.status} {content[:300]!r}")
            return content


async def features_of(http: aiohttp.ClientSession) -> frozenset[str]:
    """What the server has beyond 0.3's wire.

    Raises:
        StoreError: What answers is no store.
    """
    async with http.get(wire.HEALTH) as answer:
        return frozenset((await _content(answer)).get("features", ()))


def best_way(features: frozenset[str]) -> WayName:
    """The fastest way that a server with these features knows."""
    if "turn" in features:
        return "turn"
    return "batch" if "spans/batch" in features else "otlp"


async def _content(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    content = await answer.read()
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if answer.status != 200 or not isinstance(value, dict):
        raise StoreError(f"GET {answer.url}: HTTP {answer.status} {content[:300]!r}")
    return cast(dict[str, Any], value)


def _claimed(rollout: dict[str, Any]) -> Claimed:
    return Claimed(
        rollout["rollout_id"], rollout["attempt"]["attempt_id"], rollout["input"]["task"]
    )
