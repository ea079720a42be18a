"""A process between the run and Ray: it keeps the actors, and tells the run what becomes of them.

Ray ends a process that loses its cluster, and survives no fork; so the run's own stays without it.
"""

import asyncio
import contextlib
import logging
import os
import re
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import agl
from agl.errors import ConfigError, StoreError
from agl_processes.runner_process import FINISHED
from agl_processes.supervisor import MAX_VAIN_STARTS, AllEnded, RunnerDied, RunnerStarted
from agl_ray.actor import LEFT, TOKENS, RunnerActor

LOOK_SECONDS = 1.0
"""How often the queue is looked at, and whether the run has ended while Ray connects."""
CONNECT_SECONDS = 15.0
"""Within them somebody must take a connection at the cluster's address."""


@dataclass(frozen=True)
class Job:
    """What a run asks of the cluster."""

    address: str
    runtime_env: dict[str, Any]
    actor_options: dict[str, Any]
    n_runners: int
    min_runners: int
    graceful_timeout: float
    work: tuple[Any, ...]  # for ``RunnerActor``
    reader_token: str


def start(run: Connection, run_pid: int) -> None:
    """Become a fresh interpreter, and call ``main`` in it."""
    os.setsid()  # what a terminal's signals mean, the run decides
    os.set_inheritable(run.fileno(), True)
    code = "from agl_ray.cluster import main; main()"
    # A Ray that begins here gives its actors what this process has.
    kept = {name: value for name, value in os.environ.items() if name not in TOKENS}
    os.execve(sys.executable, [sys.executable, "-c", code, str(run.fileno())], kept)


def main() -> None:
    """Keep the runners of a run, which sends a ``Job``, and "stop" last."""
    run = Connection(int(sys.argv[1]))
    job: Job | str = run.recv()
    if isinstance(job, str):  # "stop"
        return
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # every line of every runner, as under ``cs``
    because, connected = None, threading.Event()
    threading.Thread(target=_leave_with, args=(run, connected), daemon=True).start()
    try:
        if found := re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)/?", job.address):
            socket.create_connection((found[1], int(found[2])), timeout=CONNECT_SECONDS).close()
        import ray
        from ray.runtime_env import RuntimeEnv

        known = RuntimeEnv.known_fields
        if unknown := sorted(job.runtime_env.keys() - known):
            raise ConfigError(f"runtime_env has no {unknown[0]!r}. Known: {', '.join(known)}")
        for tries_left in (2, 1, 0):
            try:
                ray.init(job.address, runtime_env=job.runtime_env, logging_level=logging.WARNING)
                break
            except ConnectionAbortedError:  # Ray's server for this client: ray-project/ray#63202
                if not tries_left:
                    raise
        connected.set()
        actors = _Actors(job, run)
        asyncio.run(actors.keep())
        because = actors.because
        ray.shutdown()
    except Exception as error:
        because = f"the Ray cluster at {job.address}: {type(error).__name__}: {error}"
    run.send(AllEnded(because))


def _leave_with(run: Connection, connected: threading.Event) -> None:
    """End with the run, or as it says, while Ray connects: it may wait for ever."""
    while not connected.is_set():
        if run.poll(LOOK_SECONDS) and not connected.is_set():
            with contextlib.suppress(EOFError, OSError):
                run.recv()
                run.send(AllEnded(None))
            os._exit(1)


class _Actors:
    def __init__(self, job: Job, run: Connection) -> None:
        import ray

        self._ray, self._job, self._run = ray, job, run
        # Ray restarts none: each death is reported, and another actor takes its place, anywhere.
        options = {"max_restarts": 0, "max_concurrency": 3, **job.actor_options}
        self._actor = ray.remote(RunnerActor).options(**options)
        self._running: dict[int, Any] = {}
        self._starting: set[int] = set()
        self._queued, self._has_worked, self._end = 0, False, asyncio.Event()
        self.because: str | None = None
        """Why there are no actors, where Ray refuses them."""

    async def keep(self) -> None:
        """Keep the actors to the end."""
        asyncio.get_running_loop().add_reader(self._run.fileno(), self._hear)
        tasks = [asyncio.create_task(self._keep_one(one)) for one in range(self._job.n_runners)]
        following = asyncio.create_task(self._follow_queue())
        over = [asyncio.create_task(asyncio.wait(tasks)), asyncio.create_task(self._end.wait())]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        following.cancel()
        for number, task in enumerate(tasks):
            if number in self._running:
                self._running[number].stop.remote()
            else:  # its actor may have no place yet
                task.cancel()
        await asyncio.wait(tasks, timeout=self._job.graceful_timeout)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def _hear(self) -> None:
        try:
            self._run.recv()
        except (EOFError, OSError):  # it was killed, and the store is gone with it
            os._exit(1)
        self._end.set()

    async def _follow_queue(self) -> None:
        store = agl.LightningStoreClient(self._job.work[1], token=self._job.reader_token)
        while self._job.min_runners < self._job.n_runners:
            with contextlib.suppress(StoreError):
                queued = await store.query_rollouts(status_in=["queuing", "requeuing"], limit=1)
                self._queued = queued.total
            await asyncio.sleep(LOOK_SECONDS)

    async def _keep_one(self, number: int) -> None:
        """Have a runner of this number while there is work for it, until it has ended for good."""
        leaves = number >= self._job.min_runners
        vain_starts = 0
        while vain_starts < MAX_VAIN_STARTS and not self._end.is_set():
            while leaves and self._queued <= len(self._starting):  # noqa: ASYNC110 - no event
                await asyncio.sleep(LOOK_SECONDS)
            self._starting.add(number)
            actor: Any = None
            worked, pid, name = False, 0, "which had not begun"
            try:
                actor = self._actor.remote(number, leaves, *self._job.work)
                pid, name = await _answer(actor.start.remote())
                self._running[number] = actor
                self._run.send(RunnerStarted(number, pid, name))
                end = actor.run.remote()
                worked = await _answer(actor.has_begun.remote())
                self._has_worked |= worked
                self._starting.discard(number)
                why = await _answer(end)
            except asyncio.CancelledError:
                why = "it did not end within graceful_timeout" if pid else FINISHED
            except self._ray.exceptions.RayError as error:
                why = " ".join(str(getattr(error, "cause", error)).split())[:500]
            except Exception as error:
                if actor is not None:  # Ray is lost, and what ran is nobody's fault
                    traceback.print_exc()
                    os._exit(1)
                self.because = f"Ray starts no actor: {type(error).__name__}: {error}"
                self._end.set()
                return
            finally:
                self._running.pop(number, None)
                self._starting.discard(number)
                with contextlib.suppress(Exception):  # it is gone
                    self._ray.kill(actor)
            if why == FINISHED:
                return
            if why != LEFT:
                vain_starts = 0 if worked else vain_starts + 1
                given_up = vain_starts == MAX_VAIN_STARTS
                self._run.send(RunnerDied(number, pid, why, given_up, name=name))
        if not self._has_worked:  # nor would the others
            self._end.set()


async def _answer(reference: Any) -> Any:
    answer = asyncio.wrap_future(reference.future())
    # Ray answers also who has left, and then nobody asks for an error.
    answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
    return await asyncio.shield(answer)
