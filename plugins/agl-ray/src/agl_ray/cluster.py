"""A process between the run and Ray: it keeps the actors, and tells the run what becomes of them.

Ray ends a process that loses its cluster, and survives no fork; so the run's own stays without it.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import re
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import agl
from agl.env import TOKENS
from agl.errors import ConfigError, StoreUnavailableError
from agl.utils.logs import setup_logging
from agl.utils.text import capped
from agl_processes.runner_process import FINISHED
from agl_processes.supervisor import MAX_VAIN_STARTS, AllEnded, RunnerDied, RunnerStarted
from agl_ray.actor import LEFT, RunnerActor, Work

logger = logging.getLogger("agl.ray")

LOOK_SECONDS = 1.0
"""How often the queue is looked at, and whether the run has ended while Ray connects."""
CONNECT_SECONDS = 15.0
"""How long the cluster's address may take to accept a connection."""
ROOM_SECONDS = 10.0
"""How long an actor may wait for a place before the run says so."""
END_SECONDS = 3.0
"""How much longer than its runners an actor may take to end."""


@dataclass(frozen=True)
class Job:
    """What a run asks of the cluster."""

    address: str
    runtime_env: dict[str, Any]
    actor_options: dict[str, Any]
    n_runners: int
    min_runners: int
    runners_per_actor: int
    work: Work
    """The work of all runners; each actor gets the numbers of its own."""
    reader_token: str
    is_served: bool  # the store is the run's, so that its runners are all there are


def start(run: Connection, run_pid: int) -> None:
    """Become a fresh interpreter, and call ``main`` in it."""
    os.setsid()  # what a terminal's signals mean, the run decides
    os.set_inheritable(run.fileno(), True)
    code = "from agl_ray.cluster import main; main()"
    # A Ray that begins here gives its actors what this process has.
    variables = {name: value for name, value in os.environ.items() if name not in TOKENS}
    os.execve(sys.executable, [sys.executable, "-c", code, str(run.fileno())], variables)


def main() -> None:
    """Keep the runners of a run, which sends a ``Job``, and "stop" last."""
    run = Connection(int(sys.argv[1]))
    job: Job | str = run.recv()
    if isinstance(job, str):  # "stop"
        return
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # every line of every runner, as under ``cs``
    setup_logging(job.work.log_level)
    because, connected = None, threading.Event()
    threading.Thread(target=_leave_with, args=(run, connected), daemon=True).start()
    try:
        if match := re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)/?", job.address):
            socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()
        import ray
        from ray.runtime_env import RuntimeEnv

        known = RuntimeEnv.known_fields
        if unknown := sorted(job.runtime_env.keys() - known):
            raise ConfigError(f"runtime_env has no {unknown[0]!r}. Known: {', '.join(known)}")
        options: Any = {"runtime_env": job.runtime_env, "logging_level": logging.WARNING}
        if job.address == "local":
            options["include_dashboard"] = False  # its processes may outlive the run
        for tries_left in (2, 1, 0):
            try:
                ray.init(job.address, **options)
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


_ROOT = re.compile(r"^[\w.]+(?:Error|Exception): .+", re.M)


