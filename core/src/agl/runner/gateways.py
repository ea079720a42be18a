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
import json
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
from agl.utils.secrets import learn_keys

logger = logging.getLogger(__name__)

END_SECONDS = 60.0
"""Longest that the end of an attempt waits for a gateway to store its calls."""
FLUSH_SECONDS = 10.0
"""Longest that spans wait for a gateway to store the calls before them."""
NOT_OFFERED = (404, 405)
"""Answers of a gateway that stores at once, as 0.3's does, and cannot be asked for it."""
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
    exists: asyncio.Task[bool]
    """Whether there was a host of its name, looked up when the attempt began."""


class AttemptGateways:
    """The gateways that running attempts may call."""

    def __init__(self) -> None:
        self._gateways: dict[str, dict[str, _Gateway]] = {}
        """Attempt id -> address of a gateway -> gateway."""
        self._silent: set[str] = set()
        """Addresses where calls were not stored when asked for; they are not asked again."""

    def note(self, rollout: AttemptedRollout, resources: Mapping[str, Resource]) -> None:
        """The agent of this attempt is about to get these resources."""
        learn_keys(resources)
        attempt, found = rollout.attempt, dict[str, _Gateway]()
        for llm in resources.values():
            if isinstance(llm, ProxyLLM):
                url = llm.get_base_url(attempt.rollout_id, attempt.attempt_id)
                url = url.removesuffix("/v1")
                exists = asyncio.create_task(_exists(url))
                found[url] = _Gateway(
                    llm.get_base_url(), url, llm.api_key, time.monotonic(), exists
                )
        if found:
            self._gateways[attempt.attempt_id] = found

    async def flush(self, rollout: AttemptedRollout) -> bool:
        """Return when the calls of this attempt that were answered so far are stored.

        Returns:
            Whether they are. A gateway that does not answer is asked no more for this attempt.
        """
        attempt_id = rollout.attempt.attempt_id
        gateways = list(self._gateways.get(attempt_id, {}).values())
        for gateway in gateways:
            if gateway.url not in self._silent and (why := await _flush(gateway)):
                self._silent.add(gateway.url)
                logger.warning(
                    "the gateway at %s does not say that it has stored the calls of attempt %r so "
                    "far: %s. Rewards that the attempt emits from now on cannot be given to single "
                    "calls, unless they link to them",
                    gateway.name,
                    attempt_id,
                    why,
                )
        return not any(gateway.url in self._silent for gateway in gateways)

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
            self._silent.discard(gateway.url)
        self._gateways.pop(attempt_id, None)
        return failure


async def _post(gateway: _Gateway, what: str, seconds: float) -> tuple[int, str]:
    """Status and text of the gateway's answer."""
    import aiohttp

    headers = {"authorization": f"Bearer {gateway.key}"} if gateway.key else {}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session,
        session.post(f"{gateway.url}/{what}", headers=headers) as response,
    ):
        return response.status, await response.text()


async def _flush(gateway: _Gateway) -> str | None:
    """Why the gateway may not have stored what it had; what it lost, the attempt's end tells."""
    from aiohttp import ClientError

    try:
        status, _ = await _post(gateway, "flush", FLUSH_SECONDS)
    except TimeoutError:
        return f"no answer within {FLUSH_SECONDS:g} s"
    except (ClientError, OSError) as error:
        return str(error) or repr(error)
    return None if status in (200, *NOT_OFFERED) else f"HTTP {status}"


async def _end(gateway: _Gateway, waits: tuple[float, ...]) -> str | None:
    """Why calls may be lost."""
    from aiohttp import ClientError

    for wait in (*waits, None):
        elapsed = time.monotonic() - gateway.noted
        try:
            status, text = await _post(gateway, "end", END_SECONDS)
            if status == 200:
                return _what_is_missing(json.loads(text.strip() or "null"), elapsed)
            return None if status in NOT_OFFERED else f"HTTP {status}: {text[:300]}"
        except TimeoutError:
            return f"no answer within {END_SECONDS:g} s"
        except (ClientError, OSError, ValueError) as error:
            existed = await asyncio.shield(gateway.exists)
            if not existed and not await _exists(gateway.url):
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
