"""Train the agent that searches.

    python retrieval_server.py                       # in another terminal
    python train_search_r1_agent.py llama            # Llama-3.2-3B-Instruct, eight GPUs, verl
    python train_search_r1_agent.py qwen             # Qwen2.5-3B-Instruct
    python train_search_r1_agent.py tiny             # a few steps of a tiny model, on a CPU
    python train_search_r1_agent.py --dev --scripted # no training, no model: the line runs once
    OPENAI_BASE_URL=... python train_search_r1_agent.py --dev --model NAME

``tiny`` and ``--dev`` start the retrieval server themselves. See README.md beside this file.
"""

import argparse
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from retrieval_server import retrieval_process
from scripted_llm import scripted_reply
from search_r1_agent import SearchR1Agent
from search_tasks import SearchTask, load_tasks

import agl

MODELS = {"llama": "meta-llama/Llama-3.2-3B-Instruct", "qwen": "Qwen/Qwen2.5-3B-Instruct"}
"""Profile -> model. The agent calls no tools, so any model that was made for chat will do."""


def verl_config(profile: str, num_gpus: int) -> dict[str, Any]:
    """Verl's configuration, as a dict: what is not here keeps verl's default.

    Args:
        profile: ``llama`` or ``qwen``.
        num_gpus: Of this machine; eight of 40 GB, or fewer larger ones.
    """
    return {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {
            "train_batch_size": 256,  # tasks per step
            "max_prompt_length": 6144,  # what was retrieved stands in it
            "max_response_length": 1024,
        },
        "actor_rollout_ref": {
            "model": {
                "path": MODELS[profile],
                "use_remove_padding": True,
                "enable_gradient_checkpointing": True,
            },
            "rollout": {
                "name": "vllm",
                "n": 5,  # rollouts per task
                "tensor_model_parallel_size": 1,  # so that each GPU serves a replica
                "gpu_memory_utilization": 0.6,
                "log_prob_micro_batch_size_per_gpu": 4,
            },
            "actor": {
                "ppo_mini_batch_size": 256,
                "ppo_micro_batch_size_per_gpu": 4,
                "optim": {"lr": 1e-6},
                "use_kl_loss": True,
                "kl_loss_coef": 0.001,
                "kl_loss_type": "low_var_kl",
                "entropy_coeff": 0,
                "fsdp_config": {"param_offload": True, "optimizer_offload": True},
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": 4, "fsdp_config": {"param_offload": True}},
        },
        "trainer": {
            "n_gpus_per_node": num_gpus,
            "nnodes": 1,
            "val_before_train": True,
            "test_freq": 20,
            "save_freq": 50,
            "total_epochs": 1,
            "logger": ["console"],
            "project_name": "agl-search-r1",
            "experiment_name": f"{profile}-{num_gpus}gpu",
        },
    }


def train(profile: str, num_gpus: int, runners: int) -> None:
    """Train with verl; needs ``agl-verl[backend]``, vLLM, GPUs and the retrieval server."""
    train_tasks, val_tasks = load_tasks()
    trainer = agl.Trainer(
        algorithm=agl.VERL(verl_config(profile, num_gpus)), n_runners=runners, concurrency=16
    )
    trainer.fit(SearchR1Agent(), train_tasks, val_dataset=val_tasks)


def train_tiny(steps: int, runners: int, out: Path) -> None:
    """The same agent and the same line, with a model of 0.1 M parameters and agl-torch."""
    from tiny_model import conversation, tiny_tasks

    from agl_testing.tiny_model import tiny_model

    train_tasks, val_tasks = tiny_tasks()
    trainer = agl.Trainer(
        algorithm=agl.GRPO(
            model=tiny_model(out / "tiny-model", conversation),
            steps=steps,
            groups_per_step=8,
            group_size=12,
            epochs=2,
            learning_rate=1e-3,
            max_tokens=12,
            evaluation={"every": steps, "temperature": 1.0, "copies": 8},
            run_dir=str(out),
            device="cpu",
            torch_threads=1,
        ),
        store=agl.SqliteLightningStore(out / "store.db"),
        strategy={"type": "cs", "server_port": 0},
        n_runners=runners,
        concurrency=8,
    )
    trainer.fit(SearchR1Agent(max_turns=2, topk=1), train_tasks, val_dataset=val_tasks)


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
            rows = f"in {len(result.rows)} row(s)"
            print(f"{rollout_id}  reward {reward}  learned: {learned} {rows}  left out: {left_out}")


def dry_run(tasks: list[SearchTask], backend: dict[str, str], model: str, runners: int) -> int:
    """Run some tasks through everything but the training; returns how many got a reward."""
    algorithm = DryRun()
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=runners,
        strategy={"type": "shm", "main_thread": "algorithm"},
        llm_proxy=agl.LLMProxy(model_list=[{"model_name": model, "litellm_params": backend}]),
    )
    trainer.dev(SearchR1Agent(), tasks)
    rewards = [reward for reward in algorithm.rewards.values() if reward is not None]
    print(f"{len(rewards)} of {len(tasks)} questions have a reward; {sum(rewards):g} are right")
    return len(rewards)


def main() -> int:
    """Read the command line, and train or try."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", nargs="?", default="llama", choices=[*MODELS, "tiny"])
    parser.add_argument("--gpus", type=int, default=8, help="of this machine")
    parser.add_argument("--runners", type=int, help="default: 32; 2 for tiny, 1 for --dev")
    parser.add_argument("--steps", type=int, default=20, help="of tiny")
    parser.add_argument("--out", type=Path, help="folder that tiny writes to")
    parser.add_argument("--dev", action="store_true", help="run a few tasks, train nothing")
    parser.add_argument("--tasks", type=int, default=10, help="of --dev")
    parser.add_argument("--model", default="gpt-4.1-mini", help="of --dev, at OPENAI_BASE_URL")
    parser.add_argument("--scripted", action="store_true", help="--dev without any model")
    parser.add_argument("--verbose", action="store_true", help="every span, and what is learned")
    options = parser.parse_args()
    agl.setup_logging("INFO" if options.verbose else "WARNING")
    if options.scripted and not options.dev:
        parser.error("--scripted is for --dev")
    if not options.dev and options.profile != "tiny":
        train(options.profile, options.gpus, options.runners or 32)
        return 0
    base = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    if options.dev and not options.scripted and not base:
        parser.error("--dev needs the address of a model in OPENAI_BASE_URL, or --scripted")
    with ExitStack() as stack:
        if "RETRIEVAL_SERVER_URL" not in os.environ:
            os.environ["RETRIEVAL_SERVER_URL"] = stack.enter_context(retrieval_process())
        if not options.dev:
            out = options.out or Path("agl-runs") / time.strftime("search-r1-%Y%m%d-%H%M%S")
            out.mkdir(parents=True, exist_ok=True)
            train_tiny(options.steps, options.runners or 2, out)
            print(f"the run is in {out}: agl ledger {out}")
            return 0
        model, backend = options.model, {"model": f"openai/{options.model}", "api_base": str(base)}
        backend["api_key"] = os.environ.get("OPENAI_API_KEY", "none")
        if options.scripted:
            from agl_testing.echo_llm import EchoLLM

            server = stack.enter_context(EchoLLM(scripted_reply))
            model, backend = "scripted", {"model": "hosted_vllm/scripted", "api_base": server.url}
        tasks = load_tasks()[1][: options.tasks]
        done = dry_run(tasks, backend, model, options.runners or 1)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
