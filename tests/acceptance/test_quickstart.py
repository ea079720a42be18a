"""The quickstart itself, shortened: it must learn, and tell the truth about it."""

import asyncio
import json
import math
import os
import signal
import time
from pathlib import Path

import pytest
from tests import fork_server
from tests.interpreter import python

import agl
from agl_testing.echo_llm import EchoLLM

for module in ("torch", "transformers", "openai", "matplotlib"):
    pytest.importorskip(module)

EXAMPLE = Path(__file__).parents[2] / "examples/quickstart"
STEPS = 20


def probability_by_chance(successes_1: int, total_1: int, successes_2: int, total_2: int) -> float:
    """One-sided Fisher's exact test: how likely so large a rise is when nothing changed.

    All successes shuffled over both samples, the chance that the second gets ``successes_2`` or
    more.
    """
    successes, total = successes_1 + successes_2, total_1 + total_2
    ways = sum(
        math.comb(total_2, k) * math.comb(total_1, successes - k)
        for k in range(successes_2, min(total_2, successes) + 1)
    )
    return ways / math.comb(total, successes)


def test_exact_test_by_hand() -> None:
    # 0 of 2, then 2 of 2: of the 6 ways to place two successes on four trials, one.
    assert probability_by_chance(0, 2, 2, 2) == pytest.approx(1 / 6)
    assert probability_by_chance(1, 2, 1, 2) == pytest.approx(5 / 6)


def test_best_blind_plan_is_three_looks_of_eight(monkeypatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    import world

    assert world.best_blind_reward() == pytest.approx(3 / 8)
    train, held_out = world.split_tasks()
    assert len(held_out) == 16
    assert not [task for task in held_out if task in train]
    assert len(train) + len(held_out) == len(world.all_tasks()) == 64


@pytest.mark.parametrize("example", ["quickstart", "two_models"])
def test_agents_run_in_runners_that_are_threads(example, monkeypatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent / example)
    if example == "quickstart":
        from quickstart import find_the_cat as agent, split_tasks

        tasks = split_tasks()[0]
    else:
        from signals import COLOURS, signal as agent

        tasks = COLOURS * 10
    algorithm = agl.Baseline(max_queue_length=32)
    with EchoLLM(lambda _: "attic", latency_seconds=0.02) as server:
        llm = agl.LLM(endpoint=server.url, model="echo")
        agl.Trainer(
            algorithm=algorithm,
            strategy="shm",
            n_runners=2,
            concurrency=16,
            initial_resources={"sender": llm, "receiver": llm},
        ).fit(agent, tasks)
    assert len(algorithm.rewards) == len(tasks)
    assert None not in algorithm.rewards.values()


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_quickstart_raises_the_held_out_reward_significantly(tmp_path) -> None:
    run = python(
        EXAMPLE / "quickstart.py",
        "--steps",
        STEPS,
        "--out",
        tmp_path,
        timeout=900,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert run.returncode == 0, run.stderr

    # Counted in the store, not taken from the script's own summary.
    before, after = asyncio.run(held_out_rewards(tmp_path / "store.db"))
    assert len(before) == len(after) == 64
    assert set(before) | set(after) <= {0.0, 1.0}
    chance = probability_by_chance(int(sum(before)), len(before), int(sum(after)), len(after))
    assert chance < 0.001, (sum(before), sum(after))

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["val_rewards"][0][1] == pytest.approx(sum(before) / 64)
    assert summary["val_rewards"][-1][1] == pytest.approx(sum(after) / 64)
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())
    assert summary["rollouts_failed"] == 0
    for shown in (
        "held-out reward before",
        "held-out reward after",
        "best blind plan (no listening)",
        "zero_advantage",
        summary["checkpoint"],
        str(tmp_path / "store.db"),
        str(tmp_path / "reward.png"),
    ):
        assert shown in run.stdout
    assert (tmp_path / "reward.png").stat().st_size > 10_000
    assert (Path(summary["checkpoint"]) / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quickstart_that_was_killed_goes_on_with_the_same_command(tmp_path) -> None:
    command = [EXAMPLE / "quickstart.py", "--steps", "4", "--out", tmp_path]
    metrics = tmp_path / "metrics.jsonl"
    with (tmp_path / "log").open("w") as log:
        first = fork_server.start(command, stdout=log, stderr=log)
        while not metrics.exists() or '"step": 2,' not in metrics.read_text():
            assert not first.has_ended(), (tmp_path / "log").read_text()
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
    second = fork_server.run(command)
    assert second.returncode == 0, second.stderr
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [(line["step"], line["generation"]) for line in lines if "reward/mean" in line]
    assert steps == [(1, 2), (2, 2), (3, 2), (4, 2)]
    before, _ = asyncio.run(held_out_rewards(tmp_path / "store.db"))
    assert len(before) == 64  # those of the first start


async def held_out_rewards(path: Path) -> tuple[list[float], list[float]]:
    """Rewards of the validations of the first and of the last version of the weights."""
    store = agl.SqliteLightningStore(path)
    by_version: dict[int, list[float]] = {}
    try:
        for rollout in await store.query_rollouts():
            if rollout.mode == "val":
                spans = await store.query_spans(rollout.rollout_id)
                reward = agl.find_final_reward(spans)
                assert reward is not None
                by_version.setdefault(rollout.metadata["version"], []).append(reward)
    finally:
        await store.close()
    return by_version[min(by_version)], by_version[max(by_version)]
