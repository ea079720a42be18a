"""Train the SQL agent.

    python train_sql_agent.py qwen                    # Qwen2.5-Coder-1.5B, one GPU, verl
    python train_sql_agent.py qwen --gpus 8           # the same on eight
    python train_sql_agent.py llama                   # Llama-3.2-1B
    python train_sql_agent.py fast                    # one step of Qwen2.5-Coder-0.5B
    python train_sql_agent.py npu                     # as qwen, on an Ascend NPU
    python train_sql_agent.py tiny                    # a few steps of a tiny model, on a CPU
    python train_sql_agent.py --dev --scripted        # no training, no model: the line runs once
    OPENAI_BASE_URL=... python train_sql_agent.py --dev --model NAME

See README.md beside this file.
"""

import argparse
import functools
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from scripted_llm import scripted_reply
from sql_agent import LitSQLAgent
from sql_tasks import SqlTask, load_small_tasks, load_tasks
from tiny_model import conversation, easy_tasks

import agl
from agl_testing.tiny_model import tiny_model

MODELS = {
    "qwen": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "llama": "meta-llama/Llama-3.2-1B-Instruct",
    "fast": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    "npu": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
}
"""Profile -> model. The agent calls no tools, so any model that was made for chat will do."""


def verl_config(profile: str, num_gpus: int) -> dict[str, Any]:
    """Verl's configuration, as a dict: what is not here keeps verl's default.

    Args:
        profile: One of ``MODELS``; ``fast`` makes one step, ``npu`` uses an Ascend NPU.
        num_gpus: Of this machine. One needs 40 GB and keeps optimiser and weights in main memory
            between uses; with eight everything stays on the GPUs, and a step has twice as
            many tasks.
    """
    many = num_gpus > 1
    return {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {
            "train_batch_size": 64 if many else 32,  # tasks per step
            "max_prompt_length": 4096,
            "max_response_length": 2048,
        },
        "actor_rollout_ref": {
            "model": {
                "path": MODELS[profile],
                "use_remove_padding": True,
                "enable_gradient_checkpointing": True,
            },
            "rollout": {
                "name": "vllm",
                "n": 4,  # rollouts per task
                "tensor_model_parallel_size": 1,  # so that each GPU serves a replica
                "gpu_memory_utilization": 0.6,
                "log_prob_micro_batch_size_per_gpu": 4,
            },
            "actor": {
                "ppo_mini_batch_size": 64 if many else 32,
                "ppo_micro_batch_size_per_gpu": 4,
                "optim": {"lr": 1e-6},
                "use_kl_loss": False,
                "entropy_coeff": 0,
                "clip_ratio_low": 0.2,
                "clip_ratio_high": 0.3,
                "fsdp_config": {"param_offload": not many, "optimizer_offload": not many},
            },
        },
        "trainer": {
            "n_gpus_per_node": num_gpus,
            "nnodes": 1,
            "val_before_train": True,
            "test_freq": 32,
            "save_freq": 64,
            "total_epochs": 2,
            "logger": ["console"],
            "project_name": "agl-spider",
            "experiment_name": f"{profile}-{num_gpus}gpu",
            "device": "npu" if profile == "npu" else "cuda",
            "total_training_steps": 1 if profile == "fast" else None,
        },
    }


def train(profile: str, num_gpus: int, active_agent: str, runners: int) -> None:
    """Train with verl; needs ``agl-verl[backend]``, vLLM and a GPU."""
    train_tasks, val_tasks = load_tasks()
    trainer = agl.Trainer(
        algorithm=agl.VERL(verl_config(profile, num_gpus)),
        n_runners=runners,
        adapter={"agent_match": active_agent},
    )
    trainer.fit(LitSQLAgent(), train_tasks, val_dataset=val_tasks)


def train_tiny(steps: int, active_agent: str, runners: int, out: Path) -> None:
    """The same agent and the same line, with a model of 110,000 parameters and agl-torch."""
    tasks = easy_tasks(load_small_tasks()[0])
    trainer = agl.Trainer(
        algorithm=agl.GRPO(
            model=tiny_model(out / "tiny-model", functools.partial(conversation, tasks), steps=200),
            steps=steps,
            groups_per_step=8,
            group_size=8,
            epochs=2,
            learning_rate=1e-3,
            entropy_bonus=0.03,
            max_tokens=24,
            evaluation={"every": 10, "temperature": 1.0, "copies": 2},
            run_dir=str(out),
            device="cpu",
            torch_threads=1,
        ),
        store=agl.SqliteLightningStore(out / "store.db"),
        strategy={"type": "cs", "server_port": 0},
        n_runners=runners,
        adapter={"agent_match": active_agent},
    )
    trainer.fit(LitSQLAgent(max_turns=2), tasks, val_dataset=tasks)


