"""verl from the command line: a server that trains, to which agents of another process come."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from agl import Algorithm, LitAgent, NamedResources, Rollout
from agl.errors import AglError, ConfigError

logger = logging.getLogger("agl.compat")

PORT = 9999
"""Of the server, unless ``agentlightning.port`` says otherwise."""


class _Elsewhere(LitAgent[Any]):
    """Stands for the agent, which runs in other processes."""

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        raise NotImplementedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with verl; agents come from ``Trainer(n_workers=...).fit(agent, "http://host:9999")``.

    Args:
        arguments: ``key=value`` each, as verl's own command takes them; the process's by default.

    Returns:
        0 done, 1 the run failed, 2 the request was wrong.
    """
    try:
        run_ppo(config_of(sys.argv[1:] if arguments is None else arguments))
    except AglError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def config_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The nested configuration of ``key=value``, ``+key=value``; else a ``ConfigError``."""
    from agl_runs.config.overrides import apply_overrides

    config: dict[str, Any] = {}
    apply_overrides(config, [argument.lstrip("+") for argument in arguments])
    return config


def run_ppo(config: dict[str, Any]) -> None:
    """Train with verl, and hand out the tasks at ``agentlightning.port`` to agents elsewhere.

    See ``serve_tasks_of``; the store of the run is served there, too.

    Args:
        config: verl's, with ``data.train_files`` and ``data.val_files``.

    Raises:
        ConfigError: A key is refused, a file is missing, or agl-verl is not installed.
    """
    import agl

    data = config.get("data", {})
    train, val = data.pop("train_files", None), data.pop("val_files", None)
    if not train:
        raise ConfigError("agentlightning.verl: data.train_files=... is missing: the tasks")
    if data.get("truncation") == "error":
        logger.warning(
            "data.truncation='error' has no effect: a prompt is never cut; calls with longer ones "
            "are excluded and counted"
        )
        data.pop("truncation")
    port = config.get("agentlightning", {}).pop("port", PORT)
    serve_tasks_of(agl.VERL(config), _tasks(train), _tasks(val) if val else None, port=port)


def serve_tasks_of(algorithm: Algorithm, tasks: Any, checks: Any, *, port: int) -> None:
    """Run an algorithm whose rollouts are done elsewhere, by runners of today or clients of 0.1.

    Both come to ``port``, with the token of ``AGL_SERVER_TOKEN``; runners of this user and machine
    find it by themselves where the variable is not set. A port in use is a ``ConfigError``.
    """
    import agl
    from agentlightning.server import TaskRoutes

    strategy = agl.ClientServerExecutionStrategy(role="algorithm", server_port=port)
    agl.Trainer(algorithm=algorithm, strategy=strategy, hooks=[TaskRoutes()]).fit(
        _Elsewhere(), tasks, val_dataset=checks
    )


def _tasks(files: str | list[str]) -> list[Any]:
    from agl_runs.config.datasets import load_dataset

    each = [files] if isinstance(files, str) else files
    return [task for file in each for task in load_dataset(file)]
