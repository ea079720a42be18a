"""One collection over the real store, runner, gateway and rows: what an algorithm gets."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import agl
from agl.execution.base import ThreadingEvent
from agl.types import RolloutConfig
from agl_learning.collect.collector import Collector
from agl_learning.collect.results import Collected
from agl_records.training_data import TrainedModel


async def collect(
    agent: Any,
    gateway: Any = None,
    *,
    model: TrainedModel | None = None,
    served: str = "policy",
    copies: int = 1,
    adapter: Any = None,
    tasks: Sequence[Any] = ("task",),
    tracer: Any = None,
) -> Collected:
    """Run an agent ``copies`` times per task, as an algorithm does, with a gateway or none."""
    store, llms = agl.InMemoryLightningStore(), dict[str, Any]()
    if gateway is not None:
        gateway.set_store(store)
        await gateway.start()
        llms["main_llm"] = gateway.as_resource(model=served)
    runner, event = agl.LitAgentRunner(tracer or agl.OtelTracer()), ThreadingEvent()
    resources = await store.add_resources(llms)
    config = RolloutConfig(max_attempts=1)
    collector = Collector(store, gateway, adapter or agl.TraceToRows(), config, model=model)
    with runner.run_context(agent=agent, store=store):
        running = asyncio.create_task(runner.iter(event=event))
        try:
            return await collector.collect(tasks, copies, "train", resources.resources_id, {})
        finally:
            event.set()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            if gateway is not None:
                await gateway.stop()


def settled(collected: Collected) -> Collected:
    """Every row trained: each call is then in exactly one bin."""
    for one in collected.ended:
        for row in one.rows:
            collected.ledger.train(row)
    collected.ledger.check()
    return collected


def rows_of(collected: Collected) -> list[Any]:
    return [row for one in collected.ended for row in one.rows]
