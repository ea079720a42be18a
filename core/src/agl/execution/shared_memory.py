"""Everything in one process: algorithm and runners in threads, sharing the store object."""

import asyncio
import functools
import logging
import signal
from typing import Literal

from agl.errors import AlgorithmError, ConfigError, RunnerCrashError
from agl.execution.algorithm import run_algorithm
from agl.execution.base import AlgorithmBundle, ExecutionStrategy, RunnerBundle, ThreadingEvent
from agl.execution.coroutines import BackgroundCoroutine
from agl.execution.signals import graceful_signals
from agl.store.base import LightningStore

logger = logging.getLogger(__name__)

JOIN_SECONDS = 15.0
"""How long cancelled threads have to end."""


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """Threads in one process: quick to start, easy to debug; for agents that are not CPU-bound.

    Args:
        n_runners: How many runners.
        main_thread: Which side runs in the main thread, where breakpoints work best: the first
            runner, or the algorithm.
        graceful_delay: Seconds that running rollouts get to finish before they are cancelled.
    """

    def __init__(
        self,
        n_runners: int = 1,
        main_thread: Literal["algorithm", "runner"] = "runner",
        graceful_delay: float = 5.0,
    ) -> None:
        if n_runners < 1:
            raise ConfigError(f"strategy 'shm': n_runners must be at least 1; got {n_runners}")
        self.n_runners = n_runners
        self.main_thread = main_thread
        self.graceful_delay = graceful_delay

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        """Run both sides to the end; see ``ExecutionStrategy.execute``."""
        asyncio.run(self._run(algorithm, runner, store))

    async def _run(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        # Inside, as asyncio.run has set up by now what Ctrl+C does.
        with graceful_signals(self.ask_to_stop, signal.SIGINT, signal.SIGTERM):
            await self._coordinate(algorithm, runner, store)

    async def _coordinate(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        here = self.main_thread
        crash: BaseException | None = None
        stop, no_runners = ThreadingEvent(), ThreadingEvent()
        learner = BackgroundCoroutine(
            lambda: run_algorithm(algorithm, store, stop, no_runners),
            thread_name=None if here == "algorithm" else "agl-algorithm",
        )
        runners = [
            BackgroundCoroutine(
                functools.partial(runner, store, number, stop),
                thread_name=None if here == "runner" and number == 0 else f"agl-runner-{number}",
            )
            for number in range(self.n_runners)
        ]
        coroutines = [*runners, learner]
        for each in coroutines:
            each.start()
        try:
            while not learner.ended.done() and crash is None:
                running = [each.ended for each in coroutines if not each.ended.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                crash = next((each.error for each in runners if each.error), None)
                if crash is not None or all(each.ended.done() for each in runners):
                    no_runners.set()
        except asyncio.CancelledError:
            learner.cancel()
            raise
        finally:
            stop.set()
            await self._wind_down(coroutines)
            no_runners.set()
        if crash is not None:
            raise RunnerCrashError(f"a runner failed: {type(crash).__name__}: {crash}") from crash
        if (error := learner.error) is not None:
            why = f"the algorithm failed: {type(error).__name__}: {error}"
            raise AlgorithmError(why) from error

    async def _wind_down(self, coroutines: list[BackgroundCoroutine]) -> None:
        for timeout in (self.graceful_delay, JOIN_SECONDS):
            await asyncio.wait([each.ended for each in coroutines], timeout=timeout)
            for each in coroutines:
                each.cancel()
        left = sum(not each.ended.done() for each in coroutines)
        if left:
            logger.warning("%d threads did not end within the time limits; they are daemons.", left)
