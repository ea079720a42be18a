"""What a client of 0.1 gets in place of a model behind the proxy: the address of its attempt.

A runner of today opens such an address by itself. One of 0.1 knows ``endpoint`` alone, so the
resources that it fetches for a task are made for its attempt: their id has those of rollout and
attempt behind it.
"""

from agl import LightningStore, NamedResources, ProxyLLM, ResourcesUpdate
from agl.types import AttemptedRollout
from agl_gateway.client import HttpGatewayClient
from agl_http.tokens import issue_token

MARK = "~"
"""Between the ids; none of them has it."""


class Proxies:
    """Makes resources for attempts, and has the proxies store an attempt's calls before its end.

    Args:
        store: Where the resources are.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self._gateways = HttpGatewayClient()

    async def id_for(self, claimed: AttemptedRollout, resources_id: str | None) -> str | None:
        """The id under which the client of a task is to fetch its resources.

        Args:
            claimed: The task's rollout.
            resources_id: That of its resources; None for the newest.
        """
        update = await self._update(resources_id)
        if update is None or not _behind_proxies(update.resources):
            return resources_id
        return MARK.join((update.resources_id, claimed.rollout_id, claimed.attempt.attempt_id))

    async def resources(self, resources_id: str) -> ResourcesUpdate | None:
        """The resources of an id, which may be one of ``id_for``."""
        snapshot, *ids = resources_id.split(MARK)
        update = await self._update(snapshot)
        if update is None or len(ids) != 2:
            return update
        rollout = await self.store.get_rollout_by_id(ids[0])
        if not isinstance(rollout, AttemptedRollout) or rollout.attempt.attempt_id != ids[1]:
            return None  # another client has the task by now
        opened: NamedResources = dict(update.resources)
        behind = _behind_proxies(opened)
        self._gateways.note(rollout, behind)
        for name, one in behind.items():
            if one.asks_for_token:
                one = one.opened(await issue_token(self.store, "model", ids[0], ids[1]))
            opened[name] = one.of_attempt(ids[0], ids[1])
        return update.model_copy(update={"resources_id": resources_id, "resources": opened})

    async def end(self, rollout: AttemptedRollout) -> str | None:
        """Return when the calls of an attempt are stored; why they may not all be, if so."""
        failure = await self._gateways.end(rollout)
        return None if failure is None else str(failure)

    async def _update(self, resources_id: str | None) -> ResourcesUpdate | None:
        if resources_id is None:
            return await self.store.get_latest_resources()
        return await self.store.get_resources_by_id(resources_id)


def _behind_proxies(resources: NamedResources) -> dict[str, ProxyLLM]:
    return {name: one for name, one in resources.items() if isinstance(one, ProxyLLM)}
