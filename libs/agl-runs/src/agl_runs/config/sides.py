"""The two sides of a run in its file: the algorithm, and the runners with their agents."""

from typing import Any, cast

from agl.env import LightningEnvVar, resolve_str_env_var

SIDES = "algorithm", "runner"


def role_of(strategy: str | dict[str, Any]) -> str:
    """What this process does of a run: ``algorithm``, ``runner`` or ``both``."""
    given = strategy.get("role") if isinstance(strategy, dict) else None
    return resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE, given) or "both"


def take_environments(values: dict[str, Any]) -> dict[str, str]:
    """Take ``environment`` out of the blocks of either side; side -> the folder given."""
    taken: dict[str, str] = {}
    for side in SIDES:
        if isinstance(block := values.get(side), dict):
            options = dict(cast("dict[str, Any]", block))
            if "environment" in options:
                taken[side] = str(options.pop("environment"))
                values[side] = options
    return taken
