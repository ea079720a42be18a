"""Training a stored step of a run again, to compare."""

import asyncio
from typing import Any

from agl.agent.base import LitAgent
from agl.algorithm.base import RunContext
from agl.errors import ConfigError
from agl.plugins.parts import adapter_maker
from agl.trainer import Trainer
from agl_runs import folders


def replay(trainer: Trainer, agent: LitAgent[Any], step: int) -> Any:
    """Train a stored step of the run that ``run`` or ``run_dir`` of a trainer names again.

    The agent is not run, and nothing of the run is changed. The algorithm's coroutine method
    ``replay(step)`` reads the folder of the run and its store; what it returns, an
    ``agl_learning.trainer.comparison.Replay``, is returned.

    Raises:
        ConfigError: No run is named, or it cannot be done; the message says what is missing.
    """
    request = trainer.run_request
    folder = request.folder or (request.run_id and folders.default_folder(request.run_id))
    if not folder or not folder.is_dir():
        named = f"there is no run in {str(folder)!r}" if folder else "give run or run_dir"
        raise ConfigError(f"replay: {named}. See: agl runs")
    asked: Any = trainer.algorithm
    if not hasattr(asked, "replay"):
        raise ConfigError(
            f"{type(asked).__name__} cannot train a step again: its steps train no weights "
            "here, or it does not keep what that needs. Its page says what is kept"
        )
    adapter = adapter_maker(trainer.adapter, asked, agent.trained_agents)
    asked.set_context(RunContext(store=trainer.store, make_adapter=adapter, folder=folder))
    return asyncio.run(asked.replay(step))
