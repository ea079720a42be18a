"""The deployments of one Azure OpenAI resource, through Azure's SDK for its management address."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

from azure.core.pipeline.policies import RetryPolicy
from azure.mgmt.cognitiveservices import CognitiveServicesManagementClient, models

from agl_azure.client import MAX_PAUSE_SECONDS, MAX_RETRIES, AzureClient, Keys, NotYetError
from agl_azure.errors import DeploymentFailedError
from agl_azure.options import AzureOptions
from agl_http.addresses import is_loopback

ENDS = ("Failed", "Canceled", "Disabled", "Deleting")
"""States of a deployment that will not be ready."""


class _Retries(RetryPolicy):
    """The SDK's own, which waits as long as it is told."""

    def get_retry_after(self, response: Any) -> float | None:
        asked = super().get_retry_after(response)
        return asked and min(asked, MAX_PAUSE_SECONDS)


class Management(AzureClient):
    """Asks for deployments; ``keys`` need a login."""

    def __init__(self, options: AzureOptions, keys: Keys) -> None:
        super().__init__(options, keys)
        address = options.management_url
        # A bearer token goes over plain HTTP to this machine alone; elsewhere the SDK refuses.
        is_here = is_loopback(urlsplit(address).hostname or "")
        self._plain: dict[str, Any] = {"enforce_https": False} if is_here else {}
        self._where = options.resource_group, options.account
        self._client: Any = CognitiveServicesManagementClient(
            keys,
            options.subscription_id,
            base_url=address,
            credential_scopes=[f"{address.rstrip('/')}/.default"],
            retry_policy=_Retries(retry_total=MAX_RETRIES),
        )

    async def close(self) -> None:
        """Let go of connections."""
        await asyncio.to_thread(self._client.close)

    async def deploy(self, name: str, model: str) -> None:
        """Ask for a deployment; asking again for the same one changes nothing."""
        wanted = models.Deployment(
            sku=models.Sku(name=self.options.sku, capacity=self.options.capacity),
            properties=models.DeploymentProperties(
                model=models.DeploymentModel(format="OpenAI", name=model, version="1")
            ),
        )
        await self.ask(
            f"deploy {model!r} as {name!r}",
            self._call("begin_create_or_update", name, wanted, polling=False),
        )

    async def wait_for(self, name: str) -> None:
        """Return when a deployment answers calls.

        Raises:
            DeploymentFailedError: It never will.
            RemoteRefusalError: It took too long.
        """

        async def look() -> None:
            state = str((await self._call("get", name)).properties.provisioning_state)
            if state in ENDS:
                raise DeploymentFailedError(
                    f"AzureSFT: deployment {name!r} ended as {state}. Run again to deploy "
                    "the model once more (it is not trained again); where that does not help, its "
                    "kind (sku) may not be offered in the region of the resource"
                )
            if state != "Succeeded":
                raise NotYetError(state)

        seconds = self.options.deployment_timeout_seconds
        await self.until(look, f"deployment {name!r} to be ready", seconds)

    async def models(self) -> dict[str, str]:
        """Name of each deployment -> its model."""
        pages = await self.ask(
            f"list the deployments of {self.options.account!r}", self._call("list")
        )
        return {one.name: one.properties.model.name for one in pages}

    async def delete(self, name: str) -> None:
        """Delete a deployment and return when it is gone; one that is not there is no error."""
        await self.ask(
            f"delete deployment {name!r}", self._call("begin_delete", name, polling=False)
        )

        async def look() -> None:
            if name in await self.models():
                raise NotYetError("there")

        seconds = self.options.deployment_timeout_seconds
        await self.until(look, f"deployment {name!r} to be gone", seconds)

    async def _call(self, function: str, *given: Any, **options: Any) -> Any:
        """What a function of the SDK says of this resource; of pages, all that is in them."""

        def call() -> Any:
            answer = getattr(self._client.deployments, function)(
                *self._where, *given, **options, **self._plain
            )
            return list(answer) if function == "list" else answer

        return await asyncio.to_thread(call)
