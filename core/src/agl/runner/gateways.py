"""Tells gateways that an agent has finished, so that its calls are stored before its status is.

A gateway that cannot say that it has stored every call of the attempt fails the attempt: a reward
without the calls that earned it must not look like a success. Unable are one that is gone, one
that began to serve after the attempt did (it was killed, and another took its place), and one that
says that the store refused a call. One whose name did not exist when the attempt began, nor does
when it ends, had no call.

While the agent works they are asked to store what they have before its own spans are stored, so
that a span that follows a call has a higher number than the call.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from agl.errors import GatewayError
from agl.types import AttemptedRollout, ProxyLLM
from agl.types.resources import Resource

logger = logging.getLogger(__name__)

END_SECONDS = 60.0
"""Longest that the end of an attempt waits for a gateway to store its calls."""
FLUSH_SECONDS = 10.0
"""Longest that spans wait for a gateway to store the calls before them."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
"""Waits while nobody listens: a gateway that restarts in good order has lost nothing."""


@dataclass(frozen=True)
class _Gateway:
    name: str
    """Its address; no secret."""
    end_url: str
    """Where the end of the attempt is posted."""
    key: str | None
    noted: float
    """``time.monotonic()`` when the attempt began."""
    exists: asyncio.Task[bool]
    """Whether there was a host of its name, looked up when the attempt began."""


class AttemptGateways:
    """The gateways that running attempts may call."""

    def __init__(self) -> None:
        self._gateways: dict[str, dict[str, _Gateway]] = {}
        """Attempt id -> where its end is posted -> gateway."""
        self._silent: set[str] = set()
        """Where calls were not stored when that was asked for; it is asked for no more."""

    def note(self, rollout: AttemptedRollout, resources: Mapping[str, Resource]) -> None:
        """The agent of this attempt is about to get these resources."""
        attempt, found = rollout.attempt, dict[str, _Gateway]()
        for llm in resources.values():
            if isinstance(llm, ProxyLLM):
                url = llm.get_base_url(attempt.rollout_id, attempt.attempt_id)
                end_url = f"{url.removesuffix('/v1')}/end"
                exists = asyncio.create_task(_exists(end_url))
                found[end_url] = _Gateway(
                    llm.get_base_url(), end_url, llm.api_key, time.monotonic(), exists
                )
        if found:
            self._gateways[attempt.attempt_id] = found

    async def flush(self, rollout: AttemptedRollout) -> bool:
        """Return when the calls of this attempt that were answered so far are stored.

        Returns:
            Whether they are. A gateway that does not answer is asked no more for this attempt.
        """
        for gateway in list(self._gateways.get(rollout.attempt.attempt_id, {}).values()):
            if gateway.end_url not in self._silent and (why := await _flush(gateway)):
                self._silent.add(gateway.end_url)
                logger.warning(
                    "the gateway at %s does not say that it has stored the calls of attempt %r so "
                    "far: %s. Rewards that the attempt emits from now on cannot be given to single "
                    "calls, unless they link to them",
                    gateway.name,
                    rollout.attempt.attempt_id,
                    why,
                )
        return not self._silent.intersection(self._gateways.get(rollout.attempt.attempt_id, ()))

    async def end(self, rollout: AttemptedRollout, *, patient: bool = True) -> GatewayError | None:
        """Return when the calls of this attempt are stored; it makes no more. May be repeated.

        Args:
            rollout: The attempt.
            patient: Wait for a gateway that nobody finds, as it may be about to restart.

        Returns:
            Why they may not all be stored.
        """
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
            self._silent.discard(gateway.end_url)
        self._gateways.pop(attempt_id, None)
        return failure


async def _flush(gateway: _Gateway) -> str | None:
    """Why the gateway may not have stored what it had; what it lost, the attempt's end tells."""
    import aiohttp

    address = f"{gateway.end_url.removesuffix('/end')}/flush"
    headers = {"authorization": f"Bearer {gateway.key}"} if gateway.key else {}
    timeout = aiohttp.ClientTimeout(total=FLUSH_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(address, headers=headers) as response,
        ):
            # One that stores at once, as 0.3's does, has no such address.
            return None if response.status in (200, 404, 405) else f"HTTP {response.status}"
    except TimeoutError:
        return f"no answer within {FLUSH_SECONDS:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or repr(error)


async def _end(gateway: _Gateway, waits: tuple[float, ...]) -> str | None:
    """Why calls may be lost."""
    import aiohttp

    headers = {"authorization": f"Bearer {gateway.key}"} if gateway.key else {}
    timeout = aiohttp.ClientTimeout(total=END_SECONDS)
    for wait in (*waits, None):
        elapsed = time.monotonic() - gateway.noted
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(gateway.end_url, headers=headers) as response,
            ):
                # A gateway that stores at once, as 0.3's does, has no such address.
                if response.status in (404, 405):
                    return None
                if response.status != 200:
                    text = (await response.text())[:300]
                    return f"HTTP {response.status}: {text}"
                answer = await response.json(content_type=None)
                return _what_is_missing(answer, elapsed)
        except TimeoutError:
            return f"no answer within {END_SECONDS:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            existed = await asyncio.shield(gateway.exists)
            if not existed and not await _exists(gateway.end_url):
                return None  # the agent cannot have called it either
            if wait is None:
                return str(error) or repr(error)
            await asyncio.sleep(wait)
    return None


async def _exists(url: str) -> bool:
    """False when there is no host of this name; a lookup that fails otherwise says nothing."""
    try:
        await asyncio.get_running_loop().getaddrinfo(urlsplit(url).hostname, None)
    except socket.gaierror as error:
        return error.errno != socket.EAI_NONAME
    except (OSError, ValueError):
        return True
    return True


def _what_is_missing(answer: Any, elapsed: float) -> str | None:
    """What the gateway's answer says of calls that it does not have.

    Args:
        answer: Of 0.3's gateway, which says nothing, anything.
        elapsed: Seconds since the attempt began, when the gateway was asked: both sides count
            seconds, so that their clocks need not agree.
    """
    said = cast(dict[str, Any], answer) if isinstance(answer, dict) else {}
    serving, lost = said.get("serving_seconds"), said.get("lost_calls")
    if isinstance(serving, int | float) and serving < elapsed:
        return (
            f"it has served for {serving:.1f} s, and the attempt began {elapsed:.1f} s ago; what "
            "was there before it may have been killed"
        )
    return f"{lost} of them could not be stored" if lost else None
