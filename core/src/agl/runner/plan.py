"""What each runner will be built from, in its process or thread; checked before that."""

import inspect
from collections.abc import Mapping
from typing import Any

from agl.agent.base import Runner
from agl.errors import ConfigError
from agl.execution.base import ExecutionStrategy
from agl.plugins.build import ComponentPlan, Given, build_component, plan_component
from agl.plugins.registry import names_in
from agl.runner.litagent import LitAgentRunner
from agl.tracer.base import Tracer


def plan_runner(
    spec: Given[Runner[Any]] | None,
    tracer: Tracer,
    strategy: ExecutionStrategy,
    max_rollouts: int | None,
    concurrency: int | None,
) -> ComponentPlan[Runner[Any]]:
    """Check what a trainer says of its runners.

    Args:
        spec: The runner; None is ``LitAgentRunner``.
        tracer: That it gets.
        strategy: Where it will run.
        max_rollouts: Of the trainer; None says nothing.
        concurrency: The same.

    Raises:
        ConfigError: The runner given says something else, or its options are wrong.
    """
    defaults = {
        "tracer": tracer,
        "max_rollouts": max_rollouts,
        "on_stuck": "raise" if strategy.replaces_runners else "continue",
        "concurrency": concurrency,
    }
    plan = plan_component(
        spec,
        group=None,
        expected_type=Runner,
        default=LitAgentRunner,
        optional_defaults={name: value for name, value in defaults.items() if value is not None},
        where="runner",
    )
    for name in ("concurrency", "max_rollouts"):
        wanted = defaults[name]
        chosen = getattr(plan.target, name, plan.options.get(name))
        if wanted is not None and chosen != wanted:
            raise ConfigError(
                f"Trainer: {name} is {wanted}, and the runner given says "
                f"{chosen or 'nothing of it'}; say it in one place"
            )
    if inspect.isclass(plan.target):
        plan.build()  # refuses senseless values here and not in every runner
    return plan


def default_strategy() -> str:
    """``cs``, processes, which agl-server brings; without it ``shm``, threads."""
    return "cs" if "cs" in names_in("agl.strategies") else "shm"


def plan_strategy(
    spec: Given[ExecutionStrategy] | None, n_runners: int | None, port: int | None
) -> ExecutionStrategy:
    """Where a trainer's runners will run; ``default_strategy`` unless it says so.

    Raises:
        ConfigError: The strategy given says something else, or its options are wrong.
    """
    if isinstance(spec, ExecutionStrategy):
        if n_runners is not None and n_runners != spec.n_runners:
            raise ConfigError(
                f"Trainer: n_runners is {n_runners}, and the strategy given says "
                f"{spec.n_runners}; say it in one place"
            )
        if port is not None:
            raise ConfigError("Trainer: give the port to the strategy, not to the trainer")
        return spec
    given = {"n_runners": n_runners, "server_port": port}
    options = {name: value for name, value in given.items() if value is not None}
    return build_component(
        {**options, **(spec if isinstance(spec, Mapping) else {"type": spec})},
        group="agl.strategies",
        expected_type=ExecutionStrategy,
        where="strategy",
        default=default_strategy(),
    )
