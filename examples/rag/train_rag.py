"""Train the agent that looks things up.

    python wiki_retriever_mcp.py             # in another terminal
    python train_rag.py                      # Qwen2.5-1.5B-Instruct, one GPU, verl with GRPO
    python train_rag.py --tiny               # a few steps of a tiny model, verl on a CPU
    python train_rag.py --dev --scripted     # no training, no model: the line runs once
    OPENAI_BASE_URL=... python train_rag.py --dev --model NAME

``--tiny`` and ``--dev`` start the retriever themselves. See README.md beside this file.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rag_agent import rag_agent
from scripted_llm import scripted_reply
from wiki_retriever_mcp import retriever_process
from wiki_tasks import Question, load_tasks

import agl

Tasks = tuple[list[Question], list[Question]]


def verl_config(model: str, num_gpus: int) -> dict[str, Any]:
    """Verl's configuration, as a dict: what is not here keeps verl's default.

    Args:
        model: A folder or a Hugging Face name; it must know tools, in the format of Hermes.
        num_gpus: Of this machine. One needs 40 GB and keeps optimiser and weights in main memory
            between uses.
    """
    many = num_gpus > 1
    return {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {
            "train_batch_size": 32,  # tasks per step
            "max_prompt_length": 6144,  # the passages stand in it
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
                "ppo_mini_batch_size": 32,
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
            "project_name": "agl-rag",
            "experiment_name": f"{model.rpartition('/')[2]}-{num_gpus}gpu",
        },
    }


def train(model: str, num_gpus: int, tasks: Tasks, runners: int) -> None:
    """Train with verl; needs ``agl-verl[backend]``, vLLM, a GPU and the retriever."""
    algorithm = agl.VERL(verl_config(model, num_gpus))
    trainer = agl.Trainer(algorithm=algorithm, n_runners=runners, concurrency=16)
    trainer.fit(rag_agent, tasks[0], val_dataset=tasks[1])


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


def dry_run(tasks: list[Question], backend: dict[str, str], model: str, runners: int) -> int:
    """Run some tasks through everything but the training; returns how many got a reward."""
    algorithm = DryRun()
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=runners,
        strategy={"type": "shm", "main_thread": "algorithm"},
        llm_proxy=agl.LLMProxy(model_list=[{"model_name": model, "litellm_params": backend}]),
    )
    trainer.dev(rag_agent, tasks)
    rewards = [reward for reward in algorithm.rewards.values() if reward is not None]
    print(f"{len(rewards)} of {len(tasks)} questions have a reward; {sum(rewards):g} in all")
    return len(rewards)


def main() -> int:
    """Read the command line, and train or try."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="of this machine")
    parser.add_argument("--model", help="default: Qwen/Qwen2.5-1.5B-Instruct; --dev: gpt-4.1-mini")
    parser.add_argument("--runners", "--n-runners", type=int, help="default: 8; 1 for --dev")
    parser.add_argument("--tiny", action="store_true", help="train a tiny model with verl on a CPU")
    parser.add_argument("--steps", type=int, default=20, help="of --tiny")
    parser.add_argument("--out", type=Path, default="agl-runs/rag", help="folder of --tiny")
    parser.add_argument("--dev", action="store_true", help="run a few tasks, train nothing")
    parser.add_argument("--tasks", type=int, default=10, help="of --dev")
    parser.add_argument("--scripted", action="store_true", help="--dev without any model")
    parser.add_argument("--verbose", action="store_true", help="every span, and what is learned")
    options = parser.parse_args()
    agl.setup_logging("INFO" if options.verbose else "WARNING")
    if options.scripted and not options.dev:
        parser.error("--scripted is for --dev")
    tasks = load_tasks()
    if not options.dev and not options.tiny:
        model = options.model or "Qwen/Qwen2.5-1.5B-Instruct"
        train(model, options.gpus, tasks, options.runners or 8)
        return 0
    base = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    if options.dev and not options.scripted and not base:
        parser.error("--dev needs the address of a model in OPENAI_BASE_URL, or --scripted")
    with ExitStack() as stack:
        if "WIKI_RETRIEVER_URL" not in os.environ:
            os.environ["WIKI_RETRIEVER_URL"] = stack.enter_context(retriever_process())
        if options.tiny:
            from tiny_model import train_tiny

            train_tiny(options.steps, options.runners or 2, options.out)
            return 0
        if options.scripted:
            from agl_testing.echo_llm import EchoLLM

            server = stack.enter_context(EchoLLM(scripted_reply))
            model, backend = "scripted", {"model": "hosted_vllm/scripted", "api_base": server.url}
        else:
            model = options.model or "gpt-4.1-mini"
            backend = {"model": f"openai/{model}", "api_base": str(base)}
            backend["api_key"] = os.environ.get("OPENAI_API_KEY", "none")
        done = dry_run(tasks[1][: options.tasks], backend, model, options.runners or 1)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
