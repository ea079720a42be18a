"""The load program: an algorithm that queues and checks tasks, and runners that sleep on them."""

import asyncio
import random
import resource
import time
from dataclasses import dataclass, field

import aiohttp

from agl.errors import ConfigError, StoreError
from agl_bench.payloads import REWARD, TASK, AttributePool, Attributes, SpanDraft, reward_draft
from agl_bench.protocols import Claimed, Way, WayName, best_way, features_of
from agl_bench.workloads import Script, Workload, perfect_seconds, script_of
from agl_http.tokens import without_token

RUNNERS_PER_CHECKER = 4
"""How many finished rollouts are read at once, in proportion, so that reading keeps up."""
REQUEST_SECONDS = 120.0


@dataclass
class Tally:
    """What a run has done so far."""

    finished: int = 0
    checked: int = 0
    spans: int = 0
    starts: list[float] = field(default_factory=list[float])
    """Seconds from the request that queued a rollout until a runner had it."""
    wrong: list[str] = field(default_factory=list[str])
    """What was found wrong with rollouts, a sentence each."""
    seconds: float = 0.0
    """From the first request that queued work until the last rollout was checked."""
    load_cpu_seconds: float = 0.0
    """Of this process."""
    way: WayName = "wire"
    perfect_seconds: float | None = None
    """For the same sleeps with a store that costs nothing; None when the run was cut short."""


