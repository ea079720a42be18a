"""``environment: {type: harbor, tasks: ...}``: tasks of Harbor with one of its agents."""

import asyncio
import importlib.util
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt

from agl.errors import ConfigError
from agl.types import LLM
from agl.utils.text import did_you_mean
from agl_harbor.agent import HarborAgent, with_model
from agl_processes.sandbox_limits import SandboxLimits
from agl_runs.environments import Environment


def harbor(
    tasks: str,
    val: str | None = None,
    agent: str | Mapping[str, Any] = "terminus-2",
    sandbox: str | Mapping[str, Any] = "docker",
    starts_per_minute: Annotated[float, Gt(0)] | None = None,
    price_per_hour: Annotated[float, Ge(0)] = 0.0,
    budget: Annotated[float, Gt(0)] | None = None,
    logs: str | None = None,
) -> Environment:
    """Tasks of Harbor (Terminal-Bench and others), done by one of its agents in a sandbox.

    How many sandboxes run at once is how many rollouts do: runners times their concurrency.

    Args:
        tasks: Tasks to learn from: a folder with one folder for each task, or a data set of
            Harbor's registry, as ``terminal-bench@2.0``.
        val: Tasks to measure with, given likewise; None for none.
        agent: A name of Harbor's agents, ``module:Class``, or ``type`` and its options.
        sandbox: A name of Harbor's environments (``docker``, ``podman``, ``singularity``, ``gke``,
            ``daytona``, ``e2b``, ``modal``, ...), ``module:Class``, or ``type`` and its options.
        starts_per_minute: Most sandboxes that start in a minute on this machine.
        price_per_hour: Price of one sandbox; each rollout has its cost as ``sandbox.cost``.
        budget: What all sandboxes of a run on this machine may cost, except those whose runner is
            killed; then no more start, and rollouts fail as by infrastructure. Needs a price.
        logs: A folder that keeps what Harbor writes of each trial, its options among it: give keys
            by the environment.

    Raises:
        ConfigError: There is no such agent, sandbox or data set; a sandbox lacks its key; or
            Harbor is not there.
    """
    if importlib.util.find_spec("harbor") is None:
        why = "pip install harbor, which wants Python 3.12 or newer"
        raise ConfigError(f"environment 'harbor' needs Harbor, which is not installed: {why}")
    from harbor.agents.factory import AgentFactory  # pyright: ignore[reportMissingImports]
    from harbor.environments.factory import EnvironmentFactory  # pyright: ignore[reportMissingImports]
    from harbor.models.agent.name import AgentName  # pyright: ignore[reportMissingImports]
    from harbor.models.environment_type import EnvironmentType  # pyright: ignore[reportMissingImports]
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig  # pyright: ignore[reportMissingImports]

    agents, places = [one.value for one in AgentName], [one.value for one in EnvironmentType]
    chosen = _named("agent", agent, agents, "name", AgentConfig.model_fields)
    place = _named("sandbox", sandbox, places, "type", EnvironmentConfig.model_fields)
    try:
        some = with_model(chosen, LLM(endpoint="http://127.0.0.1/v1", model="some"))
        AgentFactory.run_preflight(AgentConfig.model_validate(some))
        config = EnvironmentConfig.model_validate(place)
        EnvironmentFactory.validate_options(config)
        EnvironmentFactory.run_preflight(config.type, config.import_path, config.kwargs)
    except (Exception, SystemExit) as error:  # a preflight ends the process where a key is missing
        raise ConfigError(f"environment 'harbor': {error}") from error
    limits = SandboxLimits(starts_per_minute, price_per_hour, budget)
    runs = HarborAgent(chosen, place, limits, Path(logs) if logs else None)
    return Environment(runs, _tasks(tasks), None if val is None else _tasks(val))


def _named(
    what: str,
    value: str | Mapping[str, Any],
    known: Sequence[str],
    field: str,
    fields: Container[str],
) -> dict[str, Any]:
    """A name with options, as Harbor's configurations take it: what is no field goes to kwargs."""
    options: dict[str, Any] = {"type": value} if isinstance(value, str) else {**value}
    name = str(options.pop("type", ""))
    if ":" in name:
        field = "import_path"
    elif name not in known:
        raise ConfigError(
            f"environment 'harbor': Harbor has no {what} {name!r}.{did_you_mean(name, known)}"
        )
    direct = {key: options.pop(key) for key in list(options) if key in fields}
    return {**direct, "kwargs": {**options, **direct.get("kwargs", {})}, field: name}


def _tasks(source: str) -> list[dict[str, Any]]:
    from harbor.models.job.config import DatasetConfig  # pyright: ignore[reportMissingImports]

    name, _, version = source.partition("@")
    spec = {"path": source} if Path(source).is_dir() else {"name": name, "version": version or None}
    try:
        tasks = asyncio.run(DatasetConfig.model_validate(spec).get_task_configs())
    except Exception as error:
        raise ConfigError(
            f"environment 'harbor': {source!r} is no folder, and Harbor does not find such a data "
            f"set: {error}"
        ) from error
    return [one.model_dump(mode="json", exclude_defaults=True) for one in tasks]
