"""Everything that a hook plugin can watch.

A hook is a function of one of these names, marked with ``agl.hookimpl`` in a module or class that
the entry point group ``agl.plugins`` names, or a method of an ``agl.Hook`` given to
``Trainer(hooks=[...])`` or ``run_context(hooks=[...])``. Implementations take the arguments they
need, by name, and may be coroutines. They return nothing.
"""

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from agl.agent.base import LitAgent, Runner
    from agl.tracer.base import Tracer
    from agl.types import Rollout, Span

PROJECT = "agl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def on_rollout_start(agent: "LitAgent[Any]", runner: "Runner[Any]", rollout: "Rollout") -> None:
    """A runner has claimed a rollout and is about to run it.

    Called: in the runner's process, once per attempt, before the trace begins.
    If it raises: logged once with the plugin's name and counted; the run goes on.
    Used by: the tests; loggers.

    Args:
        agent: The agent.
        runner: The runner.
        rollout: An ``AttemptedRollout``: the rollout with this attempt.
    """


@hookspec
def on_trace_start(
    agent: "LitAgent[Any]", runner: "Runner[Any]", tracer: "Tracer", rollout: "Rollout"
) -> None:
    """The trace context is open; the agent has not been called yet.

    Called: in the runner's process, once per attempt, within the trace context, so that spans made
    here are the attempt's.
    If it raises: logged once with the plugin's name and counted; the run goes on.
    Used by: the tests; loggers.

    Args:
        agent: The agent.
        runner: The runner.
        tracer: The tracer, active.
        rollout: An ``AttemptedRollout``: the rollout with this attempt.
    """


@hookspec
def on_trace_end(
    agent: "LitAgent[Any]", runner: "Runner[Any]", tracer: "Tracer", rollout: "Rollout"
) -> None:
    """The agent has returned or raised; the trace context is still open.

    Called: in the runner's process, once per attempt; ``tracer.get_last_trace()`` gives the spans
    so far.
    If it raises: logged once with the plugin's name and counted; the run goes on.
    Used by: the tests; loggers.

    Args:
        agent: The agent.
        runner: The runner.
        tracer: The tracer, active.
        rollout: An ``AttemptedRollout``: the rollout with this attempt.
    """


@hookspec
def on_rollout_end(
    agent: "LitAgent[Any]", runner: "Runner[Any]", rollout: "Rollout", spans: "list[Span]"
) -> None:
    """The attempt has its final status in the store.

    Called: in the runner's process, once per attempt, whatever the outcome.
    If it raises: logged once with the plugin's name and counted; the run goes on.
    Used by: the tests; loggers.

    Args:
        agent: The agent.
        runner: The runner.
        rollout: An ``AttemptedRollout`` whose attempt is final.
        spans: The attempt's spans as its tracer saw them, the final reward included.
    """
