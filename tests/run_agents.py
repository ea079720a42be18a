"""Fixtures that run a runner until it is done."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import agl

from . import waiting

succeeds = agl.rollout(lambda task: 1.0)
"""An agent of which each rollout succeeds."""


@contextlib.asynccontextmanager
async def running(
    agent: Any,
    store: agl.LightningStore,
    *,
    hooks: Sequence[object] = (),
    event: agl.ExecutionEvent | None = None,
    **options: Any,
) -> AsyncIterator["asyncio.Task[None]"]:
    """The task of a runner that runs meanwhile; nothing ends it but the block or ``event``."""
    runner = agl.LitAgentRunner(agl.OtelTracer(), **options)
    with runner.run_context(agent=_agent(agent), store=store, hooks=hooks):
        yield asyncio.create_task(runner.iter(event=event))


async def cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, which ends so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def _agent(given: Any) -> agl.LitAgent[Any]:
    return given if isinstance(given, agl.LitAgent) else agl.rollout(given)


async def _run_all(
    agent: Any,
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
    """Queue the tasks, run a runner until all are done, and return the rollouts.

    The agent may be a function that is none yet.
    """
    for task in tasks:
        await store.enqueue_rollout(task, config=config, mode=mode)
    runner = agl.LitAgentRunner(
        tracer or agl.OtelTracer(), max_rollouts=num_rollouts or len(tasks), **options
    )
    with runner.run_context(agent=_agent(agent), store=store, hooks=hooks):
        async with asyncio.timeout(25):
            await runner.iter()
    return list(await store.query_rollouts())  # type: ignore


async def _run_one(agent: Any, store: agl.LightningStore, **options: Any) -> Any:
    """The attempt that one queued task ends in."""
    (rollout,) = await _run_all(agent, store, ["task"], **options)
    return rollout.attempt


@pytest.fixture
def run_all():
    """Queue the tasks, run a runner until all are done, and return the rollouts."""
    return _run_all


@pytest.fixture
def run_one():
    """The attempt that one queued task ends in."""
    return _run_one


@pytest.fixture
def until():
    """Wait for a condition that other threads bring about."""
    return waiting.until
