"""The deployments of a run: one per version, few at a time, none forgotten.

A deployment of a fine-tuned model costs by the hour, used or not. So each is in the notes before
it is asked for, the oldest go before a new one comes, and the end of a run says which ones stay.
"""

import logging
from typing import TYPE_CHECKING

from agl.errors import AglError, ConfigError
from agl_azure.errors import DeploymentFailedError
from agl_azure.management import Management

if TYPE_CHECKING:
    from agl_learning.run.notes import Notes
    from agl_models.versions import Version
logger = logging.getLogger("agl.azure")


class Deployments:
    """Those of one run.

    Args:
        management: Of the resource.
        notes: Of the run.
    """

    def __init__(self, management: Management, notes: "Notes") -> None:
        self._management, self._notes = management, notes
        self._options = management.options

    async def ensure(self, version: "Version") -> str:
        """The name of a version's deployment; it answers calls when this returns.

        Raises:
            ConfigError: Something else has its name.
            AlgorithmError: Azure refused it, or it did not get ready.
        """
        name = f"{self._options.prefix}_v{version.number:02d}"
        there = (await self._management.models()).get(name)
        if there not in (None, version.ref) and name in self.names():
            await self._delete(name)  # of rollouts that were given up since
            there = None
        if there not in (None, version.ref):
            raise ConfigError(
                f"AzureSFT: deployment {name!r} is there already, with the model {there!r} and "
                f"not {version.ref!r} of this run. Give another deployment_name, or delete it"
            )
        if there is None:
            await self.prune(self._options.max_deployments - 1, keep=name)
        if name not in self.names():
            self._notes.append("deployed", name=name, model=version.ref)
        try:
            if there is None:
                logger.info("deploying %s as %s", version.ref, name)
                await self._management.deploy(name, version.ref)
            await self._management.wait_for(name)
        except DeploymentFailedError:
            await self._delete(name)
            raise
        except AglError:
            if name not in await self._management.models():  # it was refused: nothing is there
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

    async def _delete(self, name: str) -> None:
        logger.info("deleting deployment %s", name)
        await self._management.delete(name)
        self._notes.append("deployment deleted", name=name)
