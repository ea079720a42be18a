"""Tells gateways that an agent has finished, so that its calls are stored before its status is.

A gateway that cannot say that it has stored every call of the attempt fails the attempt: a reward
without the calls that earned it must not look like a success. Unable are one that is gone, one
that began to serve after the attempt did (it was killed, and another took its place), and one that
says that the store refused a call.

While the agent works, its spans wait for the calls before them, and those calls for the spans
before them, so that numbers say what came after what. The runner tells a gateway when spans ended,
on the gateway's clock; the gateway stores the calls that ended before the first of them, keeps
later ones for a moment, and says how many of the spans come before those. Nobody else waits.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agl.algorithm.gateway import GatewayClient
from agl.errors import GatewayError
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, NamedResources, ProxyLLM, Span
from agl.types.resources import Resource
from agl_http.tokens import issue_token

logger = logging.getLogger("agl.gateway")

END_SECONDS = 60.0
"""Longest that the end of an attempt waits for a gateway to store its calls."""
FLUSH_SECONDS = 10.0
"""Longest that spans wait for a gateway to store the calls before them."""
NUM_LOOKS = 3
"""So often a runner looks first at a gateway's clock."""
DRIFT = 0.001
"""So much faster one clock may be than another."""
NOT_OFFERED = (404, 405)
"""Answers of a gateway that stores at once, as 0.3's does, and cannot be asked for it."""
_CLOCK_CHANGED = (0, False)
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
"""Waits while nobody listens: a gateway that restarts in good order has lost nothing."""


@dataclass(frozen=True)
class _Gateway:
    name: str
    """Its address; no secret."""
    url: str
    """What is posted to it has addresses below this one."""
    key: str | None
    noted: float
    """``time.monotonic()`` when the attempt began."""


class HttpGatewayClient(GatewayClient):
    """Asks the gateways that running attempts may call; see ``agl.algorithm.gateway``."""

    def __init__(self) -> None:
        self._gateways: dict[str, dict[str, _Gateway]] = {}
        """Attempt id -> address of a gateway -> gateway."""
        self._silent: set[str] = set()
        """Addresses where calls were not stored when asked for; they are not asked again."""
        self._clock_offsets: dict[str, tuple[float, float, float]] = {}
        """Name of a gateway -> seconds that its clock is ahead of ours, at least and at most; and
        when that was so."""

    async def open(
        self, store: LightningStore, rollout: AttemptedRollout, resources: NamedResources
    ) -> NamedResources:
        self.note(rollout, resources)
        asking = {
            name: one
            for name, one in resources.items()
            if isinstance(one, ProxyLLM) and one.asks_for_token
        }
        if not asking:
            return resources
        token = await issue_token(store, "model", rollout.rollout_id, rollout.attempt.attempt_id)
        return {**resources, **{name: one.opened(token) for name, one in asking.items()}}

    def note(self, rollout: AttemptedRollout, resources: Mapping[str, Resource]) -> None:
        """The agent of this attempt is about to get these resources."""
        attempt, found = rollout.attempt, dict[str, _Gateway]()
        for llm in resources.values():
            if isinstance(llm, ProxyLLM):
                url = llm.get_base_url(attempt.rollout_id, attempt.attempt_id)
                url = url.removesuffix("/v1")
                found[url] = _Gateway(llm.get_base_url(), url, llm.api_key, time.monotonic())
        if found:
            self._gateways[attempt.attempt_id] = found

    async def wait_for_earlier_calls(
        self, rollout: AttemptedRollout, spans: Sequence[Span], *, at_end: bool = False
    ) -> tuple[int, bool]:
        attempt_id = rollout.attempt.attempt_id
        count = of_all = len(spans) + at_end
        in_order = True
        for gateway in self._gateways.get(attempt_id, {}).values():
            told = (of_all, False)
            if gateway.url not in self._silent:
                try:
                    told = await self._ask(gateway, spans, at_end) or (of_all, at_end)
                except (GatewayError, OSError, ValueError, LookupError, TypeError) as error:
                    self._silent.add(gateway.url)
                    logger.warning(
                        "the gateway at %s does not say that it has stored the calls of attempt %r "
                        "so far: %s. Rewards that the attempt emits from now on cannot be given to "
                        "single calls, unless they link to them",
                        gateway.name,
                        attempt_id,
                        str(error) or repr(error),
                    )
            count, in_order = min(count, told[0]), in_order and told[1]
        return count, in_order

    async def _ask(
        self, gateway: _Gateway, spans: Sequence[Span], at_end: bool
    ) -> tuple[int, bool] | None:
        """What a gateway says of its calls and these spans; None if it cannot be asked."""
        for _ in range(2):  # again if it came back meanwhile on a host with another clock
            for _ in range(0 if gateway.name in self._clock_offsets else NUM_LOOKS):
                if await self._flush(gateway, []) is None:
                    return None
            least, most, _ = self._clock_offsets[gateway.name]
            begin, now, end = time.monotonic(), time.time(), time.monotonic()
            ago = [max(now - (span.end_time or now), 0.0) for span in spans] + [0.0] * at_end
            ended = [end + most - seconds for seconds in ago]
            told = await self._flush(gateway, ended, most - least + end - begin)
            if told != _CLOCK_CHANGED:
                return told
        raise GatewayError("its clock is another one in each answer; give each gateway an address")

    async def _flush(
        self, gateway: _Gateway, ended: list[float], slack: float = 0.0
    ) -> tuple[int, bool] | None:
        begin = time.monotonic()
        known = self._clock_offsets.get(gateway.name, (-math.inf, math.inf, begin))
        body = {"ended": ended, "slack": slack}
        status, text = await _post(gateway, "flush", FLUSH_SECONDS, body)
        if status not in (200, *NOT_OFFERED):
            raise GatewayError(f"HTTP {status}")
        said = json.loads(text) if status == 200 and text.strip() else None
        if not said:
            return None
        if ended and int(said["before"]) < 1:
            raise GatewayError(f"it answered {text[:300]}; expected 'before' to be at least 1")
        least, most = said["clock"] - time.monotonic(), said["clock"] - begin
        if least <= 0 <= most:
            least = most = 0.0  # it read between our two looks: it is the same clock
        drift = DRIFT * (begin - known[2])
        offset = (max(least, known[0] - drift), min(most, known[1] + drift), begin)
        if offset[0] > offset[1]:
            self._clock_offsets.pop(gateway.name, None)
            return _CLOCK_CHANGED
        self._clock_offsets[gateway.name] = offset
        return said["before"], said["in_order"]

    async def end(self, rollout: AttemptedRollout, *, patient: bool = True) -> GatewayError | None:
        attempt_id = rollout.attempt.attempt_id
        failure: GatewayError | None = None
        for gateway in self._gateways.get(attempt_id, {}).values():
            why = await _end(gateway, RETRY_SECONDS if patient else ())
            if why is not None:
                failure = GatewayError(
                    f"the gateway at {gateway.name} cannot say that it has recorded all model "
                    f"calls of attempt {attempt_id!r}: {why}"
                )
                logger.warning("%s", failure)
            self._silent.discard(gateway.url)
        self._gateways.pop(attempt_id, None)
        return failure


