"""Fixtures that run a runner until it is done."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import agl

from . import waiting


async def _run_all(
    agent: agl.LitAgent[Any],
    store: agl.LightningStore,
    tasks: Sequence[Any] = (),
    *,
    config: agl.RolloutConfig | None = None,
    mode: agl.RolloutMode | None = None,
    num_rollouts: int | None = None,
    tracer: agl.Tracer | None = None,
    hooks: Sequence[object] = (),
    **options: Any,
) -> list[agl.AttemptedRollout]:
    """Queue the tasks, run a runner until all are done, and return the rollouts."""
    for task in tasks:
        await store.enqueue_rollout(task, config=config, mode=mode)
    runner = agl.LitAgentRunner(
        tracer or agl.OtelTracer(), max_rollouts=num_rollouts or len(tasks), **options
    )
    with runner.run_context(agent=agent, store=store, hooks=hooks):
        async with asyncio.timeout(25):
            await runner.iter()
    return list(await store.query_rollouts())  # type: ignore


async def _run_one(agent: agl.LitAgent[Any], store: agl.LightningStore, **options: Any) -> Any:
    """The attempt that one queued task ends in."""
    (rollout,) = await _run_all(agent, store, ["task"], **options)
    return rollout.attempt


@pytest.fixture
def run_all() -> Any:
    """Queue the tasks, run a runner until all are done, and return the rollouts."""
    return _run_all


@pytest.fixture
def run_one() -> Any:
    """The attempt that one queued task ends in."""
    return _run_one


@pytest.fixture
def until() -> Any:
    """Wait for a condition that other threads bring about."""
    return waiting.until
