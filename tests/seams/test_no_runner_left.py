"""Runs whose runners have all ended: an algorithm that works goes on, one that waits is stopped.

Of algorithms that wait once, in threads and processes: the contract of strategies.
"""

import asyncio
import time
from functools import partial

import pytest

import agl
from agl.errors import AlgorithmError, RunnerCrashError
from agl.execution.algorithm import run_algorithm
from agl.execution.base import ThreadingEvent

from .scene import Scene

WORKS = """
        @agl.algo
        async def algorithm(store):
            for task in range(12):
                await store.enqueue_rollout(task)
            while not store._no_runners.is_set():
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.0)  # a training step: longer than the grace
            print("RESULT own end", flush=True)
"""
WAITS = "algorithm = algorithm_of(range(12))"


WHETHER_IT_WAITS = pytest.mark.parametrize("algorithm", [WORKS, WAITS], ids=["works", "waits"])


@WHETHER_IT_WAITS
def test_end_of_the_runner_in_the_main_process_stops_an_algorithm_that_waits(scene, algorithm):
    code, results, errors = scene.run(
        f"""
        {algorithm.strip()}

        options = dict(max_rollouts=3, graceful_timeout=0.2, main_process="runner")
        trainer(algorithm, **options).fit(agent)
        """
    )
    assert code == 0, errors
    assert results == ([["own", "end"]] if algorithm == WORKS else [])
    assert algorithm == WORKS or "All runners have ended" in errors


@WHETHER_IT_WAITS
def test_runner_given_up_is_an_error_only_for_an_algorithm_that_waits(scene, algorithm) -> None:
    code, results, errors = scene.run(
        f"""
        {algorithm.strip()}

        options = dict(n_runners=2, max_rollouts=3, graceful_timeout=0.2)
        trainer(algorithm, tracer=DiesAtStart([0]), **options).fit(agent)
        """
    )
    assert "is given up" in errors
    if algorithm == WORKS:
        assert (code, results) == (0, [["own", "end"]]), errors
    else:
        assert (code, results) == (1, [])
        assert "RunnerCrashError: no runner is left; runner 0: it died before" in errors


def test_runner_in_the_main_process_that_crashes_ends_the_algorithm(scene: Scene) -> None:
    code, _, errors = scene.run(
        """
        class Broken(agl.LitAgentRunner):
            async def iter(self, *, event=None):
                raise OSError("no such device")

        agl.Trainer(
            algorithm=algorithm_of([1]),
            strategy=dict(type="cs", server_port=0, main_process="runner"),
            runner=lambda: Broken(agl.OtelTracer()),
        ).fit(agent)
        """
    )
    assert code == 1
    assert "RunnerCrashError: a runner failed: OSError: no such device" in errors


@agl.rollout
def one(task: int) -> float:
    return 1.0


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_algorithm_that_ends_as_if_cancelled_has_failed(strategy: str) -> None:
    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        raise asyncio.CancelledError

    port = {"server_port": 0} if strategy == "cs" else {}
    trainer = agl.Trainer(algorithm=algorithm, strategy={"type": strategy, **port})
    with pytest.raises(AlgorithmError, match="nobody cancelled it"):
        trainer.fit(one)


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_runner_in_threads_that_ends_as_if_cancelled_is_a_crash(main_thread: str) -> None:
    class Cancelling(agl.LitAgentRunner[int]):
        async def iter(self, *, event: object = None) -> None:
            raise asyncio.CancelledError

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        await asyncio.sleep(25)

    strategy = {"type": "shm", "main_thread": main_thread, "graceful_delay": 0.2}
    made = partial(Cancelling, agl.OtelTracer())
    trainer = agl.Trainer(algorithm=algorithm, strategy=strategy, runner=made)
    with pytest.raises(RunnerCrashError, match="nobody cancelled it"):
        trainer.fit(one)


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_algorithm_that_waits_again_and_again_on_a_loop_of_its_own_is_stopped(main_thread) -> None:
    reached: list[str] = []

    async def wait(store: agl.LightningStore) -> None:
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in range(4)]
        ended: list[agl.Rollout] = []
        reached.append("waits")
        while len(ended) < len(ids):
            ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=0.1)
        reached.append("went on")

    @agl.algo
    def algorithm(store: agl.LightningStore) -> None:
        asyncio.run(wait(store))

    strategy = {"type": "shm", "main_thread": main_thread, "graceful_delay": 0.2}
    agl.Trainer(algorithm=algorithm, strategy=strategy, max_rollouts=3).fit(one)
    assert reached == ["waits"]


def test_algorithm_that_looks_goes_on_and_one_that_waits_does_not() -> None:
    async def run(timeout: float | None) -> bool:
        store, gone = agl.InMemoryLightningStore(), ThreadingEvent()
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in range(2)]
        await store.update_rollout(ids[0], status="cancelled")
        gone.set()

        async def algorithm(store: agl.LightningStore, event: agl.ExecutionEvent) -> None:
            assert len(await store.wait_for_rollouts(rollout_ids=ids[:1])) == 1
            assert len(await store.wait_for_rollouts(rollout_ids=ids, timeout=0)) == 1
            await store.wait_for_rollouts(rollout_ids=ids, timeout=timeout)

        return await run_algorithm(algorithm, store, ThreadingEvent(), gone)

    assert [asyncio.run(run(timeout)) for timeout in (0, None, 60)] == [True, False, False]


@pytest.mark.parametrize("main_thread", ["algorithm", "runner"])
def test_algorithm_sees_the_event_within_the_graceful_delay(main_thread: str) -> None:
    seen: list[bool] = []

    async def algorithm(store: agl.LightningStore, event: agl.ExecutionEvent) -> None:
        await asyncio.to_thread(event.wait)
        await asyncio.sleep(0.1)  # it saves its work
        seen.append(event.is_set())

    async def runner(store: agl.LightningStore, worker_id: int, event: agl.ExecutionEvent) -> None:
        raise OSError("no such device")

    strategy = agl.SharedMemoryExecutionStrategy(main_thread=main_thread, graceful_delay=30.0)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(RunnerCrashError):
        strategy.execute(algorithm, runner, agl.InMemoryLightningStore())
    assert seen == [True]
    assert time.monotonic() - began < 25.0


def test_baseline_says_what_came_of_the_rollouts_that_were_run(caplog) -> None:
    caplog.set_level("INFO", logger="agl")
    strategy = {"type": "shm", "graceful_delay": 0.2}
    agl.Trainer(strategy=strategy, max_rollouts=3).dev(one, range(3))
    assert "Finished 3 rollouts: 3 succeeded, mean reward 1.000" in caplog.text
    caplog.clear()
    agl.Trainer(strategy=strategy, max_rollouts=3).dev(one, range(5))
    assert "Stopped after 3 rollouts: 3 succeeded, mean reward 1.000" in caplog.text
