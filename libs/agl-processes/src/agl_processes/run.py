"""A run whose algorithm is here, and whose runners are in other processes."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from agl.errors import AlgorithmError
from agl.execution.algorithm import run_algorithm
from agl.execution.base import AlgorithmBundle, ExecutionEvent
from agl.execution.signals import graceful_signals
from agl.store.base import LightningStore
from agl_processes.reports import Reports
from agl_processes.runner_process import on_sigterm
from agl_processes.supervisor import Supervisor


async def run_with_runners(
    algorithm: AlgorithmBundle | None,
    store: LightningStore,
    stop: ExecutionEvent,
    supervisor: Supervisor | None,
    reports: Reports,
    *,
    ask_to_stop: Callable[[], bool],
    last_seconds: float,
) -> bool:
    """Run to the end; see ``ExecutionStrategy.execute`` for what it raises.

    Args:
        algorithm: None where it runs elsewhere, and the runners' end is the end.
        store: As this process reaches it; runners reach it until this returns.
        stop: Set when the run ends.
        supervisor: Has the runners of this run; None where those start themselves.
        reports: Get what the supervisor says.
        ask_to_stop: See ``ExecutionStrategy.ask_to_stop``.
        last_seconds: How long the store is told at the end which attempts were lost.

    Returns:
        Whether SIGTERM was what ended it.
    """
    terminated = False
    reports.open()
    if supervisor is not None:
        supervisor.watch()
    if algorithm is None:
        main: Coroutine[Any, Any, bool] = asyncio.Event().wait()
    else:
        main = run_algorithm(algorithm, store, stop, reports.no_runners)
    task = asyncio.ensure_future(main)

    def terminate() -> None:
        nonlocal terminated
        if not ask_to_stop():
            terminated = True
            stop.set()  # before the algorithm takes the model from under the agents
            task.cancel()

    following = asyncio.ensure_future(reports.follow(store))
    try:
        with on_sigterm(terminate), graceful_signals(ask_to_stop, signal.SIGINT):
            await asyncio.wait({task, following}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
                if algorithm is not None:
                    await asyncio.wait({task})
    finally:
        stop.set()
        task.cancel()
        await asyncio.wait({task})
        reports.no_runners.set()
        if supervisor is not None:
            # The store can still be reached: runners that finish can report.
            await asyncio.to_thread(supervisor.end)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await reports.follow_rest(store, last_seconds)
    if task.cancelled():
        came_to_its_end = terminated
    elif (error := task.exception()) is not None:
        raise AlgorithmError(f"the algorithm failed: {type(error).__name__}: {error}") from error
    else:
        came_to_its_end = task.result()
    if not came_to_its_end:
        reports.raise_if_given_up()
    return terminated
