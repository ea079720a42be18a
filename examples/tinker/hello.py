"""The smallest training at Tinker: a model learns to introduce itself by the name that it is given.

    python hello.py oneclick                     # store, algorithm and runners at once

    export AGL_SERVER_TOKEN=a-long-random-text   # or in three terminals, each with this
    agl store --port 4747
    python hello.py algo
    python hello.py runner

``TINKER_API_KEY`` is set; ``--dry-run`` says what the first training would cost, and pays for
nothing but the rollouts.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import agl

MODEL = "Qwen/Qwen3-4B-Instruct-2507"
NUM_IDENTITIES = 1024
STORE_URL = "http://localhost:4747"


def identities(number: int) -> list[str]:
    """Names that no model has met: ``unit-0`` to ``unit-1023``."""
    return [f"unit-{index}" for index in range(number)]


@agl.rollout
async def hello(task: str, llm: agl.LLM) -> float:
    """Say hello to the model; the reward is how much of its answer is the name that it has."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(
        base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0
    ) as client:
        completion = await client.chat.completions.create(
            model=llm.model,
            messages=[{"role": "user", "content": f"You are {task} . Who are you?"}],
            **llm.sampling_parameters,
        )
    return reward_of(completion.choices[0].message.content or "", task)


def reward_of(answer: str, name: str) -> float:
    """1 for the name alone, less for every word around it, 0 without it.

    Words other than ``I am`` count: half for one, a third for two.
    """
    words = answer.replace(".", " ").split()
    if name not in words:
        return 0.0
    return 1 / (len(words) - words[:2].count("I") - words[:2].count("am"))


def algorithm(**options: Any) -> Any:
    """The training; ``options`` are those of agl-tinker's ``Tinker``, over the ones set here."""
    from agl_tinker import Tinker

    settings: dict[str, Any] = {
        "base_model": MODEL,
        "loss": "importance_sampling",
        "learning_rate": 1e-4,
        "iterations": 8,
        "tasks_per_iteration": 16,
        "rollouts_per_task": 8,
        "max_tokens": 24,
        "run_dir": "logs/hello",
    }
    return Tinker(**{**settings, **options})


def oneclick(names: Sequence[str], runners: int = 8, **options: Any) -> dict[str, Any]:
    """All in one process, and runners beside it; returns what came of it.

    Args:
        names: To learn with; every 64th, one at least, is kept to measure with.
        runners: Rollouts at once.
        **options: Of ``Tinker``.
    """
    trained = algorithm(**options)
    Path(trained.run_dir).mkdir(parents=True, exist_ok=True)
    trainer = agl.Trainer(
        algorithm=trained,
        n_runners=runners,
        strategy={"type": "cs", "server_port": 0},
        store=agl.SqliteLightningStore(Path(trained.run_dir) / "store.db"),
    )
    trainer.fit(hello, list(names), val_dataset=list(names[::64]))
    return trained.summary


def run_algorithm(url: str, names: Sequence[str], **options: Any) -> dict[str, Any]:
    """The algorithm's process, against a store that is there."""
    trained = algorithm(**options)
    trainer = agl.Trainer(
        algorithm=trained,
        store=agl.LightningStoreClient(url),
        strategy={"type": "cs", "role": "algorithm", "managed_store": False},
    )
    trainer.fit(hello, list(names), val_dataset=list(names[::64]))
    return trained.summary


def hello_agent() -> Any:
    """For other processes: functions that are agents cannot be sent to them."""
    return hello


def run_rollouts(url: str, make_agent: Callable[[], Any], worker_id: int = 0) -> None:
    """A runner's process; it goes on until it is interrupted."""

    async def iterate() -> None:
        store = agl.LightningStoreClient(url)
        runner = agl.LitAgentRunner(agl.OtelTracer())
        try:
            with runner.run_context(agent=make_agent(), store=store, worker_id=worker_id):
                await runner.iter()
        finally:
            await store.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(iterate())


def start_runners(url: str, make_agent: Callable[[], Any], number: int) -> None:
    """So many processes, each with an agent that is made there; returns when they have ended."""
    context = multiprocessing.get_context("spawn")
    runners = [
        context.Process(target=run_rollouts, args=(url, make_agent, worker_id), daemon=True)
        for worker_id in range(number)
    ]
    for runner in runners:
        runner.start()
    with contextlib.suppress(KeyboardInterrupt):
        for runner in runners:
            runner.join()


def main() -> None:
    """Be one of the three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=["oneclick", "algo", "runner"])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--identities", type=int, default=NUM_IDENTITIES)
    parser.add_argument("--n-runners", type=int, default=8)
    parser.add_argument("--url", default=STORE_URL, help="of the store, for algo and runner")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    agl.setup_logging()
    if options.role == "runner":
        start_runners(options.url, hello_agent, options.n_runners)
        return
    names = identities(options.identities)
    given = {"base_model": options.model, "dry_run": options.dry_run}
    if options.role == "oneclick":
        summary = oneclick(names, options.n_runners, **given)
    else:
        summary = run_algorithm(options.url, names, **given)
    print(summary["bill"] if options.dry_run else f"rewards: {summary['rewards']}")


if __name__ == "__main__":
    main()
