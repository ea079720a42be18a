"""Which rollouts an algorithm compares with each other."""

import json

from agl.types import Rollout


def group_of(rollout: Rollout) -> str:
    """Equal for rollouts of one task, and of one group and step where the algorithm names them."""
    about = rollout.metadata or {}
    own = [rollout.input, about.get("group"), about.get("step")]
    return json.dumps(own, sort_keys=True, default=str)
