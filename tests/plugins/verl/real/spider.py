"""Train the SQL agent of ``examples/spider`` with the real verl on a CPU: ``spider.py DIR STEPS``.

The tiny model of the example; of the three agents write, check and rewrite the first and the last
are trained, a row per call.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "examples" / "spider"))

from sql_agent import LitSQLAgent
from sql_tasks import load_small_tasks
from tiny_model import conversation, easy_tasks
from verl_cpu import cpu_config, use_cpu

import agl
from agl_testing.tiny_model import tiny_model


def main(out, steps):
    """Train to the end."""
    use_cpu()
    tasks = easy_tasks(load_small_tasks()[0])
    config = cpu_config(
        tiny_model(out / "model", partial(conversation, tasks), steps=200),
        prompts_per_step=8,
        rollouts_per_prompt=8,
        max_prompt_length=400,
        max_response_length=24,
        learning_rate=1e-3,
        actor_rollout_ref={"actor": {"ppo_epochs": 2, "entropy_coeff": 0.03}},
        trainer={"total_training_steps": steps, "total_epochs": 1000},
    )
    config["agentlightning"] = {"trace_aggregator": {"level": "transition"}}
    agl.Trainer(
        algorithm=agl.VERL(config, rollout_timeout_seconds=60, run_dir=str(out)),
        strategy={"type": "cs", "server_port": 0},
        n_runners=2,
        adapter={"agent_match": "write|rewrite"},
    ).fit(LitSQLAgent(max_turns=2), tasks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
