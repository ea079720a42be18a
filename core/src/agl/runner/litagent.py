"""Runners: claim rollouts, run the agent under a tracer with a deadline, report what came of it."""

import asyncio
import contextlib
import copy
import functools
import math
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from agl.agent.base import LitAgent, Runner
from agl.env import LightningEnvVar, resolve_int_env_var
from agl.errors import ConfigError, RunnerStuckError
from agl.execution.base import ExecutionEvent, ThreadingEvent
from agl.plugins.build import build_component
from agl.plugins.hooks import HookCaller
from agl.runner.attempt import AttemptRunner
from agl.runner.claims import Claims
from agl.runner.heartbeat import Heartbeat
from agl.runner.sandbox import Sandbox, grader_of
from agl.store.base import LightningStore
from agl.tracer.base import Tracer
from agl.types import AttemptedRollout, NamedResources, Rollout, RolloutMode
from agl.utils.checks import check_numbers
from agl.utils.life_cycle import worker_name

T = TypeVar("T")

CLAIM_SECONDS = 30.0
"""Longest wait in the store for work: ten thousand idle runners ask it 300 times a second."""
LOOK_SECONDS = 0.1
"""How often the stop event is looked at while all slots are busy."""


class LitAgentRunner(Runner[T]):
    """Runs a ``LitAgent``, one rollout at a time unless asked for more.

    A plain function runs in a thread of its own with the attempt's context. In ``iter`` coroutines
    share a thread with an event loop, apart from the runner's own; in ``step`` they run on the
    caller's. Whatever goes wrong in an attempt is stored with it, and the run goes on.

    Args:
        tracer: Collects the spans.
        max_rollouts: ``iter`` ends after so many.
        heartbeat_interval: Seconds between signs of life.
        heartbeat_include_gpu: Whether they tell about GPUs; needs ``nvidia-smi``.
        concurrency: Most rollouts at once; None reads ``AGL_CONCURRENCY``, and is 1 without it.
            With more, agents share a process: one that sets an environment variable or a global
            client to the address of its LLM sends the calls of the others there, too.
        on_stuck: What follows when an agent does not return at its deadline and cannot be stopped:
            ``continue`` leaves its thread behind and goes on in a fresh one; ``raise`` finishes
            what else runs and raises ``RunnerStuckError``, for a strategy that replaces the
            process.
        grace_seconds: How long running rollouts may go on after the stop event, before they are
            cancelled.
        isolation: Where the agent's code runs: ``none`` is this process; any other is a sandbox,
            by its name or with options, as ``{type: process, memory_mb: 512}``.
        grade_timeout: Seconds that the agent's grader, if it has one, may take for a result.
    """

    def __init__(
        self,
        tracer: Tracer,
        max_rollouts: int | None = None,
        heartbeat_interval: float = 10.0,
        heartbeat_include_gpu: bool = False,
        concurrency: int | None = None,
        on_stuck: Literal["continue", "raise"] = "continue",
        grace_seconds: float = 5.0,
        isolation: str | Mapping[str, Any] | Sandbox = "none",
        grade_timeout: float = 60.0,
    ) -> None:
        concurrency = resolve_int_env_var(LightningEnvVar.AGL_CONCURRENCY, concurrency, 1, least=1)
        check = functools.partial(check_numbers, "LitAgentRunner")
        check(whole=True, least=1, concurrency=concurrency)
        check(whole=True, optional=True, least=1, max_rollouts=max_rollouts)
        check(above=0, heartbeat_interval=heartbeat_interval, grade_timeout=grade_timeout)
        check(least=0, grace_seconds=grace_seconds)
        self.tracer = tracer
        self.max_rollouts = max_rollouts
        self.heartbeat_interval = heartbeat_interval
        self.heartbeat_include_gpu = heartbeat_include_gpu
        self.concurrency = cast(int, concurrency)
        self.on_stuck: Literal["continue", "raise"] = on_stuck
        self.grace_seconds = grace_seconds
        self.grade_timeout = grade_timeout
        self._isolation: Sandbox | None = None
        if isolation != "none":
            self._isolation = build_component(
                isolation, group="agl.sandboxes", expected_type=Sandbox, where="isolation"
            )
        self._agent: LitAgent[T] | None = None
        self._store: LightningStore | None = None
        self._worker_name: str | None = None

    def init(
        self, agent: LitAgent[T], *, hooks: Sequence[object] | None = None, **kwargs: Any
    ) -> None:
        agent.is_async()  # refuses one that cannot do anything
        self._grader = grader_of(agent)
        self._agent = agent
        self._hooks = hooks if isinstance(hooks, HookCaller) else HookCaller(hooks or ())
        # Each agent has one of its own, and so has each runner of one process.
        self._sandbox = copy.copy(self._isolation)
        agent.set_runner(self)
        self.tracer.init()

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        self.worker_id = worker_id
        self._store = store
        self._worker_name = worker_name(worker_id)
        self._attempts = AttemptRunner(
            runner=self,
            agent=self.get_agent(),
            store=store,
            tracer=self.tracer,
            hooks=self._hooks,
            on_stuck=self.on_stuck,
            grade_timeout=self.grade_timeout,
            sandbox=self._sandbox,
            grader=self._grader,
        )
        self.tracer.init_worker(worker_id, store)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        self.tracer.teardown_worker(worker_id)
        self._store = None

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self.tracer.teardown()
        self._agent = None

    def get_agent(self) -> LitAgent[T]:
        """The agent."""
        return self._need("agent", self._agent)

    def get_store(self) -> LightningStore:
        """The store."""
        return self._need("store", self._store)

    def get_worker_id(self) -> str:
        """The id of this runner in the store; see ``worker_name``."""
        return self._need("worker id", self._worker_name)

    def _need(self, what: str, value: Any) -> Any:
        if value is None:
            raise ConfigError(
                f"this runner has no {what} yet; use it within "
                "runner.run_context(agent=..., store=...)"
            )
        return value

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        """Claim and run rollouts until ``event`` is set or ``max_rollouts`` are done.

        Raises:
            ConfigError: The sandbox of ``isolation`` is not what it must be.
            RunnerStuckError: An agent hangs, and ``on_stuck`` is ``raise``.
            StoreError: The store failed.
        """
        event = event or ThreadingEvent()
        left = math.inf if self.max_rollouts is None else self.max_rollouts
        claims = Claims(self.get_store(), self.get_worker_id(), event, left)
        tasks: set[asyncio.Task[None]] = set()
        cancel_at = math.inf

        def is_over() -> bool:
            failed = any(one.done() and (one.cancelled() or one.exception()) for one in tasks)
            return failed or self._attempts.stuck is not None or event.is_set()

        async with self._working(apart=True):
            try:
                while True:
                    free = self.concurrency - len(tasks)
                    if free > 0 and claims.left > 0 and not is_over():
                        for rollout in await claims.wait(free, CLAIM_SECONDS, is_over):
                            tasks.add(asyncio.create_task(self._serve(rollout, claims)))
                    elif tasks and time.monotonic() < cancel_at:
                        await asyncio.wait(
                            tasks, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                        )
                    else:
                        break
                    if event.is_set():
                        cancel_at = min(cancel_at, time.monotonic() + self.grace_seconds)
                    for task in [task for task in tasks if task.done()]:
                        tasks.remove(task)
                        task.result()  # raises what ended the runner: the store failed, or Ctrl+C
            finally:
                for task in tasks:
                    task.cancel()
                try:
                    await asyncio.gather(*tasks, return_exceptions=True)
                finally:
                    await claims.release()
        if self._attempts.stuck is not None:
            raise RunnerStuckError(self._attempts.stuck)

    async def _serve(self, rollout: AttemptedRollout, claims: Claims) -> None:
        """Run a rollout, and the one that was claimed with its end, and so on."""
        following: AttemptedRollout | None = rollout
        while following is not None and claims.begin(following):
            # In a task, and so a context, of its own: what one sets the next must not see.
            attempt = asyncio.create_task(self._attempts.run(following, claims))
            try:
                await asyncio.wait([attempt])
            except asyncio.CancelledError:
                await asyncio.sleep(0)  # what never began could not be recorded
                attempt.cancel()
                await asyncio.wait([attempt])
                raise
            _, following = attempt.result()

    @contextlib.asynccontextmanager
    async def _working(self, *, apart: bool) -> AsyncGenerator[None]:
        """Have a sandbox, a heartbeat and a place for agents within the block."""
        self._attempts.apart = apart
        agent = self.get_agent()
        if self._sandbox is not None and self._sandbox.findings is None:
            await self._sandbox.start(agent, self.tracer)
        heartbeat = Heartbeat(
            self.get_store(),
            self.get_worker_id(),
            self._attempts.running,
            interval=self.heartbeat_interval,
            include_gpu=self.heartbeat_include_gpu,
        )
        self._attempts.attempt_begun = heartbeat.attempt_begun
        with heartbeat.beating(), self._attempts.hosting():
            yield

    async def step(
        self,
        input: T,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
    ) -> Rollout:
        """Run one rollout past the queue.

        Args:
            resources: Stored as a new snapshot and used; None uses the latest one.
            event: When it is set, the agent is cancelled.

        Returns:
            The rollout as it ended.

        Raises:
            Exception: What the agent raised, after it was stored.
            SandboxedAgentError: It raised in a sandbox.
            RolloutTimeoutError: The agent ran past the deadline.
            AgentResultError: The agent returned something that is no result.
            RolloutCancelledError: The attempt was stopped.
        """
        store, resources_id = self.get_store(), None
        if resources is not None:
            resources_id = (await store.add_resources(resources)).resources_id
        async with self._working(apart=False):
            rollout = await store.start_rollout(
                input, mode=mode, resources_id=resources_id, worker_id=self.get_worker_id()
            )
            none = Claims(store, self.get_worker_id(), ThreadingEvent(), left=0)
            running = asyncio.ensure_future(self._attempts.run(rollout, none))
            watch = asyncio.ensure_future(self._stop_on(event, rollout)) if event else None
            try:
                outcome, _ = await running
            finally:
                if watch is not None:
                    watch.cancel()
        if outcome.error is not None:
            raise outcome.error
        return await store.get_rollout_by_id(rollout.rollout_id) or rollout

    async def _stop_on(self, event: ExecutionEvent, rollout: AttemptedRollout) -> None:
        while not event.is_set():  # noqa: ASYNC110 (it may belong to another process)
            await asyncio.sleep(LOOK_SECONDS)
        running = self._attempts.running.get(rollout.attempt.attempt_id)
        if running is not None and running.call is not None:
            running.call.stop("cancelled")
