"""Everything that a hook plugin can watch.

A hook is a function of one of these names, marked with ``agl.hookimpl`` in a module or class that
the entry point group ``agl.plugins`` names, or a method of an ``agl.Hook`` given to
``Trainer(hooks=[...])`` or ``run_context(hooks=[...])``. Implementations take the arguments they
need, by name, and may be coroutines. Those that watch (``on_...``) return nothing; the others
add to what there is. What one raises is logged once with the plugin's name and counted, and all
goes on without it.

In every hook ``agent``, ``runner``, ``algorithm`` and ``store`` are those of the run, ``tracer`` is
the active one, and ``rollout`` is an ``AttemptedRollout``, the rollout with this attempt. ``step``
is the number of a training step, from 1, and of what comes before the first 0. ``metrics`` are
values by name, None where there is none. A hook with a ``runner`` is called in the runner's
process, once per attempt; the others, but for ``store_routes``, are called in the algorithm's.
"""

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.routing import BaseRoute

    from agl.agent.base import LitAgent, Runner
    from agl.algorithm.base import Algorithm
    from agl.algorithm.run_result import RunResult
    from agl.store.base import LightningStore
    from agl.tracer.base import Tracer
    from agl.types import Attempt, ResourcesUpdate, Rollout, Span

PROJECT = "agl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def on_run_start(agent: "LitAgent[Any]", algorithm: "Algorithm", store: "LightningStore") -> None:
    """A trainer is about to run its algorithm.

    Called: once per ``Trainer.fit`` or ``dev``, before the initial resources are published.
    """


@hookspec
def on_run_end(
    agent: "LitAgent[Any]",
    algorithm: "Algorithm",
    store: "LightningStore",
    error: "BaseException | None",
) -> None:
    """The algorithm has returned or raised.

    Called: once per ``on_run_start``; the store is still open, and runners may still end their last
    attempts.

    Args:
        error: What the algorithm raised, also a cancellation; None if it returned.
    """


@hookspec
def on_rollout_start(agent: "LitAgent[Any]", runner: "Runner[Any]", rollout: "Rollout") -> None:
    """A runner has claimed a rollout and is about to run it.

    Called: before the trace begins.
    """


@hookspec
def on_trace_start(
    agent: "LitAgent[Any]", runner: "Runner[Any]", tracer: "Tracer", rollout: "Rollout"
) -> None:
    """The trace context is open; the agent has not been called yet.

    Called: within the trace context, so that spans made here are the attempt's.
    """


@hookspec
def on_trace_end(
    agent: "LitAgent[Any]", runner: "Runner[Any]", tracer: "Tracer", rollout: "Rollout"
) -> None:
    """The agent has returned or raised; the trace context is still open.

    Called: when ``tracer.get_last_trace()`` gives the spans so far.
    """


@hookspec
def on_rollout_end(
    agent: "LitAgent[Any]", runner: "Runner[Any]", rollout: "Rollout", spans: "list[Span]"
) -> None:
    """The attempt's outcome is known and its spans are stored; it is about to be recorded.

    Called: whatever the outcome, before ``on_attempt_end``. Nobody sees the end of the rollout
    before the hook returns, so a span that it adds counts, a reward as the last one. Its time
    counts as the attempt's.

    Args:
        rollout: An ``AttemptedRollout`` as it is stored, its attempt as it is to be recorded.
        spans: The attempt's spans as its tracer saw them, the final reward included.
    """


@hookspec
def on_attempt_end(
    agent: "LitAgent[Any]",
    runner: "Runner[Any]",
    rollout: "Rollout",
    attempt: "Attempt",
    error: "BaseException | None",
) -> None:
    """The attempt has its final status in the store.

    Called: whatever the outcome, after ``on_rollout_end``. The runner may have claimed its next
    rollout. An attempt that the store ends because its runner is gone is not seen.

    Args:
        rollout: As it was claimed.
        attempt: As stored; final.
        error: What the agent or something around it raised, or None if it returned;
            ``attempt.error`` is what of it is stored.
    """


@hookspec
def on_update_start(algorithm: "Algorithm", step: int, rows: "list[Any]") -> None:
    """Rows are about to be trained.

    Called: before each update of weights, by GRPO and others; a step of verl may have several.

    Args:
        rows: Tokens and advantages, as ``agl_learning.Weighed``; copies, to look at.
    """


@hookspec
def on_step_end(algorithm: "Algorithm", step: int, metrics: "dict[str, Any]") -> None:
    """A training step has ended.

    Called: once per step, by algorithms that train in steps; after it is in ``metrics.jsonl``. The
    algorithm's page defines the metrics.
    """


@hookspec
def on_evaluation_end(algorithm: "Algorithm", step: int, metrics: "dict[str, Any]") -> None:
    """An evaluation on held-out tasks, after a step, has ended.

    Called: once per evaluation, by algorithms that evaluate; after it is in ``metrics.jsonl``. The
    names of its metrics begin with ``val/``.
    """


@hookspec
def on_resources_published(algorithm: "Algorithm", resources: "ResourcesUpdate") -> None:
    """There are resources for the next rollouts.

    Called: for the trainer's initial resources and for what algorithms publish with
    ``publish_resources``. A store calls no hooks: what is put there by its own methods is not seen.

    Args:
        resources: The snapshot, as stored.
    """


@hookspec
def on_checkpoint_saved(algorithm: "Algorithm", step: int, path: "str | Path") -> None:
    """A checkpoint or a new version of the model is on the disk.

    Called: by algorithms that keep weights, once what they wrote is whole.

    Args:
        path: Where it is; of a model that is trained elsewhere, what it is called there.
    """


@hookspec
def store_routes(store: "LightningStore") -> "list[BaseRoute] | None":
    """Answer more requests on the store's address: a page, an export.

    Called: in the process that serves a store, once, before it is served: by ``agl store`` and by
    the strategy ``cs``.

    Returns:
        Routes of starlette. The store's own paths come first, and its token and limits hold.
    """


@hookspec
def run_summary(store: "LightningStore", result: "RunResult", lines: "list[str]") -> None:
    """Change what is said of a run that has ended.

    Called: once per run, when its end is recorded; plugins are called in the order of their names.

    Args:
        result: What the run came to.
        lines: What will be said; the first is that of ``result``. Change it in place.
    """
