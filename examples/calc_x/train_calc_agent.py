"""Train the calculator agent.

    python train_calc_agent.py                        # Qwen2.5-1.5B, one GPU, verl
    python train_calc_agent.py --gpus 8 --model Qwen/Qwen2.5-7B-Instruct
    python train_calc_agent.py --train-file data/train.parquet --val-file data/test.parquet
    python train_calc_agent.py --tiny                 # a few steps of a tiny model, verl on a CPU
    python train_calc_agent.py --dev --scripted       # no training, no model: the line runs once
    OPENAI_BASE_URL=... python train_calc_agent.py --dev --model NAME
    AGL_CURRENT_ROLE=runner python train_calc_agent.py --external-store-address http://...

See README.md beside this file.
"""

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from calc_agent import calc_agent
from calc_tasks import CalcTask, load_tasks
from scripted_llm import scripted_reply

import agl


def verl_config(model: str, num_gpus: int) -> dict[str, Any]:
    """Verl's configuration, as a dict: what is not here keeps verl's default.

    Args:
        model: A folder or a Hugging Face name; it must know tools, in the format of Hermes.
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
                "path": model,
                "use_remove_padding": True,
                "enable_gradient_checkpointing": True,
            },
            "rollout": {
                "name": "vllm",
                "n": 4,  # rollouts per task
                "tensor_model_parallel_size": 1,  # so that each GPU serves a replica
                "gpu_memory_utilization": 0.6,
                "multi_turn": {"format": "hermes"},
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
            "project_name": "agl-calc-x",
            "experiment_name": f"{model.rpartition('/')[2]}-{num_gpus}gpu",
        },
    }


Tasks = tuple[list[CalcTask], list[CalcTask]]


def train(model: str, num_gpus: int, tasks: Tasks, runners: int, address: str | None) -> None:
    """Train with verl; needs ``agl-verl[backend]``, vLLM and a GPU."""
    algorithm = agl.VERL(verl_config(model, num_gpus))
    store = agl.LightningStoreClient(address) if address else None
    trainer = agl.Trainer(algorithm=algorithm, n_runners=runners, concurrency=16, store=store)
    trainer.fit(calc_agent, tasks[0], val_dataset=tasks[1])


def train_tiny(steps: int, runners: int, out: Path) -> None:
    """The same with a model of 0.1 M parameters and without a GPU; needs ``agl-verl[backend]``."""
    from tiny_model import conversation, tiny_tasks

    from agl_testing.tiny_model import tiny_model

    sys.path.append(str(Path(__file__).parents[2] / "tests/plugins/verl/real"))
    from verl_cpu import cpu_config, use_cpu

    use_cpu()
    tasks = tiny_tasks()
    config = cpu_config(
        tiny_model(out / "tiny-model", conversation),
        prompts_per_step=10,
        rollouts_per_prompt=8,
        max_prompt_length=128,
        max_response_length=12,
        learning_rate=1e-3,
        actor_rollout_ref={
            "actor": {"ppo_epochs": 2},
            "rollout": {
                "multi_turn": {"format": "hermes"},
                "val_kwargs": {"n": 8, "temperature": 1.0, "do_sample": True, "top_p": 1.0},
            },
        },
        trainer={
            "total_training_steps": steps,
            "total_epochs": steps,
            "val_before_train": True,
            "test_freq": steps,
        },
    )
    algorithm = agl.VERL(config, rollout_timeout_seconds=120, run_dir=str(out))
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=runners,
        concurrency=16,
        strategy={"type": "cs", "server_port": 0},
    )
    trainer.fit(calc_agent, tasks[0], val_dataset=tasks[1])
    print(f"reward of each step: {[round(r, 2) for r in algorithm.summary['rewards']]}")
    for step, reward in algorithm.summary["val_rewards"]:
        print(f"reward on held-out problems after step {step}: {reward:.2f}")


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
            learned = f"{sum(len(row.call_ids) for row in result.rows)} calls"
            left_out = ", ".join(f"{n} {why}" for why, n in result.ledger.reasons().items())
            print(f"{rollout_id}  reward {reward}  learned: {learned}  left out: {left_out}")


def dry_run(tasks: Tasks, num_tasks: int, model: str, scripted: bool, runners: int) -> int:
    """Run some tasks through everything but the training; returns how many got a reward."""
    from agl_testing.echo_llm import EchoLLM

    chosen = tasks[1][:num_tasks]
    algorithm = DryRun()
    server = EchoLLM(scripted_reply([*tasks[0], *tasks[1]])) if scripted else nullcontext()
    with server:
        backend = {"model": f"openai/{model}", "api_base": os.environ.get("OPENAI_BASE_URL")}
        if isinstance(server, EchoLLM):
            backend = {"model": "hosted_vllm/scripted", "api_base": server.url}
        elif key := os.environ.get("OPENAI_API_KEY"):
            backend["api_key"] = key
        trainer = agl.Trainer(
            algorithm=algorithm,
            n_runners=runners,
            concurrency=16,
            strategy={"type": "shm", "main_thread": "algorithm"},
            llm_proxy=agl.LLMProxy(model_list=[{"model_name": model, "litellm_params": backend}]),
        )
        trainer.dev(calc_agent, chosen)
    rewards = [reward for reward in algorithm.rewards.values() if reward is not None]
    print(f"{len(rewards)} of {len(chosen)} tasks have a reward; {sum(rewards):g} are right")
    return len(rewards)


def main() -> int:
    """Read the command line, and train or try."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="of this machine")
    parser.add_argument("--model", help="default: Qwen/Qwen2.5-1.5B-Instruct; --dev: gpt-4.1-nano")
    parser.add_argument("--train-file", type=Path, help="parquet; default: see README.md")
    parser.add_argument("--val-file", type=Path, help="parquet; default: see README.md")
    parser.add_argument("--n-runners", type=int, help="default: 8, 2 for --tiny, 1 for --dev")
    parser.add_argument("--external-store-address", help="of a store that agl store serves")
    parser.add_argument("--tiny", action="store_true", help="train a tiny model with verl on a CPU")
    parser.add_argument("--steps", type=int, default=20, help="of --tiny")
    parser.add_argument("--out", type=Path, default="agl-runs/calc-x", help="folder of --tiny")
    parser.add_argument("--dev", action="store_true", help="run a few tasks, train nothing")
    parser.add_argument("--tasks", type=int, default=10, help="of --dev")
    parser.add_argument("--scripted", action="store_true", help="--dev without any model")
    parser.add_argument("--verbose", action="store_true", help="every span, and what is learned")
    options = parser.parse_args()
    agl.setup_logging("INFO" if options.verbose else "WARNING")
    if options.scripted and not options.dev:
        parser.error("--scripted is for --dev")
    if options.tiny:
        train_tiny(options.steps, options.n_runners or 2, options.out)
        return 0
    tasks = load_tasks(options.train_file, options.val_file)
    if not options.dev:
        model = options.model or "Qwen/Qwen2.5-1.5B-Instruct"
        train(model, options.gpus, tasks, options.n_runners or 8, options.external_store_address)
        return 0
    if not options.scripted and not os.environ.get("OPENAI_BASE_URL"):
        parser.error("--dev needs the address of a model in OPENAI_BASE_URL, or --scripted")
    model = options.model or ("scripted" if options.scripted else "gpt-4.1-nano")
    done = dry_run(tasks, options.tasks, model, options.scripted, options.n_runners or 1)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
