"""The deployments of a run: one per version, few at a time, none forgotten.

A deployment of a fine-tuned model costs by the hour, used or not. So each is in the notes before
it is asked for, the oldest go before a new one comes, and the end of a run says which ones stay.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.core.pipeline.policies import RetryPolicy
from azure.mgmt.cognitiveservices import CognitiveServicesManagementClient, models

from agl.errors import AglError, ConfigError
from agl_azure.client import MAX_PAUSE_SECONDS, MAX_RETRIES, AzureClient, Keys, NotYetError
from agl_azure.errors import DeploymentFailedError
from agl_azure.options import AzureOptions
from agl_http.addresses import is_loopback

if TYPE_CHECKING:
    from agl_learning.run.notes import Notes
    from agl_models.versions import Version

logger = logging.getLogger("agl.azure")

ENDS = ("Failed", "Canceled", "Disabled", "Deleting")
"""States of a deployment that will not be ready."""


class _Retries(RetryPolicy):
    """The SDK's own, which waits as long as it is told."""

    def get_retry_after(self, response: Any) -> float | None:
        asked = super().get_retry_after(response)
        return asked and min(asked, MAX_PAUSE_SECONDS)


class Deployments(AzureClient):
    """Those of one run, through Azure's SDK for its management address.

    Args:
        keys: With a login.
    """

    def __init__(self, options: AzureOptions, keys: Keys, notes: "Notes") -> None:
        super().__init__(options, keys)
        self._notes = notes
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

    async def ensure(self, version: "Version") -> str:
        """The name of a version's deployment; it answers calls when this returns.

        Raises:
            ConfigError: Something else has its name.
            AlgorithmError: Azure refused it, or it did not get ready.
        """
        name = f"{self.options.prefix}_v{version.number:02d}"
        there = (await self.models()).get(name)
        if there not in (None, version.ref) and name in self.names():
            await self._delete(name)  # of rollouts that were given up since
            there = None
        if there not in (None, version.ref):
            raise ConfigError(
                f"AzureSFT: deployment {name!r} is there already, with the model {there!r} and "
                f"not {version.ref!r} of this run. Give another deployment_name, or delete it"
            )
        if there is None:
            await self.prune(self.options.max_deployments - 1, keep=name)
        if name not in self.names():
            self._notes.append("deployed", name=name, model=version.ref)
        try:
            if there is None:
                logger.info("deploying %s as %s", version.ref, name)
                await self._deploy(name, version.ref)
            await self._wait_for(name)
        except DeploymentFailedError:
            await self._delete(name)
            raise
        except AglError:
            if name not in await self.models():  # it was refused: nothing is there
                self._notes.append("deployment deleted", name=name)
            raise
        return name

    def names(self) -> list[str]:
        """Those that have not been deleted, oldest first."""
        names: list[str] = []
        for entry in self._notes.entries:
            if entry["event"] == "deployed":
                names.append(entry["name"])
            elif entry["event"] == "deployment deleted" and entry["name"] in names:
                names.remove(entry["name"])
        return names

    async def prune(self, most: int, keep: str | None = None) -> None:
        """Delete the oldest until there are at most so many, ``keep`` not counted."""
        names = [name for name in self.names() if name != keep]
        for name in names[: max(0, len(names) - most)]:
            await self._delete(name)

    async def models(self) -> dict[str, str]:
        """Name of each deployment -> its model."""
        pages = await self.ask(
            f"list the deployments of {self.options.account!r}", self._call("list")
        )
        return {one.name: one.properties.model.name for one in pages}

    async def _deploy(self, name: str, model: str) -> None:
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

    async def _wait_for(self, name: str) -> None:
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

    async def _delete(self, name: str) -> None:
        """Return when it is gone; one that is not there is no error."""
        logger.info("deleting deployment %s", name)
        await self.ask(
            f"delete deployment {name!r}", self._call("begin_delete", name, polling=False)
        )

        async def look() -> None:
            if name in await self.models():
                raise NotYetError("there")

        seconds = self.options.deployment_timeout_seconds
        await self.until(look, f"deployment {name!r} to be gone", seconds)
        self._notes.append("deployment deleted", name=name)

    async def _call(self, function: str, *given: Any, **options: Any) -> Any:
        """What a function of the SDK says of this resource; of pages, all that is in them."""

        def call() -> Any:
            answer = getattr(self._client.deployments, function)(
                *self._where, *given, **options, **self._plain
            )
            return list(answer) if function == "list" else answer

        return await asyncio.to_thread(call)
