"""Train the agent of tests/seams/scripted.py with the real verl; what test_table.py starts.

    python table.py FOLDER CASES [OPTIONS]

A task for each case, all of them in each step, and a store that stays. OPTIONS is JSON: those of
``main``.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "seams"))

from scripted import COPIES, Script, agent_of, judge, judge_entry
from table_model import save_model
from verl_cpu import cpu_config, use_cpu

import agl


class Retrying(agl.VERL):
    @property
    def rollout_config(self) -> agl.RolloutConfig:
        again = {"retry_condition": ["unresponsive", "failed"]}
        return super().rollout_config.model_copy(update=again)


class Telling(agl.Hook):
    """Writes which calls the last update trains, with their advantages."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_update_start(self, rows: list[Any]) -> None:
        told = {
            f"{one.row.rollout_id}/{call_id}": advantage.value
            for one in rows
            for call_id, advantage in zip(one.row.call_ids, one.advantages, strict=True)
        }
        self._file.write_text(json.dumps(told))


def main(folder: Path, cases: list[str], adapter: dict[str, Any], steps: int = 1):
    """To the end; ``adapter`` has its options."""
    use_cpu()
    config = cpu_config(
        save_model(folder / "model"),
        **{"prompts_per_step": len(cases), "rollouts_per_prompt": COPIES},
        **{"max_prompt_length": 64, "max_response_length": 8},
        # verl wants a whole number of micro-batches in a step.
        actor_rollout_ref={
            "actor": {"ppo_micro_batch_size_per_gpu": COPIES},
            "rollout": {"log_prob_micro_batch_size_per_gpu": COPIES},
        },
        trainer={"total_training_steps": steps, "total_epochs": 1000},
    )
    del config["algorithm"]["adv_estimator"]  # VERL(algorithm=...) says it
    with judge() as server:
        agl.Trainer(
            algorithm=Retrying(config, algorithm="grpo", run_dir=str(folder)),
            adapter={"type": "rows", **adapter},
            store=agl.SqliteLightningStore(str(folder / "store.db")),
            strategy={"type": "cs", "server_port": 0},
            n_runners=1,
            hooks=[Telling(folder / "told.json")],
            llm_proxy=agl.LLMProxy(model_list=[judge_entry(server)]),
        ).fit(agent_of(Script()), [{"case": case, "words": "one two"} for case in cases])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), **json.loads(sys.argv[3]))
