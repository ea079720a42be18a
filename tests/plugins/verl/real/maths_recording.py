"""A trainer of verl that writes down what each step trains on; for ``test_maths_run.py``."""

import json
import os
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_from_nested

FIELDS = [
    "response_mask", "rm_scores", "rollout_log_probs", "old_log_probs", "values", "returns",
    "advantages", "agl_weights", "rollout_is_weights", "sum_pi_squared",
]  # fmt: skip


class Recording(PPOTrainerSync):
    """One line of JSON per step: the rows as they are when the actor is about to be updated."""

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        of_batch = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = tq.kv_batch_get(**of_batch, select_fields=FIELDS)
        if "sum_pi_squared" in data:
            whole = data.pop("sum_pi_squared")
            data["sum_pi_squared"] = response_from_nested(whole, data["response_mask"])
        rows = {
            key: {"padding": bool(tag.get("is_padding", False))}
            for key, tag in zip(batch.keys, batch.tags, strict=True)
        }
        for name in data.keys():  # noqa: SIM118 (a TensorDict iterates over its rows)
            for key, values in zip(batch.keys, data[name].unbind(), strict=True):
                rows[key][name] = values.tolist()
        with open(os.environ["AGL_TEST_RECORD"], "a") as file:
            file.write(json.dumps(rows) + "\n")
        return super()._update_actor(batch, metrics)
