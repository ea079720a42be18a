"""Asking Azure: with a key or a login, for hours and through outages, and never with a secret told.

Waiting is ours because it outlasts what the SDKs do: those try one request again for about half a
minute, and keep to ``Retry-After`` meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.identity import DefaultAzureCredential

from agl.utils.secrets import learn
from agl_azure.errors import SDK_ERRORS, is_passing, refusal
from agl_azure.options import AzureOptions
from agl_models.provider_errors import RemoteRefusalError, retry_after

logger = logging.getLogger("agl.azure")

T = TypeVar("T")

TOKEN_SCOPE = "https://cognitiveservices.azure.com/.default"
"""Of tokens that serve in the place of a key."""
MAX_RETRIES = 5
"""Of one request, by the SDK."""
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 300.0
"""Whatever ``Retry-After`` says: a wrong date would hold the run for years."""
GROWTH = 1.5
"""Each look comes so much later than the one before, up to ``poll_seconds``."""


class Keys:
    """A credential, as azure-core takes it; its key and tokens are hidden wherever agl writes.

    Args:
        api_key: Of the resource; None uses the login for it, too.
        credential: One of azure-identity (or with its ``get_token``); None finds a login.
    """

    def __init__(self, api_key: str | None, credential: Any) -> None:
        self.api_key = api_key
        self._credential = credential
        learn(api_key)

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token of the login."""
        if self._credential is None:
            self._credential = DefaultAzureCredential()
        token = self._credential.get_token(*scopes, **options)
        learn(token.token)
        return token

    async def token(self) -> str:
        """A token for files, jobs and model calls; it lasts about an hour."""
        return (await asyncio.to_thread(self.get_token, TOKEN_SCOPE)).token


class NotYetError(Exception):
    """It is not so yet; the message is what it is like now."""


class AzureClient:
    """What asks Azure for something."""

    def __init__(self, options: AzureOptions, keys: Keys) -> None:
        self.options, self.keys = options, keys

    async def ask(self, doing: str, answer: Awaitable[T]) -> T:
        """An answer of an SDK.

        Args:
            doing: What is tried, and on which thing: ``upload 'a.jsonl' to https://...``.

        Raises:
            AglError: The one of ``refusal``.
        """
        try:
            return await answer
        except SDK_ERRORS as error:
            raise refusal(doing, error) from None

    async def until(self, look: Callable[[], Awaitable[T]], what: str, seconds: float) -> T:
        """Look again and again until it is so; a service that is away for a while ends nothing.

        Args:
            look: Raises ``NotYetError`` until it is so, and another one when it never will be.
            what: What is waited for, after "wait for".

        Raises:
            AglError: ``look`` or the service says no.
            RemoteRefusalError: It took too long.
        """
        deadline = time.monotonic() + seconds
        pause = min(FIRST_PAUSE_SECONDS, self.options.poll_seconds)
        now = ""
        while True:
            wait = pause
            try:
                return await look()
            except NotYetError as error:
                now = f"; it is {str(error)!r} now"
            except SDK_ERRORS as error:
                if not is_passing(error):
                    raise refusal(f"wait for {what}", error) from None
                wait = pause_after(error, pause)
                logger.warning("%s", refusal(f"look at {what}", error))
            if time.monotonic() + wait > deadline:
                raise RemoteRefusalError(
                    f"AzureSFT: waited {seconds:.0f} seconds for {what}{now}. It may still get "
                    "there: run again, and the run goes on from it"
                )
            await asyncio.sleep(wait)
            pause = min(pause * GROWTH, self.options.poll_seconds)


def pause_after(error: BaseException, otherwise: float) -> float:
    """The seconds that an error asks to wait, within reason; ``otherwise`` where it says none."""
    asked = retry_after(getattr(getattr(error, "response", None), "headers", None) or {})
    return otherwise if asked is None else min(asked, MAX_PAUSE_SECONDS)