class LoadProgram:
    """One run of one workload.

    Args:
        workload: What to do.
        url: Of the server; it should have no other work queued.
        tasks: How many; None for those of a run of under a minute.
        way: How to speak to the server; None for the fastest that it knows.
        seed: Of the random draws.
        max_seconds: The run is cut short after this; None to finish all tasks.
        token: The server's bearer token; None takes the one in the address.
    """

    def __init__(
        self,
        workload: Workload,
        url: str,
        tasks: int | None = None,
        *,
        way: WayName | None = None,
        seed: int = 0,
        max_seconds: float | None = None,
        token: str | None = None,
    ) -> None:
        self.workload = workload
        self.url, given = without_token(url)
        token = token or given
        self.tasks = tasks or workload.short_tasks
        self.seed = seed
        self.max_seconds = max_seconds
        self._wanted: WayName | None = way
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._scripts = [script_of(workload, task, seed) for task in range(self.tasks)]
        self._pool = AttributePool(seed)
        self._ids = random.Random(seed)
        self._queued_at = [0.0] * self.tasks
        self._changed = asyncio.Event()
        self._to_check: asyncio.Queue[Claimed] = asyncio.Queue()
        self.tally = Tally()

    async def run(self) -> Tally:
        """Do the work.

        Raises:
            StoreError: A request failed.
            ConfigError: The server does not know this way.
        """
        _allow_connections(2 * self.workload.runners + 100)
        async with aiohttp.ClientSession(
            self.url,
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        ) as http:
            features = await features_of(http)
            name = self._wanted or best_way(features)
            missing = {"batch": "spans/batch", "turn": "turn"}.get(name)
            if missing is not None and missing not in features:
                raise ConfigError(f"the server at {self.url} does not know {missing!r}")
            self.tally.way = name
            way = Way(http, name, holds="wait_seconds" in features)
            begin, cpu = time.monotonic(), time.process_time()
            await self._run_until_done(way)
            self.tally.seconds = time.monotonic() - begin
            self.tally.load_cpu_seconds = time.process_time() - cpu
        if self.tally.checked == self.tasks:
            busy = [script.busy_seconds for script in self._scripts]
            self.tally.perfect_seconds = perfect_seconds(self.workload, busy)
        return self.tally

    async def _run_until_done(self, way: Way) -> None:
        """Everybody at work, until all is checked, somebody failed, or the time is up."""
        workers = [
            *(self._runner(way, f"bench-{number}") for number in range(self.workload.runners)),
            *(self._checker(way) for _ in range(1 + self.workload.runners // RUNNERS_PER_CHECKER)),
        ]
        tasks = [asyncio.ensure_future(worker) for worker in workers]
        algorithm = asyncio.ensure_future(self._algorithm(way))
        try:
            done, _ = await asyncio.wait(
                {algorithm, *tasks}, timeout=self.max_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StoreError(f"{self.url}: {type(error).__name__}: {error}") from error
        finally:
            for task in (algorithm, *tasks):
                task.cancel()
            await asyncio.gather(algorithm, *tasks, return_exceptions=True)

    # --- the algorithm's side

    async def _algorithm(self, way: Way) -> None:
        """Queue tasks as the workload says; it hears of finished ones from the runners."""
        queued = 0
        while self.tally.checked < self.tasks:
            self._changed.clear()
            count = min(self.workload.due(queued - self.tally.finished), self.tasks - queued)
            if count > 0:
                batch = range(queued, queued + count)
                now = time.monotonic()
                for task in batch:
                    self._queued_at[task] = now
                queued += count
                await way.enqueue(batch)
            else:
                await self._changed.wait()

    async def _checker(self, way: Way) -> None:
        while True:
            claimed = await self._to_check.get()
            problem = await self._problem_of(way, claimed)
            if problem is not None:
                self.tally.wrong.append(f"rollout {claimed.rollout_id!r}: {problem}")
            self.tally.checked += 1
            self._changed.set()

    async def _problem_of(self, way: Way, claimed: Claimed) -> str | None:
        """Read a finished rollout from the store; what is wrong with it."""
        status = (await way.rollout(claimed.rollout_id))["status"]
        if status != "succeeded":
            return f"status {status!r}; expected 'succeeded'"
        spans = await way.spans(claimed.rollout_id)
        if len(spans) != claimed.num_spans:
            return f"{len(spans)} spans; {claimed.num_spans} were sent"
        if not any(span["attributes"].get(TASK) == float(claimed.task) for span in spans):
            return f"no span has {TASK}={claimed.task}"
        # By number, as spans are read: the reward that was sent last is the final one.
        rewards = [s["attributes"][REWARD] for s in spans if REWARD in s["attributes"]]
        expected = self._scripts[claimed.task].final_reward
        if not rewards or rewards[-1] != expected:
            return f"final reward {rewards[-1:]}; expected {expected}"
        return None

    # --- the runners' side

    async def _runner(self, way: Way, worker_id: str) -> None:
        claimed: Claimed | None = None
        while True:
            claimed = claimed or await way.claim(worker_id)
            self.tally.starts.append(time.monotonic() - self._queued_at[claimed.task])
            await self._agent(way, claimed, self._scripts[claimed.task])
            ended, claimed = claimed, await way.finish(claimed, worker_id)
            self.tally.finished += 1
            self.tally.spans += ended.num_spans
            self._to_check.put_nowait(ended)
            self._changed.set()

    async def _agent(self, way: Way, claimed: Claimed, script: Script) -> None:
        """Sleep and emit spans."""
        trace_id = self._id(128)

        async def nap(name: str, seconds: float, parent_id: str | None, what: Attributes) -> None:
            begin = time.time()
            await asyncio.sleep(seconds)
            draft = SpanDraft(name, trace_id, self._id(64), parent_id, begin, time.time(), what)
            await way.emit(claimed, draft)

        for round in script.rounds:
            outer, begin = self._id(64), time.time()
            for seconds in round.sleeps:
                await nap("nested", seconds, outer, self._pool.pick())
            what = self._pool.pick()
            await way.emit(
                claimed, SpanDraft("round", trace_id, outer, None, begin, time.time(), what)
            )
            if round.reward is not None:
                now = time.time()
                await way.emit(claimed, reward_draft(round.reward, trace_id, self._id(64), now))
        await nap("final", script.final_sleep, None, Attributes({TASK: float(claimed.task)}))
        now = time.time()
        await way.emit(claimed, reward_draft(script.final_reward, trace_id, self._id(64), now))

    def _id(self, bits: int) -> str:
        return f"{self._ids.getrandbits(bits) | 1:0{bits // 4}x}"


def _allow_connections(number: int) -> None:
    """Raise this process's limit of open files, if it must be and can be.

    Raises:
        ConfigError: It cannot.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= number or soft == resource.RLIM_INFINITY:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    except (ValueError, OSError):
        raise ConfigError(
            f"{number} connections are needed and {soft} are allowed; run: ulimit -n {number}"
        ) from None
