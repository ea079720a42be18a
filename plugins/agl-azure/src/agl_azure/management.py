"""The deployments of one Azure OpenAI resource, through Azure's SDK for its management address."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from agl.errors import AglError
from agl.http.serving import is_loopback
from agl_azure.errors import DeploymentFailedError, refusal
from agl_azure.keys import Keys
from agl_azure.waiting import Patience, until

T = TypeVar("T")

ENDS = ("Failed", "Canceled", "Disabled", "Deleting")
"""States of a deployment that will not be ready."""


@dataclass(frozen=True)
class Account:
    """Which resource; nothing secret."""

    subscription_id: str
    resource_group: str
    name: str
    management_url: str


class Management:
    """Asks for deployments.

    Args:
        account: Whose.
        keys: With a login.
        patience: How long to wait for what.
    """

    def __init__(self, account: Account, keys: Keys, patience: Patience) -> None:
        from azure.mgmt.cognitiveservices import CognitiveServicesManagementClient

        self._account, self._keys, self._patience = account, keys, patience
        self._client: Any = CognitiveServicesManagementClient(
            keys,
            account.subscription_id,
            base_url=account.management_url,
            credential_scopes=[f"{account.management_url.rstrip('/')}/.default"],
            retry_total=patience.max_retries,
        )
        # A bearer token goes over plain HTTP to this machine alone; elsewhere the SDK refuses.
        host = urlsplit(account.management_url).hostname
        self._plain = {"enforce_https": False} if is_loopback(host or "") else {}

    async def close(self) -> None:
        """Let go of connections."""
        await asyncio.to_thread(self._client.close)

    async def deploy(self, name: str, model: str, sku: str, capacity: int) -> None:
        """Ask for a deployment; asking again for the same one changes nothing."""
        from azure.mgmt.cognitiveservices import models

        wanted = models.Deployment(
            sku=models.Sku(name=sku, capacity=capacity),
            properties=models.DeploymentProperties(
                model=models.DeploymentModel(format="OpenAI", name=model, version="1")
            ),
        )
        await self._ask(
            f"deploy {model!r} as {name!r}",
            lambda deployments, *where: deployments.begin_create_or_update(
                *where, name, wanted, polling=False, **self._plain
            ),
        )

    async def wait_for(self, name: str) -> None:
        """Return when a deployment answers calls.

        Raises:
            DeploymentFailedError: It never will.
            RemoteRefusalError: It took too long.
        """
        states = ["not begun"]

        async def is_ready() -> bool:
            found = await asyncio.to_thread(
                self._client.deployments.get, *self._where, name, **self._plain
            )
            states.append(str(found.properties.provisioning_state))
            if states[-1] in ENDS:
                raise DeploymentFailedError(
                    f"azure-sft: deployment {name!r} ended as {states[-1]}. Run again to deploy "
                    "the model once more (it is not trained again); where that does not help, its "
                    "kind (sku) may not be offered in the region of the resource"
                )
            return states[-1] == "Succeeded"

        await self._until(is_ready, f"deployment {name!r} to be ready", lambda: states[-1])

    async def models(self) -> dict[str, str]:
        """Name of each deployment -> its model."""
        found = await self._ask(
            f"list the deployments of {self._account.name!r}",
            lambda deployments, *where: list(deployments.list(*where, **self._plain)),
        )
        return {one.name: one.properties.model.name for one in found}

    async def delete(self, name: str) -> None:
        """Delete a deployment and return when it is gone; one that is not there is no error."""
        await self._ask(
            f"delete deployment {name!r}",
            lambda deployments, *where: deployments.begin_delete(
                *where, name, polling=False, **self._plain
            ),
        )

        async def is_gone() -> bool:
            return name not in await self.models()

        await self._until(is_gone, f"deployment {name!r} to be gone")

    @property
    def _where(self) -> tuple[str, str]:
        return self._account.resource_group, self._account.name

    async def _ask(self, doing: str, ask: Callable[..., T]) -> T:
        from azure.core.exceptions import AzureError

        try:
            return await asyncio.to_thread(ask, self._client.deployments, *self._where)
        except AzureError as error:
            raise self._refuse(doing, error) from None

    async def _until(self, look: Any, what: str, state: Callable[[], str] | None = None) -> None:
        seconds, poll = self._patience.deployment, self._patience.poll
        await until(look, what, seconds, poll, self._refuse, state)

    def _refuse(self, doing: str, error: BaseException) -> AglError:
        return refusal(doing, error, self._keys.secrets)
