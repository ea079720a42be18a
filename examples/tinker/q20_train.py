"""Train a player of twenty questions, at Tinker or with verl.

    python q20_train.py dryrun --scripted        # a few games, no model: the line runs once
    python q20_train.py dryrun                   # the same with the helper's model as player

    export AGL_SERVER_TOKEN=a-long-random-text   # in each terminal
    agl store --port 4747
    python q20_train.py algo --model qwen30b --search --port 4747
    python q20_train.py runner --search --port 4747 --n-runners 4
    python q20_train.py verl                     # instead of algo and runner: GPUs of one's own

``algo`` needs ``TINKER_API_KEY``; runners call the helper at ``OPENAI_BASE_URL`` (see
``.env.example``). Runners may be added at any time.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

from hello import start_runners
from q20_agent import Model, Noun, helper_model, load_nouns, play

import agl

MODELS = {"qwen4b": "Qwen/Qwen3-4B-Instruct-2507", "qwen30b": "Qwen/Qwen3-30B-A3B-Instruct-2507"}


class Q20Agent(agl.LitAgent[Noun]):
    """Plays one game; the reward is the game's.

    The answerer knows the secret, so it is part of the environment: its calls go to the helper
    directly, and are not recorded.

    Args:
        search: Whether the player may search.
    """

    def __init__(self, search: bool = False) -> None:
        super().__init__()
        self.search = search

    async def rollout_async(
        self, task: Noun, resources: agl.NamedResources, rollout: agl.Rollout
    ) -> float:
        """Play."""
        from openai import AsyncOpenAI

        llm = resources["main_llm"]
        assert isinstance(llm, agl.LLM)
        if isinstance(llm, agl.ProxyLLM):
            assert isinstance(rollout, agl.AttemptedRollout)
            llm = llm.with_attempted_rollout(rollout)
        async with AsyncOpenAI(
            base_url=llm.endpoint,
            api_key=llm.api_key or "none",
            timeout=600,
            max_retries=0,  # the gateway retries, and records each call once
        ) as client:
            player = Model(client, llm.model, llm.sampling_parameters)
            game = await play(task, player, helper_model(), search=self.search)
        agl.emit_object({"solved": game.solved, "turns": game.turns, "searches": game.searches})
        return game.reward


def tinker(model: str, **options: Any) -> Any:
    """The training at Tinker; ``options`` are those of ``Tinker``, over the ones set here."""
    from agl_tinker import Tinker

    settings: dict[str, Any] = {
        "base_model": MODELS[model],
        "loss": "importance_sampling",
        "learning_rate": 4e-5,
        "iterations": 20,
        "tasks_per_iteration": 16,
        "rollouts_per_task": 8,
        "max_tokens": 64,
        "run_dir": f"logs/q20_{model}",
    }
    return Tinker(**{**settings, **options})


def verl_config(model: str, num_gpus: int) -> dict[str, Any]:
    """Verl's configuration, as a dict: what is not here keeps verl's default."""
    return {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {"train_batch_size": 16, "max_prompt_length": 3072, "max_response_length": 512},
        "actor_rollout_ref": {
            "model": {"path": MODELS[model], "enable_gradient_checkpointing": True},
            "rollout": {
                "name": "vllm",
                "n": 8,  # rollouts per task
                "gpu_memory_utilization": 0.6,
                "log_prob_micro_batch_size_per_gpu": 4,
            },
            "actor": {
                "ppo_mini_batch_size": 16,
                "ppo_micro_batch_size_per_gpu": 4,
                "optim": {"lr": 1e-6},
                "use_kl_loss": False,
                "fsdp_config": {"param_offload": True, "optimizer_offload": True},
            },
        },
        "trainer": {
            "n_gpus_per_node": num_gpus,
            "nnodes": 1,
            "val_before_train": True,
            "test_freq": 5,
            "total_epochs": 6,
            "logger": ["console"],
            "project_name": "agl-q20",
            "experiment_name": model,
        },
    }


class DryRun(agl.Baseline):
    """Plays the games once, with the gateway's model, and says what could be learned from each."""

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


def dry_run(games: int, search: bool, scripted: bool) -> int:
    """Play some games through everything but the training; returns how many got a reward."""
    algorithm = DryRun()
    with ExitStack() as stack:
        params = {"model": f"openai/{os.environ.get('HELPER_MODEL', 'gpt-4.1-mini')}"}
        if scripted:
            from scripted_llm import scripted_reply

            from agl_testing.echo_llm import EchoLLM

            server = stack.enter_context(EchoLLM(scripted_reply))
            os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = server.url, "none"
            params["model"] = "hosted_vllm/scripted"
        base = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
        params["api_base"] = base or "https://api.openai.com/v1"
        params["api_key"] = os.environ.get("OPENAI_API_KEY", "none")
        trainer = agl.Trainer(
            algorithm=algorithm,
            strategy={"type": "shm", "main_thread": "algorithm"},
            llm_proxy=agl.LLMProxy(model_list=[{"model_name": "player", "litellm_params": params}]),
        )
        trainer.dev(Q20Agent(search), load_nouns("test")[:games])
    rewards = [reward for reward in algorithm.rewards.values() if reward is not None]
    print(f"{len(rewards)} games have a reward; {sum(reward > 0 for reward in rewards)} are won")
    return len(rewards)


def main() -> int:
    """Do one of the four."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=["dryrun", "algo", "runner", "verl"])
    parser.add_argument("--model", choices=sorted(MODELS), default="qwen4b")
    parser.add_argument("--search", action="store_true", help="the player may search")
    parser.add_argument("--host", default="localhost", help="of the store")
    parser.add_argument("--port", type=int, default=4747, help="of the store")
    parser.add_argument("--n-runners", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=1, help="of verl")
    parser.add_argument("--games", type=int, default=5, help="of dryrun")
    parser.add_argument("--scripted", action="store_true", help="dryrun without any model")
    parser.add_argument("--dry-run", action="store_true", help="algo ends before it trains")
    options = parser.parse_args()
    if options.scripted and options.role != "dryrun":
        parser.error("--scripted is for dryrun")
    agl.setup_logging("WARNING" if options.role == "dryrun" else "INFO")
    agent, url = Q20Agent(options.search), f"http://{options.host}:{options.port}"
    if options.role == "dryrun":
        return 0 if dry_run(options.games, options.search, options.scripted) else 1
    if options.role == "runner":
        start_runners(url, partial(Q20Agent, options.search), options.n_runners)
        return 0
    if options.role == "algo":
        trainer = agl.Trainer(
            algorithm=tinker(options.model, dry_run=options.dry_run),
            store=agl.LightningStoreClient(url),
            strategy={"type": "cs", "role": "algorithm", "managed_store": False},
        )
    else:
        trainer = agl.Trainer(
            algorithm=agl.VERL(verl_config(options.model, options.gpus)),
            n_runners=options.n_runners,
        )
    trainer.fit(agent, load_nouns("train"), val_dataset=load_nouns("test"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
