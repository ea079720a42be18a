r"""Train the agent that answers questions about charts.

    python train_chartqa_agent.py qwen                      # Qwen2.5-1.5B-Instruct, verl with GRPO
    python train_chartqa_agent.py debug --n-runners 2       # ten small steps of the same
    python train_chartqa_agent.py tiny                      # a tiny model, on a CPU
    AGL_MANAGED_STORE=0 python train_chartqa_agent.py qwen \
        --external-store-address http://localhost:4747

No trainer of agl takes images yet: a model that they train gets token ids, and pixels are none. So
a vision model, which is not trained, sees the charts, and the trained one works out the answer from
what was read off. The vision model is OPENAI_MODEL at OPENAI_API_BASE; see README.md.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from chart_tasks import load_tasks
from chartqa_agent import LitChartQAAgent
from env_var import openai_base, openai_key, openai_model
from multimodal_utils import ImageUrls

import agl

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
VISION_MODEL = "Qwen/Qwen2-VL-2B-Instruct"
SEES = "vision"
"""The vision model's name at the gateway."""
NO_IMAGES = (
    "agl's trainers take token ids and no images. Charts are seen by {vision}, which is not "
    "trained; {model} is, by what it works out from the data that were read off."
)


def verl_config(profile: str, num_gpus: int) -> dict[str, Any]:
    """Verl's configuration, as a dict: what is not here keeps verl's default.

    Args:
        profile: ``qwen``, or ``debug`` for ten small steps.
        num_gpus: Of this machine. One needs 40 GB and keeps optimiser and weights in main memory
            between uses.
    """
    many, short = num_gpus > 1, profile == "debug"
    tasks_per_step = 8 if short else 32
    return {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {
            "train_batch_size": tasks_per_step,
            "max_prompt_length": 2048,
            "max_response_length": 1024,
        },
        "actor_rollout_ref": {
            "model": {
                "path": MODEL,
                "use_remove_padding": True,
                "enable_gradient_checkpointing": True,
            },
            "rollout": {
                "name": "vllm",
                "n": 4,  # rollouts per task
                "tensor_model_parallel_size": 1,  # so that each GPU serves a replica
                "gpu_memory_utilization": 0.4,  # the vision model may be on the same GPU
                "log_prob_micro_batch_size_per_gpu": 4,
            },
            "actor": {
                "ppo_mini_batch_size": tasks_per_step,
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
            "val_before_train": not short,
            "test_freq": 10 if short else 32,
            "save_freq": -1 if short else 64,
            "total_epochs": 2,
            "total_training_steps": 10 if short else None,
            "logger": ["console"],
            "project_name": "agl-chartqa",
            "experiment_name": f"{profile}-{num_gpus}gpu",
        },
    }


def vision_proxy(base: str, model: str) -> agl.LLMProxy:
    """A gateway with the model that sees; the algorithm adds the one that it trains."""
    backend = {"model": f"openai/{model}", "api_base": base}
    if key := openai_key():
        backend["api_key"] = key
    return agl.LLMProxy(model_list=[{"model_name": SEES, "litellm_params": backend}])


def train(
    profile: str,
    *,
    base: str,
    num_gpus: int,
    active_agent: str,
    runners: int,
    address: str | None,
    image_urls: ImageUrls,
) -> None:
    """Train with verl; needs ``agl-verl[backend]``, vLLM, a GPU and a vision model at ``base``."""
    train_tasks, val_tasks = load_tasks()
    vision = openai_model(VISION_MODEL)
    print(NO_IMAGES.format(vision=f"{vision} at {base}", model=MODEL), flush=True)
    trainer = agl.Trainer(
        algorithm=agl.VERL(verl_config(profile, num_gpus)),
        n_runners=runners,
        concurrency=16,
        store=agl.LightningStoreClient(address) if address else None,
        llm_proxy=vision_proxy(base, vision),
        adapter={"agent_match": active_agent},
    )
    trainer.fit(LitChartQAAgent(SEES, image_urls=image_urls), train_tasks, val_dataset=val_tasks)


def train_tiny(steps: int, active_agent: str, runners: int, out: Path) -> None:
    """The same agent and the same line, with a model of 0.1 M parameters and agl-torch."""
    from scripted_llm import scripted_reply
    from tiny_model import conversation, tiny_tasks

    from agl_testing.echo_llm import EchoLLM
    from agl_testing.tiny_model import tiny_model

    tasks = tiny_tasks()
    print(NO_IMAGES.format(vision="a script", model="a tiny model"), flush=True)
    with EchoLLM(scripted_reply) as eyes:
        trainer = agl.Trainer(
            algorithm=agl.GRPO(
                model=tiny_model(out / "tiny-model", conversation, steps=200),
                steps=steps,
                groups_per_step=8,
                group_size=8,
                epochs=2,
                learning_rate=1e-3,
                entropy_bonus=0.03,
                max_tokens=12,
                evaluation={"every": steps, "temperature": 1.0, "copies": 4},
                run_dir=str(out),
                device="cpu",
                torch_threads=1,
            ),
            store=agl.SqliteLightningStore(out / "store.db"),
            strategy={"type": "cs", "server_port": 0},
            n_runners=runners,
            concurrency=8,
            llm_proxy=vision_proxy(eyes.url, "scripted"),
            adapter={"agent_match": active_agent},
        )
        trainer.fit(LitChartQAAgent(SEES), tasks, val_dataset=tasks)


def main() -> int:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", nargs="?", default="qwen", choices=["debug", "qwen", "tiny"])
    parser.add_argument("--n-runners", type=int, help="default: 8; 2 for tiny")
    parser.add_argument("--external-store-address", help="of a store that agl store serves")
    parser.add_argument("--gpus", type=int, default=1, help="of this machine")
    parser.add_argument(
        "--active-agent",
        default="calculate|refine",
        metavar="REGEX",
        help="which nodes are learned from; default: calculate|refine",
    )
    parser.add_argument(
        "--image-urls",
        default="data",
        choices=["data", "file"],
        help="how charts go to the vision model: as data, or as addresses of files on its machine",
    )
    parser.add_argument("--steps", type=int, default=10, help="of tiny")
    parser.add_argument("--out", type=Path, help="folder that tiny writes to")
    parser.add_argument("--verbose", action="store_true", help="every span, and what is learned")
    options = parser.parse_args()
    agl.setup_logging("INFO" if options.verbose else "WARNING")
    if options.profile == "tiny":
        out = options.out or Path("agl-runs") / time.strftime("chartqa-%Y%m%d-%H%M%S")
        out.mkdir(parents=True, exist_ok=True)
        train_tiny(options.steps, options.active_agent, options.n_runners or 2, out)
        print(f"the run is in {out}: agl ledger {out}")
        return 0
    base = openai_base()
    if base is None:
        parser.error(
            "agl's trainers take no images, so a model that is not trained has to see the charts: "
            f"set OPENAI_API_BASE to its address, and OPENAI_MODEL if it is not {VISION_MODEL}"
        )
    train(
        options.profile,
        base=base,
        num_gpus=options.gpus,
        active_agent=options.active_agent,
        runners=options.n_runners or 8,
        address=options.external_store_address,
        image_urls=options.image_urls,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
