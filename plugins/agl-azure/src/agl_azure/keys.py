"""What opens an Azure resource: its key, a login, and the memory of both, to keep them secret."""

import asyncio
from typing import Any

from agl.errors import ConfigError

TOKEN_SCOPE = "https://cognitiveservices.azure.com/.default"
"""Of tokens that serve in the place of a key."""


class Keys:
    """A credential, as azure-core takes it, that knows which tokens it gave.

    Args:
        api_key: Of the resource; None uses the login for it, too.
        credential: One of azure-identity (or with its ``get_token``); None finds a login.
    """

    def __init__(self, api_key: str | None, credential: Any) -> None:
        self.api_key = api_key
        self._credential = credential
        self._tokens: list[str] = []

    @property
    def secrets(self) -> list[str]:
        """What must be in no message."""
        return [one for one in (self.api_key, *self._tokens) if one]

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token of the login."""
        if self._credential is None:
            self._credential = _default_credential()
        token = self._credential.get_token(*scopes, **options)
        if token.token not in self._tokens:
            self._tokens = [*self._tokens[-9:], token.token]
        return token

    async def token(self) -> str:
        """A token for files, jobs and model calls; it lasts about an hour."""
        return (await asyncio.to_thread(self.get_token, TOKEN_SCOPE)).token

    async def key_or_token(self) -> str:
        """What opens the resource for model calls."""
        return self.api_key or await self.token()


def needs_extra(error: ImportError) -> ConfigError:
    """The error for an SDK that is not installed."""
    return ConfigError(
        f"algorithm 'azure-sft' (plugin 'agl-azure') needs {error.name!r}, which is not "
        "installed. Run: pip install agl-azure"
    )


def _default_credential() -> Any:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise needs_extra(error) from None
    return DefaultAzureCredential()
