"""An actor on a node, and the process that it starts, which forks runners as ``cs`` does.

That process is apart because Ray's has threads and connections that no fork may inherit.
"""

import asyncio
import contextlib
import math
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import agl
from agl.env import TOKENS
from agl.errors import StoreDiskError, StoreError
from agl.execution.base import AT_WORK, RunnerBundle
from agl.store.forwarding import StandInStore
from agl.utils.life_cycle import worker_name
from agl.utils.logs import setup_logging
from agl_processes.runner_process import FINISHED, WORKING, Tell, run_as_process
from agl_processes.supervisor import AllEnded, Report, RunnerDied, Runners
from agl_processes.tree import start_group

IDLE_SECONDS = 10.0
"""Runners of an actor that all claim so long in vain leave."""
LEFT = "left"


@dataclass(frozen=True)
class Work:
    """What an actor is for."""

    numbers: range
    """The numbers of its runners."""
    leaves: bool
    """Whether it ends when they have nothing to do."""
    pickled: bytes
    store_url: str
    token: str
    path: list[str]
    variables: dict[str, str]
    log_level: int
    timeouts: tuple[float, float]


class RunnerActor:
    """Passes on what its process reports; Ray calls two of its methods at once."""

    def __init__(self, work: Work) -> None:
        start_group(os.getppid())  # Ray's own end of an actor may wait for the call that it is in
        self._numbers = work.numbers
        self._pipe, theirs = multiprocessing.Pipe()
        about = {name: value for name, value in os.environ.items() if name not in TOKENS}
        path = os.pathsep.join(filter(None, [*sys.path, *work.path]))
        about |= {**work.variables, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", "from agl_ray.actor import main; main()"]
        fd = theirs.fileno()
        subprocess.Popen([*command, str(fd)], pass_fds=[fd], env=about)
        theirs.close()
        self._pipe.send(work)

    def report(self) -> Report | str:
        """What happens next; at last ``FINISHED``, ``LEFT``, or why it cannot begin."""
        try:
            report: Report | str = self._pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # Ray says that it died, and so have its runners
        if isinstance(report, AllEnded | str):
            return report
        number = self._numbers[report.worker_id]
        if isinstance(report, RunnerDied):
            # A store that cannot be reached may be away for this node alone; not so a full disk.
            is_full = report.message.startswith(StoreDiskError.__name__)
            report = replace(report, store_away=report.store_away and is_full)
        return replace(report, worker_id=number, name=worker_name(number, report.pid))

    def stop(self) -> None:
        """Claim no more, and finish."""
        self._pipe.send("stop")


def main() -> None:
    """Be the process that forks an actor's runners."""
    parent, actor = os.getppid(), Connection(int(sys.argv[1]))
    work: Work = actor.recv()
    setup_logging(work.log_level)
    how = "Ship the agent's code with runtime_env: {working_dir: FOLDER, pip: [...]}"
    try:
        runner: RunnerBundle = pickle.loads(work.pickled)
        asyncio.run(_reach(work))
    except Exception as error:
        if isinstance(error, StoreError):
            how = "Set server_host to an address of the driver's machine that nodes reach"
        if isinstance(error, StoreDiskError):
            how = "Free space on the disk of the store"
        why = f"{type(error).__name__}: {error}. {how}"
        actor.send(f"ConfigError: node {socket.gethostname()}: {why}")
        return
    fork = multiprocessing.get_context("fork")
    stop = agl.MultiprocessingEvent(ctx=fork)
    idle_since = fork.RawArray("d", [math.inf] * len(work.numbers))

    def run(place: int, tell: Tell) -> None:
        async def serve() -> None:
            client: agl.LightningStore
            client = agl.LightningStoreClient(work.store_url, token=work.token)
            if work.leaves:
                client = _LeavingStore(client, idle_since, place)
            with contextlib.suppress(_LeftError):
                await runner(client, work.numbers[place], stop)

        AT_WORK.set(lambda: tell(WORKING))
        run_as_process(serve, tell)

    Runners(fork, run, len(work.numbers), stop, *work.timeouts).supervise(actor, parent)
    with contextlib.suppress(OSError):  # the actor has gone
        actor.send(LEFT if max(idle_since) < math.inf else FINISHED)


async def _reach(work: Work) -> None:
    client = agl.LightningStoreClient(work.store_url, token=work.token)
    await client.check_health()
    await client.close()


class _LeftError(Exception):
    """A runner has nothing to do any more, and so have those beside it."""


class _LeavingStore(StandInStore):
    """A runner's store, which ends it when all runners of its actor have been idle for a while."""

    def __init__(self, store: agl.LightningStore, idle_since: Any, place: int) -> None:
        super().__init__(store)
        self._idle_since, self._place = idle_since, place
        idle_since[place] = math.inf

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        if operation != "dequeue_many_rollouts":
            return await super().call(operation, arguments)
        began = min(time.monotonic(), self._idle_since[self._place])
        arguments["wait_seconds"] = min(arguments["wait_seconds"], IDLE_SECONDS)
        answer = await super().call(operation, arguments)
        if not answer and time.monotonic() - began >= IDLE_SECONDS:
            worker = await self._store.get_worker_by_id(arguments["worker_id"])
            if worker is not None and worker.current_rollout_id is not None:
                began = math.inf
        self._idle_since[self._place] = math.inf if answer else began
        if time.monotonic() - max(self._idle_since) >= IDLE_SECONDS:
            raise _LeftError
        return answer
