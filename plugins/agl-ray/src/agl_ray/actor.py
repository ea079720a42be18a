"""On a node: an actor, which is a runner."""

import asyncio
import os
import pickle
import socket
import sys
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import agl
from agl.env import LightningEnvVar
from agl.errors import ConfigError, StoreError
from agl.execution.base import AT_WORK, RunnerBundle, ThreadingEvent
from agl.store.forwarding import StandInStore
from agl.utils.life_cycle import worker_name
from agl.utils.logs import setup_logging
from agl_processes.runner_process import FINISHED
from agl_processes.tree import start_group

IDLE_SECONDS = 10.0
"""A runner that claims so long in vain leaves."""
LEFT = "left"
TOKENS = (LightningEnvVar.AGL_SERVER_TOKEN.value, LightningEnvVar.AGL_GATEWAY_TOKEN.value)
"""Variables that no agent gets."""


@dataclass(repr=False)  # Ray's lines would begin with it
class RunnerActor:
    """A runner; Ray calls three of its methods at once."""

    worker_id: int
    leaves: bool  # when it has nothing to do
    pickled: bytes
    store_url: str
    token: str
    path: list[str]
    variables: dict[str, str]
    log_level: int

    def __post_init__(self) -> None:
        start_group(os.getppid())  # Ray's own end of an actor may wait for the call that it is in
        setup_logging(self.log_level)
        sys.path += self.path
        os.environ.update(self.variables)
        for name in TOKENS:
            os.environ.pop(name, None)
        self._stop, self._began = ThreadingEvent(), SimpleQueue[bool]()

    def start(self) -> tuple[int, str]:
        """Import the agent and reach the store; process id, and name in the store."""
        how = "Ship the agent's code with runtime_env: {working_dir: ., pip: [...]}"
        try:
            self._runner: RunnerBundle = pickle.loads(self.pickled)
            asyncio.run(_reach(self.store_url, self.token))
        except Exception as error:
            if isinstance(error, StoreError):
                how = "Set server_host to an address of the driver's machine that nodes reach"
            why = f"{type(error).__name__}: {error}. {how}"
            raise ConfigError(f"node {socket.gethostname()}: {why}") from None
        return os.getpid(), worker_name(self.worker_id)

    def run(self) -> str:
        """Run to the end: ``FINISHED``, ``LEFT``, or what the runner died of."""
        client = agl.LightningStoreClient(self.store_url, token=self.token)
        store = _LeavingStore(client, self._stop) if self.leaves else client
        AT_WORK.set(lambda: self._began.put(True))
        try:
            asyncio.run(self._runner(store, self.worker_id, self._stop))
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self._began.put(False)
        return LEFT if isinstance(store, _LeavingStore) and store.has_left else FINISHED

    def has_begun(self) -> bool:
        """Whether it has begun to serve the queue; waits until it has, or has ended."""
        return self._began.get()

    def stop(self) -> None:
        """Claim no more, and finish."""
        self._stop.set()


async def _reach(store_url: str, token: str) -> None:
    # No method: Ray would take the actor for one of coroutines.
    client = agl.LightningStoreClient(store_url, token=token)
    await client.check_health()
    await client.close()


class _LeavingStore(StandInStore):
    """A runner's store, which stops a runner that has been idle for a while."""

    has_left = False

    def __init__(self, store: agl.LightningStore, stop: ThreadingEvent) -> None:
        super().__init__(store)
        self._stop = stop
        self._idle_since: float | None = None

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        if operation != "dequeue_many_rollouts":
            return await super().call(operation, arguments)
        self._idle_since = self._idle_since or time.monotonic()
        arguments["wait_seconds"] = min(arguments["wait_seconds"], IDLE_SECONDS)
        answer = await super().call(operation, arguments)
        if answer:
            self._idle_since = None
        elif time.monotonic() - self._idle_since >= IDLE_SECONDS:
            worker = await self._store.get_worker_by_id(arguments["worker_id"])
            if worker is None or worker.current_rollout_id is None:
                self.has_left = True
                self._stop.set()
        return answer
