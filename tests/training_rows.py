"""Training rows made by hand."""

from typing import Any

from agl_records.training_data import TrainingRow
from agl_records.types import Credit


def training_row(token_ids: list[int], call_ranges: list[tuple[int, int]], **given: Any):
    """A row whose calls are named after the rollout ``r`` and have the reward 0, unless given."""
    name, calls = given.get("rollout_id", "r"), len(call_ranges)
    made = {
        **{"rollout_id": name, "attempt_id": "a", "logprobs": [0.0] * len(token_ids)},
        **{"call_ids": [f"{name}-{number}" for number in range(calls)]},
        **{"credits": [Credit(reward=0.0)] * calls, "model_versions": ["0"] * calls},
    }
    return TrainingRow(token_ids=token_ids, call_ranges=call_ranges, **{**made, **given})
