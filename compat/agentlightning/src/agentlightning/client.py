"""0.1's client of a task server, and what stands in for one in process."""

import asyncio
import json
import logging
import os
import time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from agentlightning.types.core import RolloutLegacy, Task, TaskIfAny
from agl import NamedResources, ResourcesUpdate
from agl.errors import ConfigError
from agl.utils.secrets import learn
from agl_http.tokens import without_token

logger = logging.getLogger(__name__)

RETRY_SECONDS = (1.0, 2.0, 5.0)
"""Pauses of a request that could not be delivered, before it is given up."""
HEADER = {"X-AgentLightning-Client": "true"}
"""What every client of 0.1 sends, and no page in a browser can without asking."""


class AgentLightningClient:
    """Takes tasks from a server of 0.1, and reports what came of them.

    A request that cannot be delivered is sent again for some seconds; what is not delivered even
    then is logged, and the method returns None, as in 0.1. Polling goes on for ever.

    Args:
        endpoint: Address of the server. A token may stand in it: ``http://agl:TOKEN@host:8000``;
            one of ``AGL_SERVER_TOKEN`` is used where none does.
        poll_interval: Seconds between looks for a task while there is none.
        timeout: Seconds for a request.
    """

    def __init__(self, endpoint: str, poll_interval: float = 5.0, timeout: float = 10.0) -> None:
        self.endpoint = endpoint
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.task_count = 0
        """How many tasks it has taken."""
        self.address, token = without_token(endpoint)
        """The endpoint without its token."""
        token = token or os.environ.get("AGL_SERVER_TOKEN")
        learn(token)
        self._headers = HEADER | ({"Authorization": f"Bearer {token}"} if token else {})
        self._resource_cache: dict[str, ResourcesUpdate] = {}

    # --- tasks

    def poll_next_task(self) -> Task | None:
        """The next task, as soon as there is one.

        Raises:
            ConfigError: The server refuses this client, or is no server of 0.1.
        """
        while True:
            task = self._task_in(self._request("/task"))
            if task is not None:
                return task
            time.sleep(self.poll_interval)

    async def poll_next_task_async(self) -> Task | None:
        while True:
            task = self._task_in(await asyncio.to_thread(self._request, "/task"))
            if task is not None:
                return task
            await asyncio.sleep(self.poll_interval)

    def _task_in(self, answer: Any) -> Task | None:
        task = TaskIfAny.model_validate(answer).task if answer else None
        if task is not None:
            self.task_count += 1
            logger.info("Task %d: %s", self.task_count, task.rollout_id)
        return task

    # --- resources

    def get_resources_by_id(self, resource_id: str) -> ResourcesUpdate | None:
        """The resources of this id; None where the server has none. Asked for once."""
        if resource_id not in self._resource_cache:
            self._keep(self._request(f"/resources/{quote(resource_id, safe='')}"))
        return self._resource_cache.get(resource_id)

    async def get_resources_by_id_async(self, resource_id: str) -> ResourcesUpdate | None:
        return await asyncio.to_thread(self.get_resources_by_id, resource_id)

    def get_latest_resources(self) -> ResourcesUpdate | None:
        """The newest resources; None where the server has none."""
        return self._keep(self._request("/resources/latest"))

    async def get_latest_resources_async(self) -> ResourcesUpdate | None:
        return await asyncio.to_thread(self.get_latest_resources)

    def _keep(self, answer: Any) -> ResourcesUpdate | None:
        if answer is None:
            return None
        update = ResourcesUpdate.model_validate(answer)
        self._resource_cache[update.resources_id] = update
        return update

    # --- reports

    def post_rollout(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Report what came of a task; the server's answer."""
        return self._request("/rollout", rollout.model_dump(mode="json"))

    async def post_rollout_async(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        return await asyncio.to_thread(self.post_rollout, rollout)

    # --- requests

    def _request(self, path: str, body: Any = None) -> Any:
        is_poll = path == "/task"  # who asks for a task asks again anyway
        for pause in (0.0,) if is_poll else (*RETRY_SECONDS, 0.0):
            try:
                return self._once(path, body)
            except OSError as error:
                following = f"again in {pause:g} seconds" if pause else "given up"
                logger.log(
                    logging.WARNING if pause or is_poll else logging.ERROR,
                    "%s%s could not be reached (%s); %s",
                    self.address,
                    path,
                    error,
                    "polling goes on" if is_poll else following,
                )
            time.sleep(pause)
        return None

    def _once(self, path: str, body: Any) -> Any:
        """One request; None where the server does not have what is asked for.

        If asking again may help, the error is an ``OSError``, else a ``ConfigError``.
        """
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        url = self.address.rstrip("/") + path
        try:
            with urlopen(
                Request(url, data, headers=self._headers | kind), timeout=self.timeout
            ) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                said = error.read(2000).decode(errors="replace")
            if error.code == 404 and path.startswith("/resources/"):
                return None
            if error.code == 409:
                logger.warning("%s: %s", url, said)
                return None
            if error.code >= 500:
                raise OSError(f"{error.code} {said}") from None
            raise ConfigError(
                f"{url} answers {error.code}: {said}. Expected a server of 0.1 "
                "(AgentLightningServer); a token goes into its address, as http://agl:TOKEN@host, "
                "or into AGL_SERVER_TOKEN. A store's server is given to a trainer as "
                "Trainer(store=LightningStoreClient(...))"
            ) from None


class DevTaskLoader(AgentLightningClient):
    """Tasks and resources from a list, as if a server had them: over and over again, in turn.

    Args:
        tasks: What agents get as tasks, or whole ``Task`` records; not both.
        resources: What every task gets.
        **kwargs: See ``AgentLightningClient``.

    Raises:
        ValueError: There are no tasks, or both kinds.
    """

    def __init__(
        self,
        tasks: list[Any] | list[Task],
        resources: NamedResources | ResourcesUpdate,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs.pop("endpoint", "local://"), **kwargs)
        if not tasks:
            raise ValueError("DevTaskLoader: there are no tasks; give one or more")
        if len({isinstance(task, Task) for task in tasks}) > 1:
            raise ValueError(
                "DevTaskLoader: some tasks are Task records, and some are not; give one kind"
            )
        if not isinstance(resources, ResourcesUpdate):
            now = time.time()
            resources = ResourcesUpdate(
                resources_id="local",
                create_time=now,
                update_time=now,
                version=1,
                resources=resources,
            )
        self._update = resources
        self._tasks = tasks
        self._rollouts: list[RolloutLegacy] = []

    @property
    def rollouts(self) -> list[RolloutLegacy]:
        """What was reported."""
        return self._rollouts

    def _once(self, path: str, body: Any) -> Any:
        """What a server would answer; a ``ValueError`` for resources of another id."""
        if path == "/task":
            index = self.task_count % len(self._tasks)
            task = self._tasks[index]
            if not isinstance(task, Task):
                task = Task(
                    rollout_id=f"local_task_{index + 1:03d}",
                    input=task,
                    resources_id=self._update.resources_id,
                    create_time=time.time(),
                )
            return {"is_available": True, "task": task}
        resources_id = unquote(path.removeprefix("/resources/"))
        if resources_id not in ("latest", self._update.resources_id):
            known = self._update.resources_id
            raise ValueError(f"DevTaskLoader: no resources {resources_id!r}; it has {known!r}")
        return self._update

    def post_rollout(self, rollout: RolloutLegacy) -> dict[str, Any] | None:
        """Keep a report in ``rollouts``."""
        self._rollouts.append(rollout)
        return {"status": "received", "rollout_id": rollout.rollout_id}

    def __repr__(self) -> str:
        return f"DevTaskLoader(num_tasks={len(self._tasks)}, resources={self._update.resources})"
