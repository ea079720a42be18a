"""How many evaluations prompt optimisers need, and how often they take a prompt that is no better.

The problem is planted (``benchmarks/apo_world.py``): the worth of every prompt is known, and a
scripted proposer stands in for the models. All optimisers have the same worker, tasks, proposer,
sizes and budget. Two questions, each over many random seeds:

planted    evaluations until the optimiser's best prompt first has 95 % of the optimum, and the
           regret of what it ends with
identical  the proposer only paraphrases: how often is the first prompt replaced all the same?

Each run is a file in ``--out``, and is not made again; ``--peer PYTHON`` adds APO of an
agentlightning 0.3.0 (with poml) in that interpreter.
"""

import argparse
import json
import logging
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apo_world import SEED_PROMPT, Proposer, make_tasks, quality, reward

import agl
from agl_testing.echo_llm import EchoLLM

BUDGET = 1500
OPTIMUM = 0.95
SIZES = {"beam_width": 2, "branch_factor": 2, "val_batch_size": 10, "gradient_batch_size": 4}
"""Those of 0.3's guide."""


class RandomSearch(agl.Algorithm):
    """Edits the best prompt so far at random, and keeps what scores higher on as many tasks.

    Args:
        url: Address of the proposer.
        rounds: Prompts to try.
        batch_size: Tasks for each.
    """

    def __init__(self, url: str, rounds: int, batch_size: int) -> None:
        self.url = url
        self.rounds = rounds
        self.batch_size = batch_size
        self.best = SEED_PROMPT

    def get_best_prompt(self) -> agl.PromptTemplate:
        """The best so far."""
        return agl.PromptTemplate(template=self.best)

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Try prompts one after the other."""
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=self.url, api_key="none") as client:
            score = await self._score(SEED_PROMPT, train_dataset)
            for _ in range(self.rounds):
                answer = await client.chat.completions.create(
                    model="reflect", messages=[{"role": "user", "content": self.best}]
                )
                prompt = (answer.choices[0].message.content or "").strip("`\n")
                found = await self._score(prompt, train_dataset)
                if found > score:
                    self.best, score = prompt, found

    async def _score(self, prompt: str, tasks: Any) -> float:
        store = self.get_store()
        update = await store.add_resources({"prompt_template": agl.PromptTemplate(template=prompt)})
        requests = [
            agl.EnqueueRolloutRequest(input=task, resources_id=update.resources_id)
            for task in tasks[: self.batch_size]
        ]
        queued = await store.enqueue_many_rollouts(requests)
        await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in queued])
        rewards = [
            agl.find_final_reward(await store.query_spans(one.rollout_id)) or 0.0 for one in queued
        ]
        return sum(rewards) / len(rewards)


def ours(method: str, url: str, seed: int, rounds: int) -> dict[str, Any]:
    """One run of an optimiser of ours, with the same result as ``apo_peer.run``."""
    curve: list[tuple[int, float]] = []
    folder = tempfile.mkdtemp(prefix="bench-apo-")
    shared: dict[str, Any] = {"base_url": url, "api_key": "none", "seed": seed, "run_dir": folder}
    algorithm: Any
    if method == "apo":
        algorithm = agl.APO(
            **shared,
            **SIZES,
            gradient_model="critic",
            apply_edit_model="editor",
            beam_rounds=rounds,
            max_evaluations=BUDGET,
        )
    elif method == "gepa":
        from agl_apo import GEPA

        algorithm = GEPA(**shared, reflection_model="reflect", max_evaluations=BUDGET)
    else:
        algorithm = RandomSearch(
            url, BUDGET // SIZES["val_batch_size"] - 1, SIZES["val_batch_size"]
        )

    @agl.rollout
    async def worker(task: dict[str, Any], prompt_template: agl.PromptTemplate) -> float:
        number = len(curve) + 1
        curve.append((number, quality(algorithm.get_best_prompt().template)))
        return reward(prompt_template.template, task, seed, number)

    train, val = (make_tasks(seed, n, kind) for n, kind in ((28, "train"), (29, "val")))
    agl.Trainer(
        algorithm=algorithm,
        strategy="shm",
        n_runners=1,
        concurrency=64,
        initial_resources={"prompt_template": agl.PromptTemplate(template=SEED_PROMPT)},
    ).fit(worker, train, val_dataset=val)
    final = algorithm.get_best_prompt().template
    curve.append((len(curve), quality(final)))
    return {
        "evaluations": len(curve) - 1,
        "curve": curve,
        "final": quality(final),
        "replaced": final != SEED_PROMPT,
    }


def peer(python: str, url: str, seed: int, rounds: int) -> dict[str, Any]:
    """One run of 0.3.0's APO."""
    script = Path(__file__).with_name("apo_peer.py")
    options = ["--url", url, "--seed", str(seed), "--rounds", str(rounds)]
    done = subprocess.run(
        [python, str(script), *options, "--sizes", json.dumps(SIZES)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{script.name} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def run_all(
    name: str, seeds: range, out: Path, make: Callable[[str, int], dict[str, Any]], **world: Any
) -> list[dict[str, Any]]:
    """The results of all seeds, those that are there already included."""
    results = []
    for seed in seeds:
        file = out / f"{name}-{seed}.json"
        if not file.exists():
            start = time.perf_counter()
            with EchoLLM(Proposer(seed, **world)) as llm:
                result = make(llm.url, seed)
            result["seconds"] = time.perf_counter() - start
            file.write_text(json.dumps(result))
        results.append(json.loads(file.read_text()))
    return results


def evaluations_to(result: dict[str, Any], share: float) -> int | None:
    """Evaluations when the best prompt first had this share of the optimum."""
    return next((n for n, worth in result["curve"] if worth >= share * OPTIMUM - 1e-9), None)


def planted_row(name: str, results: list[dict[str, Any]]) -> str:
    """A line of the first table; one that never gets there counts as the budget."""
    reached = [evaluations_to(result, 0.95) for result in results]
    needed = [BUDGET if n is None else min(n, BUDGET) for n in reached]
    regret = statistics.fmean(OPTIMUM - result["final"] for result in results)
    spent = statistics.fmean(result["evaluations"] for result in results)
    return (
        f"| {name} | {len(results)} | {len([n for n in reached if n is not None])} "
        f"| {statistics.median(needed):.0f} | {statistics.fmean(needed):.0f} | {regret:.3f} "
        f"| {spent:.0f} |"
    )


def upper_limit(hits: int, tries: int) -> float:
    """Upper end of the one-sided 95 % Clopper-Pearson interval of a share."""
    from math import comb

    if hits >= tries:
        return 1.0
    low, high = hits / tries, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        at_most = sum(
            comb(tries, k) * middle**k * (1 - middle) ** (tries - k) for k in range(hits + 1)
        )
        low, high = (middle, high) if at_most > 0.05 else (low, middle)
    return high


def identical_row(name: str, results: list[dict[str, Any]]) -> str:
    """A line of the second table."""
    hits, tries = sum(result["replaced"] for result in results), len(results)
    return f"| {name} | {tries} | {hits} | {hits / tries:.1%} | {upper_limit(hits, tries):.1%} |"


def main() -> None:
    """Run what is asked for, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="runs of the planted problem")
    parser.add_argument("--tries", type=int, default=200, help="runs with identical candidates")
    parser.add_argument("--peer", help="the interpreter of an environment with agentlightning")
    parser.add_argument("--peer-tries", type=int, default=20)
    parser.add_argument("--peer-rounds", type=int, default=14, help="about so many fit the budget")
    parser.add_argument("--peer-only", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "bench-apo")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first, options.seeds)
    planted, identical = [], []
    methods = [] if options.peer_only else ["apo", "gepa", "random"]
    for method in methods:
        found = run_all(method, seeds, options.out, lambda url, s, m=method: ours(m, url, s, 60))
        planted.append(planted_row(method, found))
        print(planted[-1], flush=True)
        tries = range(options.tries if method == "apo" else options.seeds)
        same = run_all(
            f"{method}-identical", tries, options.out,
            lambda url, s, m=method: ours(m, url, s, 2), paraphrase_only=True,
        )  # fmt: skip
        identical.append(identical_row(method, same))
        print(identical[-1], flush=True)
    if options.peer:
        found = run_all(
            "peer",
            seeds,
            options.out,
            lambda url, s: peer(options.peer, url, s, options.peer_rounds),
        )
        planted.append(planted_row("0.3.0's APO", found))
        same = run_all(
            "peer-identical", range(options.first, options.peer_tries), options.out,
            lambda url, s: peer(options.peer, url, s, 1), paraphrase_only=True,
        )  # fmt: skip
        identical.append(identical_row("0.3.0's APO", same))
    print(f"\nplanted, budget {BUDGET}: evaluations to 95 % of the optimum")
    print("| optimiser | seeds | reached | median | mean | final regret | evaluations in all |")
    print("|---|---|---|---|---|---|---|")
    print(*planted, sep="\n")
    print("\nidentical candidates")
    print("| optimiser | runs | replaced | share | 95 % upper limit |")
    print("|---|---|---|---|---|")
    print(*identical, sep="\n")


if __name__ == "__main__":
    main()
