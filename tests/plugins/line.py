"""The real line: store, runner, gateway and adapter, in one process."""

import asyncio
import contextlib
from typing import Any

import agl
from agl.execution.base import ThreadingEvent


async def run_line(algorithm: Any, store: Any, agent: Any, *datasets: Any) -> Any:
    """Run an algorithm that has its adapter and gateway, with one runner beside it."""
    algorithm.set_store(store)
    runner, event = agl.LitAgentRunner(agl.OtelTracer(), grace_seconds=0.1), ThreadingEvent()
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter(event=event))
        try:
            await algorithm.run(*datasets)
        finally:
            event.set()
            with contextlib.suppress(asyncio.CancelledError):
                await running
    return algorithm


def end_after_a_step(algorithm):
    """Have a run ended in order after its first step, as a hook may."""
    tell = algorithm.tell

    async def tell_and_ask(hook, **told):
        await tell(hook, **told)
        if hook == "on_step_end":
            algorithm.ask_to_end("no better")

    algorithm.tell = tell_and_ask
    return algorithm
