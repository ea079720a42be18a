"""What every execution strategy must do, as a pytest class over a small algorithm and runner.

The strategy has two runners or more. It may give them little time to finish: who is told to stop
notes its end. Algorithm and runners meet only in the store, so they may run anywhere.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass

import pytest

from agl.errors import AlgorithmError, RunnerCrashError
from agl.execution.base import AlgorithmBundle, ExecutionEvent, ExecutionStrategy, RunnerBundle
from agl.store.base import LightningStore
from agl.types import EnqueueRolloutRequest, RolloutStatus
from agl_testing.contract import Contract
from agl_testing.store_steps import report

MOST_SECONDS = 60.0
"""What ends later is taken to hang."""


async def serve(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
    """A runner: it claims and succeeds until it is told to stop, and notes begin and end."""
    await store.update_worker(f"begun-{worker_id}")
    try:
        while not event.is_set():
            await _run_one(store, 0.2)
    finally:
        await store.update_worker(f"ended-{worker_id}")


async def serve_one(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
    """A runner with ``max_rollouts`` 1."""
    await _run_one(store, MOST_SECONDS)


async def crash(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
    """A runner that cannot work."""
    raise OSError("no device")


async def learn(store: LightningStore, event: ExecutionEvent) -> None:
    """An algorithm: it waits for the ends of four rollouts."""
    requests = [EnqueueRolloutRequest(input=number) for number in range(4)]
    rollouts = await store.enqueue_many_rollouts(requests)
    await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts])
    await store.update_worker("learned")


@dataclass
class Run:
    """A run of a strategy, and what its algorithm and runners left in the store."""

    strategy: ExecutionStrategy
    store: LightningStore

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle) -> BaseException | None:
        """What the run raises; it fails where it hangs."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                self.strategy.execute(algorithm, runner, self.store)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(MOST_SECONDS)
        assert not thread.is_alive(), f"execute() has not returned after {MOST_SECONDS:g} s"
        return raised[0] if raised else None

    def statuses(self) -> list[RolloutStatus]:
        """Of the rollouts, in the order in which they were queued."""
        return [rollout.status for rollout in asyncio.run(self.store.query_rollouts())]

    def notes(self) -> set[str]:
        """What algorithm and runners have noted, as ids of workers."""
        return asyncio.run(_notes(self.store))

    def assert_stopped(self) -> None:
        """Whoever of ``serve`` has begun has ended."""
        said = self.notes()
        begun = {note.removeprefix("begun-") for note in said if note.startswith("begun")}
        assert begun
        assert {f"ended-{number}" for number in begun} <= said


class StrategyContract(Contract):
    """Claims of ``ExecutionStrategy.execute``."""

    kind = "strategy"
    expected_type = ExecutionStrategy

    @pytest.fixture
    def strategy(self) -> ExecutionStrategy:
        """The strategy to test."""
        return self.build(n_runners=2, server_port=0)

    @pytest.fixture
    def run(self, strategy: ExecutionStrategy, memory_store: LightningStore) -> Run:
        """A run of that strategy."""
        return Run(strategy, memory_store)

    def test_run_ends_with_its_algorithm(self, run: Run) -> None:
        """Runners are told to stop, and have stopped when ``execute`` returns."""
        assert run.execute(learn, serve) is None
        assert run.statuses() == ["succeeded"] * 4
        assert "learned" in run.notes()
        run.assert_stopped()

    def test_every_runner_is_started_with_its_number(self, run: Run) -> None:
        """``n_runners`` of them, numbered from 0."""
        expected = {f"begun-{number}" for number in range(run.strategy.n_runners)}

        async def wait_for_all(store: LightningStore, event: ExecutionEvent) -> None:
            while not expected <= await _notes(store):  # noqa: ASYNC110 - a store has no event
                await asyncio.sleep(0.02)

        assert run.execute(wait_for_all, serve) is None
        begun = {note for note in run.notes() if note.startswith("begun")}
        assert begun == expected

    def test_algorithm_that_raises_ends_the_run(self, run: Run) -> None:
        """Its error is the cause, and the runners were stopped first."""

        async def fail(store: LightningStore, event: ExecutionEvent) -> None:
            await learn(store, event)
            raise KeyError("mine")

        error = run.execute(fail, serve)
        assert isinstance(error, AlgorithmError), error
        assert "mine" in str(error)
        run.assert_stopped()

    def test_runner_that_dies_for_good_ends_the_run(self, run: Run) -> None:
        """Nobody waits for rollouts that nobody will run."""
        error = run.execute(learn, crash)
        assert isinstance(error, RunnerCrashError), error
        assert "learned" not in run.notes()

    def test_algorithm_that_waits_for_ended_runners_is_stopped(self, run: Run) -> None:
        """As with ``max_rollouts``: the wait raises, and the run has come to its end."""
        run.strategy.n_runners = 2
        assert run.execute(learn, serve_one) is None
        assert run.statuses() == ["succeeded"] * 2 + ["queuing"] * 2

    def test_algorithm_that_works_outlives_its_runners(self, run: Run) -> None:
        """What it has begun to compute, it may finish."""

        async def compute(store: LightningStore, event: ExecutionEvent) -> None:
            one = await store.enqueue_rollout("task")
            await store.wait_for_rollouts(rollout_ids=[one.rollout_id])
            await asyncio.sleep(0.5)
            await store.update_worker("saved")

        async def leave(store: LightningStore, worker_id: int, event: ExecutionEvent) -> None:
            if worker_id == 0:
                await _run_one(store, MOST_SECONDS)

        assert run.execute(compute, leave) is None
        assert "saved" in run.notes()

    @pytest.mark.parametrize("in_order", [True, False])
    def test_interrupt_asks_first(self, run: Run, in_order: bool) -> None:
        """Where ``ask_to_stop`` says that the run will end, it does; else it ends at once."""
        here, asked = os.getpid(), multiprocessing.Event()

        def ask() -> bool:
            asked.set()
            return in_order

        async def learn_until_asked(store: LightningStore, event: ExecutionEvent) -> None:
            await learn(store, event)
            os.kill(here, signal.SIGINT)
            await asyncio.to_thread(asked.wait, MOST_SECONDS)
            if not in_order:
                await asyncio.Event().wait()
            await store.update_worker("saved")

        run.strategy.ask_to_stop = ask
        try:
            run.strategy.execute(learn_until_asked, serve, run.store)
        except KeyboardInterrupt:
            assert not in_order
        else:
            assert in_order
        assert asked.is_set()
        assert ("saved" in run.notes()) == in_order
        run.assert_stopped()


async def _run_one(store: LightningStore, wait_seconds: float) -> None:
    claimed = await store.dequeue_rollout(wait_seconds=wait_seconds)
    if claimed is not None:
        await report(store, claimed, "succeeded")


async def _notes(store: LightningStore) -> set[str]:
    return {worker.worker_id for worker in await store.query_workers()}
