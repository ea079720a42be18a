"""Runs a file's agents with another algorithm, apart from the file's store."""

from typing import Any

from agl.algorithm.base import FastAlgorithm
from agl.plugins.parts import plan_part
from agl.store.memory import InMemoryLightningStore
from agl.trainer import Trainer
from agl_runs.config.file import CheckedConfig


def fit(checked: CheckedConfig, agent: Any, algorithm: FastAlgorithm) -> None:
    """Run an algorithm with an agent, as the file has it run but for the store and the hooks."""
    plans = checked.components
    built = {key: plans[key].build() for key in ("tracer", "gateway", "strategy") if key in plans}
    gateway = built.pop("gateway", None)
    needs_one = "algorithm" in plans and getattr(plans["algorithm"].target, "needs_gateway", False)
    if gateway is None and needs_one:
        gateway = plan_part("gateway", None, where="gateway").build()
    options = {"algorithm": algorithm, "llm_proxy": gateway, "max_rollouts": None, "hooks": []}
    trainer: Trainer = checked.trainer(built, InMemoryLightningStore(), **options)
    trainer.fit(agent, None)
