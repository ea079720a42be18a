"""Processes at a client that run an agent function on the rollouts of a job."""

import inspect
import logging
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil

import agl
from agl.plugins.parts import plan_part
from agl.types import AttemptedRollout, ProxyLLM, ResourcesUpdate
from agl_processes.tree import kill_descendants, start_group
from agl_service.errors import TrainingError
from agl_service.runtime import air, traced


@dataclass
class Resource:
    """What an agent function gets beside its task."""

    model_api: str
    """Address of the model for this rollout, for clients of OpenAI and Anthropic; any key does."""
    model_name: str
    task_id: str
    worker_id: int
    metadata: dict[str, Any]
    """``metadata`` of the task, ``mode`` (train, val), ``rollout_id``, ``sampling_parameters``."""


class Task(dict[str, Any]):
    """A task as uploaded: its fields by attribute and by key."""

    def __getattribute__(self, name: str) -> Any:
        if dict.__contains__(self, name):  # also one called as a method of a dict, as ``items``
            return self[name]
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name == "ground_truth":
            return None
        raise AttributeError(f"the task has no {name!r}; it has {', '.join(self)}")


class JobStore(agl.LightningStoreClient):
    """The store of a job; the job's model is where this client reaches the server."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(f"{url}/store", token=token)
        self._model_url = f"{url}/model"
        self._known: dict[str, ResourcesUpdate] = {}

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        # Each start of the job makes them anew, as they were but for the endpoint.
        if resources_id in self._known:
            return self._known[resources_id]
        if (found := await super().get_resources_by_id(resources_id)) is None:
            return None
        here = {
            name: one.model_copy(
                update={"endpoint": self._model_url + urlsplit(vars(one)["endpoint"]).path}
            )
            for name, one in found.resources.items()
            if isinstance(one, ProxyLLM)
        }
        self._known = {resources_id: found.model_copy(update={"resources": found.resources | here})}
        return self._known[resources_id]


SHORT_SECONDS, SHORT_LIVES = 10.0, 3
Agent = Callable[[Resource, Task], Any]


def to_lit_agent(function: Agent) -> agl.LitAgent[Any]:
    """An agent of agl that calls a function of ``(resource, task)``, plain or coroutine."""

    def call(task: Any, llm: agl.LLM, rollout: AttemptedRollout) -> Any:
        task_id = str(task.get("task_id", rollout.rollout_id))
        own = task.get("metadata")
        about = {**own} if isinstance(own, dict) else {}
        about |= {"mode": rollout.mode, "rollout_id": rollout.rollout_id}
        about["sampling_parameters"] = llm.sampling_parameters
        worker = agent.get_runner().worker_id
        return function(Resource(llm.endpoint, llm.model, task_id, worker, about), Task(task))

    def run(task: Any, llm: agl.LLM, rollout: AttemptedRollout) -> Any:
        reward = call(task, llm, rollout)
        air.reward()
        return reward

    async def run_async(task: Any, llm: agl.LLM, rollout: AttemptedRollout) -> Any:
        reward = await call(task, llm, rollout)
        air.reward()
        return reward

    calls = (function, getattr(function, "__call__", None))  # noqa: B004
    is_async = any(map(inspect.iscoroutinefunction, calls))
    agent: Any = agl.rollout(run_async if is_async else run)
    return agent


class Workers:
    """``number`` processes that run an agent, for jobs of a server; -1 for four per core."""

    def __init__(self, function: Agent, number: int, server_url: str) -> None:
        self._agent, self._server_url = to_lit_agent(function), server_url
        self._tracer = plan_part("tracer", traced["tracer"], where="auto_instrument").build()
        self._number = 4 * (os.cpu_count() or 1) if number == -1 else number
        self._process: Any = None
        self._begun, self._short_lives = -math.inf, 0

    def keep(self, path: str, token: str) -> None:
        """Have them run for the job at a path; they have ended if the store was away for long.

        Raises:
            TrainingError: They end as soon as they have begun.
        """
        if self._process is None or not self._process.is_alive():
            is_short = time.monotonic() - self._begun < SHORT_SECONDS
            self._short_lives = self._short_lives + 1 if is_short else 0
            if self._short_lives == SHORT_LIVES:
                code = getattr(self._process, "exitcode", None)
                raise TrainingError(
                    f"the workers ended {SHORT_LIVES} times within {SHORT_SECONDS:g} s, with exit "
                    f"code {code}; what they said stands above"
                )
            self._begun = time.monotonic()
            fork = multiprocessing.get_context("fork")
            self._process = fork.Process(target=self._work, args=(os.getpid(), path, token))
            self._process.start()

    def _work(self, parent: int, path: str, token: str) -> None:
        start_group(parent)
        logging.getLogger("agl.server").setLevel(logging.ERROR)  # the client says if it is away
        store = JobStore(self._server_url + path, token)
        made = agl.Trainer(
            store=store,
            strategy={"type": "cs", "role": "runner"},
            tracer=self._tracer,
            n_runners=self._number,
        )
        made.fit(self._agent)

    def end(self, *, at_once: bool) -> None:
        """End them: at once if the job is over, else when running rollouts have ended."""
        if self._process is not None and self._process.is_alive():
            if at_once:
                kill_descendants(psutil.Process(self._process.pid), itself=True)
            self._process.terminate()
            self._process.join()
