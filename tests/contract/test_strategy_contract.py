"""The strategy contract over ours, and strategies that break it."""

import asyncio

import pytest

import agl
from agl.errors import AlgorithmError
from agl_testing import strategy_contract
from agl_testing.strategy_contract import Run, StrategyContract

QUICK = {"n_runners": 2, "graceful_delay": 0.5}


def in_threads():
    return agl.SharedMemoryExecutionStrategy(**QUICK)


def in_the_main_thread():
    return agl.SharedMemoryExecutionStrategy(**QUICK, main_thread="algorithm")


def in_processes():
    return agl.ClientServerExecutionStrategy(n_runners=2, graceful_timeout=0.5, server_port=0)


class TestStrategies(StrategyContract):
    @pytest.fixture(params=[in_threads, in_the_main_thread, in_processes])
    def strategy(self, request):
        return request.param()


class Serial(agl.ExecutionStrategy):
    """What the abstract class asks for at first sight; a subclass breaks a part of that."""

    n_runners = 2
    names_the_error = True

    def execute(self, algorithm, runner, store):
        asyncio.run(self.run(algorithm, runner, store))

    async def run(self, algorithm, runner, store):
        stop = agl.ThreadingEvent()
        runners = [asyncio.create_task(runner(store, n, stop)) for n in range(self.n_runners)]
        try:
            await algorithm(store, stop)
        except Exception as error:
            if self.names_the_error:
                raise AlgorithmError(f"the algorithm failed: {error!r}") from error
        finally:
            stop.set()
            await asyncio.gather(*runners, return_exceptions=True)


class SwallowsErrors(Serial):
    names_the_error = False


class StartsOne(Serial):
    async def run(self, algorithm, runner, store):
        n_runners, self.n_runners = self.n_runners, 1
        await super().run(algorithm, runner, store)
        self.n_runners = n_runners


@pytest.mark.parametrize(
    ("broken", "claim", "arguments"),
    [
        (StartsOne, "every_runner_is_started_with_its_number", ()),
        (SwallowsErrors, "algorithm_that_raises_ends_the_run", ()),
        (Serial, "runner_that_dies_for_good_ends_the_run", ()),
        (Serial, "algorithm_that_waits_for_ended_runners_is_stopped", ()),
        (Serial, "interrupt_asks_first", (True,)),
        (Serial, "interrupt_asks_first", (False,)),
    ],
)
def test_a_strategy_that_breaks_a_claim_is_caught(
    broken, claim, arguments, memory_store, monkeypatch
):
    monkeypatch.setattr(strategy_contract, "MOST_SECONDS", 1.0)  # after which it hangs
    with pytest.raises(AssertionError):
        getattr(StrategyContract(), f"test_{claim}")(Run(broken(), memory_store), *arguments)