class DryRun(agl.Baseline):
    """Runs the tasks once, with the gateway's model, and says what could be learned from each."""

    default_adapter = "rows"

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Publish the model, do what ``Baseline`` does, and show rewards and rows."""
        proxy, store = self.get_llm_proxy(), self.get_store()
        assert proxy is not None
        await store.add_resources({"main_llm": proxy.as_resource()})
        await super().run(train_dataset, val_dataset)
        for rollout_id, reward in self.rewards.items():
            result = self.get_adapter().adapt(await store.query_spans(rollout_id, "latest"))
            nodes = ", ".join(str(row.agent_name) for row in result.rows)
            left_out = ", ".join(f"{n} {why}" for why, n in result.ledger.reasons().items())
            print(f"{rollout_id}  reward {reward}  learned: {nodes}  left out: {left_out}")


def dry_run(num_tasks: int, model: str, scripted: bool, active_agent: str, runners: int) -> int:
    """Run some tasks through everything but the training; returns how many got a reward."""
    from agl_testing.echo_llm import EchoLLM

    train_tasks, val_tasks = load_tasks()
    tasks: list[SqlTask] = val_tasks[:num_tasks]
    algorithm = DryRun()
    server = EchoLLM(scripted_reply(train_tasks + val_tasks)) if scripted else nullcontext()
    with server:
        backend = {"model": f"openai/{model}", "api_base": os.environ.get("OPENAI_BASE_URL")}
        if isinstance(server, EchoLLM):
            backend = {"model": "hosted_vllm/scripted", "api_base": server.url}
        elif key := os.environ.get("OPENAI_API_KEY"):
            backend["api_key"] = key
        trainer = agl.Trainer(
            algorithm=algorithm,
            n_runners=runners,
            strategy={"type": "shm", "main_thread": "algorithm"},
            adapter={"agent_match": active_agent},
            llm_proxy=agl.LLMProxy(model_list=[{"model_name": model, "litellm_params": backend}]),
        )
        trainer.dev(LitSQLAgent(), tasks)
    rewards = [reward for reward in algorithm.rewards.values() if reward is not None]
    print(f"{len(rewards)} of {len(tasks)} tasks have a reward; {sum(rewards):g} are right")
    return len(rewards)


def main() -> int:
    """Read the command line, and train or try."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", nargs="?", default="qwen", choices=[*MODELS, "tiny"])
    parser.add_argument("--gpus", type=int, default=1, help="of this machine")
    parser.add_argument(
        "--active-agent",
        default="write",
        metavar="REGEX",
        help="which nodes are learned from; default: write, which is write_query and rewrite_query",
    )
    parser.add_argument("--runners", type=int, help="default: 8; 2 for tiny, 1 for --dev")
    parser.add_argument("--steps", type=int, default=20, help="of tiny")
    parser.add_argument("--out", type=Path, help="folder that tiny writes to")
    parser.add_argument("--dev", action="store_true", help="run a few tasks, train nothing")
    parser.add_argument("--tasks", type=int, default=10, help="of --dev")
    parser.add_argument("--model", default="gpt-4.1-nano", help="of --dev, at OPENAI_BASE_URL")
    parser.add_argument("--scripted", action="store_true", help="--dev without any model")
    parser.add_argument("--verbose", action="store_true", help="every span, and what is learned")
    options = parser.parse_args()
    agl.setup_logging("INFO" if options.verbose else "WARNING")
    if options.scripted and not options.dev:
        parser.error("--scripted is for --dev")
    if options.dev:
        if not options.scripted and not os.environ.get("OPENAI_BASE_URL"):
            parser.error("--dev needs the address of a model in OPENAI_BASE_URL, or --scripted")
        done = dry_run(
            options.tasks,
            options.model,
            options.scripted,
            options.active_agent,
            options.runners or 1,
        )
        return 0 if done else 1
    if options.profile == "tiny":
        out = options.out or Path("agl-runs") / time.strftime("spider-%Y%m%d-%H%M%S")
        out.mkdir(parents=True, exist_ok=True)
        train_tiny(options.steps, options.active_agent, options.runners or 2, out)
        print(f"the run is in {out}: agl ledger {out}")
        return 0
    train(options.profile, options.gpus, options.active_agent, options.runners or 8)
    return 0


if __name__ == "__main__":
    sys.exit(main())
