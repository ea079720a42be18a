"""Tells gateways that an agent has finished, so that its calls are stored before its status is."""

import logging
from collections.abc import Mapping

from agl.types import AttemptedRollout, ProxyLLM
from agl.types.resources import Resource

logger = logging.getLogger(__name__)

END_SECONDS = 60.0
"""Longest that the end of an attempt waits for a gateway to store its calls."""


class AttemptGateways:
    """The gateways that running attempts may call."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[str, str | None]] = {}
        """Attempt id -> address of the attempt at a gateway -> key."""

    def note(self, rollout: AttemptedRollout, resources: Mapping[str, Resource]) -> None:
        """The agent of this attempt is about to get these resources."""
        attempt = rollout.attempt
        found = {
            llm.get_base_url(attempt.rollout_id, attempt.attempt_id): llm.api_key
            for llm in resources.values()
            if isinstance(llm, ProxyLLM)
        }
        if found:
            self._addresses[attempt.attempt_id] = found

    async def end(self, rollout: AttemptedRollout) -> None:
        """Return when the calls of this attempt are stored; it makes no more. May be repeated."""
        attempt_id = rollout.attempt.attempt_id
        for address, key in self._addresses.get(attempt_id, {}).items():
            await _end(f"{address.removesuffix('/v1')}/end", key)
        self._addresses.pop(attempt_id, None)


async def _end(address: str, key: str | None) -> None:
    import aiohttp

    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=END_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(address, headers=headers) as response,
        ):
            # A gateway that stores at once, as 0.3's does, has no such address.
            if response.status not in (200, 404, 405):
                text = (await response.text())[:300]
                logger.warning("gateway: POST %s: HTTP %d: %s", address, response.status, text)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        logger.warning(
            "gateway: POST %s: %s; model calls of this attempt may be stored after its end",
            address,
            str(error) or f"no answer within {END_SECONDS:g} s",
        )
