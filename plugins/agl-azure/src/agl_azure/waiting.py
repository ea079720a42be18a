"""Waiting for what Azure does: for hours, and through outages."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agl.errors import AglError
from agl_azure.errors import is_passing
from agl_learning.remote import RemoteRefusalError

logger = logging.getLogger("agl.azure")

FIRST_PAUSE_SECONDS = 1.0
GROWTH = 1.5
"""Each look comes so much later than the one before, up to ``Patience.poll``."""


@dataclass(frozen=True)
class Patience:
    """How long things may take, and how often they are looked at; seconds."""

    poll: float = 30.0
    file: float = 1800.0
    job: float = 24 * 3600.0
    deployment: float = 3600.0
    max_retries: int = 5
    """Of one request, by the SDK, which keeps to ``Retry-After``."""


async def until(
    look: Callable[[], Awaitable[bool]],
    what: str,
    seconds: float,
    poll: float,
    refuse: Callable[[str, BaseException], AglError],
    state: Callable[[], str] | None = None,
) -> None:
    """Look again and again until it is so; a service that is away for a while ends nothing.

    Args:
        look: Whether it is so; raises an ``AglError`` when it never will be.
        what: What is waited for, after "wait for".
        seconds: For how long.
        poll: Between looks, at most.
        refuse: Makes the error of an SDK's error, of which it gets what was tried.
        state: What it is like now, for the message.

    Raises:
        AglError: ``look`` or the service says no.
        RemoteRefusalError: It took too long.
    """
    deadline = time.monotonic() + seconds
    pause = min(FIRST_PAUSE_SECONDS, poll)
    while True:
        wait = pause
        try:
            if await look():
                return
        except AglError:
            raise
        except Exception as error:
            if not is_passing(error):
                raise refuse(f"wait for {what}", error) from None
            wait = retry_after(error, pause)
            logger.warning("%s", refuse(f"look at {what}", error))
        if time.monotonic() + wait > deadline:
            now = f"; it is {state()!r} now" if state else ""
            raise RemoteRefusalError(
                f"azure-sft: waited {seconds:.0f} seconds for {what}{now}. It may still get "
                "there: run again, and the run goes on from it"
            )
        await asyncio.sleep(wait)
        pause = min(pause * GROWTH, poll)


def retry_after(error: BaseException, otherwise: float) -> float:
    """The seconds that an error asks to wait; ``otherwise`` where it does not say."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(float(headers.get("retry-after", "")), 0.0)
    except ValueError:
        return otherwise