async def _post(gateway: _Gateway, what: str, seconds: float, body: Any = None) -> tuple[int, str]:
    """Status and text of the gateway's answer.

    Raises:
        OSError: There is none.
        TimeoutError: None within these seconds; it is an ``OSError``, too.
    """
    import aiohttp

    headers = {"authorization": f"Bearer {gateway.key}"} if gateway.key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session,
            session.post(f"{gateway.url}/{what}", json=body, headers=headers) as response,
        ):
            return response.status, await response.text()
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    except aiohttp.ClientError as error:
        raise OSError(str(error) or repr(error)) from error


async def _end(gateway: _Gateway, waits: tuple[float, ...]) -> str | None:
    """Why calls may be lost."""
    for wait in (*waits, None):
        elapsed = time.monotonic() - gateway.noted
        try:
            status, text = await _post(gateway, "end", END_SECONDS)
            if status == 200:
                return _what_is_missing(json.loads(text.strip() or "null"), elapsed)
            return None if status in NOT_OFFERED else f"HTTP {status}: {text[:300]}"
        except TimeoutError as error:
            return str(error)
        except (OSError, ValueError) as error:
            if wait is None:
                return str(error) or repr(error)
            await asyncio.sleep(wait)
    return None


def _what_is_missing(answer: Any, elapsed: float) -> str | None:
    """What the gateway's answer says of calls that it does not have; 0.3's says nothing.

    Both sides count seconds since the attempt began, so that their clocks need not agree.
    """
    said = cast(dict[str, Any], answer) if isinstance(answer, dict) else {}
    serving, lost = said.get("serving_seconds"), said.get("lost_calls")
    if isinstance(serving, int | float) and serving < elapsed:
        return (
            f"it has served for {serving:.1f} s, and the attempt began {elapsed:.1f} s ago; what "
            "was there before it may have been killed"
        )
    return f"{lost} of them could not be stored" if lost else None
