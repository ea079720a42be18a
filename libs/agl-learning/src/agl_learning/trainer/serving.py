"""The newest version of the model answers agents, through the gateway."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from agl_models.gateways import entry_of, model_served
from agl_models.versions import Served, Version

if TYPE_CHECKING:
    from agl_learning.trainer.base import ServedModel, Training


class Serving:
    """Serves a trainer's newest version from when it is asked for until ``end``.

    Args:
        training: Says what it serves.
    """

    def __init__(self, training: "Training") -> None:
        self._training = training
        self._lock = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._resources: dict[str, str] | None = None
        self._served = Served({})

    async def resources(self) -> dict[str, str]:
        """Have the newest version answer; ids of the resources per mode."""
        async with self._lock:  # a source may ask several times at once
            if self._resources is None:
                published = self._published(self._training.version)
                self._resources = await self._stack.enter_async_context(published)
            return self._resources

    async def end(self) -> None:
        """End it, where one is served."""
        self._resources = None
        await self._stack.aclose()

    async def why_silent(self) -> str | None:
        """Why what was served last answers no more; None as long as it may answer."""
        return await self._served.why_silent()

    @contextlib.asynccontextmanager
    async def _published(self, version: Version) -> AsyncGenerator[dict[str, str]]:
        training = self._training
        gateway, store = training.session.gateway, training.get_store()
        async with training.serve(version) as self._served, contextlib.AsyncExitStack() as stack:
            models = training.models_served(self._served)
            for one in models:
                entry = entry_of(one.name, one.litellm_params, one.sampling, one.forced)
                await stack.enter_async_context(model_served(gateway, entry, store))
            # What trains comes last: those are the latest resources of the store.
            yield {mode: await self._publish(version, mode, models) for mode in ("val", "train")}

    async def _publish(self, version: Version, mode: str, models: "list[ServedModel]") -> str:
        training = self._training
        resources = {**(training.get_initial_resources() or {})}
        for one in models:
            resources[one.resource] = training.session.gateway.as_resource(
                model=one.name, sampling_parameters=one.sampling[mode]
            )
        resources_id = f"{training.name}-{training.session.run_id}-{version.number}-{mode}"
        return (await training.publish_resources(resources, resources_id)).resources_id