class _Actors:
    def __init__(self, job: Job, run: Connection) -> None:
        import ray

        self._ray, self._job, self._run = ray, job, run
        # Ray restarts none: each death is reported, and another actor takes its place, anywhere.
        options = {"max_restarts": 0, "max_concurrency": 2, **job.actor_options}
        self._actor = ray.remote(RunnerActor).options(**options)
        self._actors: dict[int, Any] = {}
        """Each that Ray has taken, by the first of its runners."""
        self._starting: dict[int, int] = {}
        """How many runners are on their way."""
        self._store = agl.LightningStoreClient(job.work.store_url, token=job.reader_token)
        self._queued, self._has_run, self._end = 0, False, asyncio.Event()
        self.because: str | None = None
        """Why there are no actors, where Ray refuses them."""

    async def keep(self) -> None:
        """Keep the actors to the end."""
        asyncio.get_running_loop().add_reader(self._run.fileno(), self._hear)
        job, size = self._job, self._job.runners_per_actor
        bounds = 0, job.min_runners, job.n_runners
        tasks = {
            first: asyncio.create_task(self._keep_one(range(first, min(first + size, end))))
            for begin, end in itertools.pairwise(bounds)
            for first in range(begin, end, size)
        }
        beside = [asyncio.create_task(one) for one in (self._follow_queue(), self._look_for_room())]
        for task in (*beside, *tasks.values()):
            task.add_done_callback(self._end_with)
        over = asyncio.wait(tasks.values()), self._end.wait()
        await asyncio.wait(map(asyncio.create_task, over), return_when=asyncio.FIRST_COMPLETED)
        self._end.set()
        for task in beside:
            task.cancel()
        answers = {first: _answer(one.stop.remote()) for first, one in self._actors.items()}
        if answers:
            await asyncio.wait(answers.values(), timeout=END_SECONDS)
        for first, task in tasks.items():
            if first not in answers or not answers[first].done():  # its actor may have no place yet
                task.cancel()
        await asyncio.wait(tasks.values(), timeout=sum(job.work.timeouts) + END_SECONDS)
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())

    def _hear(self) -> None:
        try:
            self._run.recv()
        except (EOFError, OSError):  # it was killed, and the store is gone with it
            os._exit(1)
        self._end.set()

    def _end_with(self, task: asyncio.Task[None]) -> None:
        """End with the error of a task: without it, runners would not come any more."""
        if not task.cancelled() and (error := task.exception()) and not self._end.is_set():
            self.because = f"{type(error).__name__}: {error}"
            self._end.set()

    async def _follow_queue(self) -> None:
        while self._job.min_runners < self._job.n_runners:
            with contextlib.suppress(StoreUnavailableError):
                query = self._store.query_rollouts(status_in=["queuing", "requeuing"], limit=1)
                self._queued = (await query).total
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_for_room(self) -> None:
        """Say once that runners wait for a place; Ray itself says little of it."""
        waiting: set[int] = set()
        while not waiting:
            began = set(self._starting)
            await asyncio.sleep(ROOM_SECONDS)
            waiting = began & set(self._starting)
        options = self._job.actor_options
        needed = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
        needed["memory"] = options["memory"]
        needed = {name: amount for name, amount in needed.items() if amount}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        has = "; ".join(str({name: node.get(name, 0) for name in needed}) for node in nodes[:8])
        number, size = sum(self._starting.values()), self._job.runners_per_actor
        why = (
            f"{number} of {self._job.n_runners} runners have had no place for {ROOM_SECONDS:g} s. "
            f"An actor of {size} takes {needed}; nodes of {self._job.address} have {has}"
        )
        fits = any(all(node.get(one, 0) >= needed[one] for one in needed) for node in nodes)
        if self._job.address == "local" and not fits:  # and no node will come
            self.because = f"{why}. Lower strategy.resources"
            self._end.set()
        else:
            logger.warning("%s. They start once there is room", why)

    async def _keep_one(self, numbers: range) -> None:
        """Have an actor of these runners while there is work for it, until they end for good."""
        first, leaves = numbers[0], numbers[0] >= self._job.min_runners
        vain_starts, why = 0, LEFT
        while vain_starts < MAX_VAIN_STARTS and why != FINISHED and not self._end.is_set():
            while leaves and self._queued <= sum(self._starting.values()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(LOOK_SECONDS)
            self._starting[first] = len(numbers)
            actor: Any = None
            running = dict[int, RunnerStarted]()
            try:
                actor = self._actor.remote(replace(self._job.work, numbers=numbers, leaves=leaves))
                self._actors[first] = actor
                while not isinstance(report := await _answer(actor.report.remote()), str):
                    running.pop(getattr(report, "worker_id", -1), None)
                    if isinstance(report, RunnerStarted):
                        running[report.worker_id] = report
                        self._has_run = True
                        self._starting.pop(first, None)
                    if not isinstance(report, AllEnded):
                        self._run.send(report)
                why = report
            except asyncio.CancelledError:
                why = "it did not end within graceful_timeout" if running else FINISHED
            except self._ray.exceptions.RayError as error:
                text = str(getattr(error, "cause", error))
                why = " ".join(capped(text, 800).split())
                # The first of a chain of errors is the cause; ``capped`` may have left it out.
                if (root := _ROOT.search(text)) and root[0] not in why:
                    why = f"{root[0]} ({why})"
            except Exception as error:
                if actor is not None:  # as when Ray is lost; what ran is nobody's fault
                    traceback.print_exc()
                    os._exit(1)
                self.because = f"Ray starts no actor: {type(error).__name__}: {error}"
                self._end.set()
                return
            finally:
                self._actors.pop(first, None)
                self._starting.pop(first, None)
                with contextlib.suppress(Exception):  # it is gone
                    self._ray.kill(actor)
            if why in (FINISHED, LEFT):
                continue
            has_claimed, lost = await self._lost(numbers, running)
            vain_starts = 0 if has_claimed else vain_starts + 1
            given_up = vain_starts == MAX_VAIN_STARTS
            is_replaced = not given_up and not self._end.is_set()
            for one in lost or [RunnerStarted(first, 0, "which had not begun")]:
                about = one.worker_id, one.pid, why, given_up
                self._run.send(RunnerDied(*about, name=one.name, is_replaced=is_replaced))
        if not self._has_run:  # nor would the others
            self._end.set()

    async def _lost(self, numbers: range, running: dict[int, RunnerStarted]) -> tuple[bool, Any]:
        """Whether runners of an actor that died had claimed, and each as it was started."""
        lost, has_claimed = {str(one.name): one for one in running.values()}, bool(running)
        with contextlib.suppress(StoreUnavailableError):
            workers = [await self._store.get_worker_by_id(name) for name in lost]
            open_now = await self._store.query_rollouts(status_in=["preparing", "running"])
            for rollout in open_now if self._job.is_served else ():
                name = isinstance(rollout, agl.AttemptedRollout) and rollout.attempt.worker_id
                found = re.fullmatch(r".*-(\d+)-(\d+)", name or "")
                if found and int(found[2]) in numbers:  # also of a start that was not reported
                    lost[found[0]] = RunnerStarted(int(found[2]), int(found[1]), found[0])
            began = [one for one in workers if one is not None and one.last_dequeue_time]
            has_claimed = bool(began) or len(lost) > len(workers)
        return has_claimed, list(lost.values())


def _answer(reference: Any) -> asyncio.Future[Any]:
    answer = asyncio.shield(asyncio.wrap_future(reference.future()))
    # Ray answers also who has left, and then nobody asks for an error.
    answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
    return answer
