"""verl's trainers, estimators and options with our agents and that of ``examples/spider``.

Minutes each: ``nox -s verl-cpu -- --long``. "It ends" is not the test: weights must arrive (see
``training/rollout_probs_diff_max``), every call must be accounted for, no process may be left.
"""

import json
import math
import os
from pathlib import Path

import pytest
from tests.interpreter import python

pytest.importorskip("verl")

import torch
from running import check, check_weights, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

DIFFERENCE = "training/rollout_probs_diff_max"
STALENESS = "training/off_policy/trajectory_staleness_worst/max"


def check_asynchronous_weights(ended, least_stale):
    """Fresh steps agree as in sync; stale ones do not, which shows that the measure measures."""
    pairs = list(zip(ended.values(STALENESS), ended.values(DIFFERENCE), strict=True))
    fresh = [difference for stale, difference in pairs if not stale]
    stale = [difference for stale, difference in pairs if stale]
    assert all(difference < 1e-5 for difference in fresh), pairs
    assert len(stale) >= least_stale, pairs
    assert all(1e-5 < difference < 0.2 for difference in stale), pairs


def test_colocate_async_with_validation_and_checkpoints_then_resume(tmp_path):
    trainer = {"test_freq": 4, "val_before_train": True, "save_freq": 4}
    cpu = {"mode": "colocate_async", "trainer": trainer}
    first = run(tmp_path, steps=4, validate=True, cpu=cpu)
    check(first, [1, 2, 3, 4])
    check_asynchronous_weights(first, least_stale=1)
    validated = [line["step"] for line in first.metrics if "val/reward/mean" in line]
    assert sorted(set(validated)) == [0, 4]
    assert [step for step, _ in first.summary["val_rewards"]] == [0, 4]
    trainer = {"save_freq": 1, "resume_mode": "auto"}
    second = run(tmp_path, steps=5, cpu={**cpu, "trainer": trainer})
    check(second, [5])
    start, four, five = (weights(tmp_path, step) for step in (None, 4, 5))
    # AdamW moves a weight by about the learning rate, 3e-3, per mini-batch; a step has one or two,
    # as rows are padded to whole ones. A fresh start would be some 2e-2 away from step 4.
    assert apart(four, five) < 1e-2
    assert apart(start, five) > 1.2e-2
    assert 0 < optimiser_step(tmp_path, 5) - optimiser_step(tmp_path, 4) <= 2


def weights(out, step):
    if step is None:
        from safetensors.torch import load_file

        return load_file(out / "model" / "model.safetensors")
    (file,) = out.glob(f"checkpoints/global_step_{step}/actor/model_world_size_1_rank_0.pt")
    state = torch.load(file, weights_only=False)
    return {
        name: tensor.to_local() if hasattr(tensor, "to_local") else tensor
        for name, tensor in state.items()
    }


def apart(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a.keys() & b.keys())


def optimiser_step(out, step):
    (file,) = out.glob(f"checkpoints/global_step_{step}/actor/optim_world_size_1_rank_0.pt")
    state = torch.load(file, weights_only=False)["state"]
    (count,) = {float(entry["step"]) for entry in state.values()}
    return count


def test_separate_async_with_its_server_apart(tmp_path):
    ended = run(tmp_path, steps=4, cpu={"mode": "separate_async"})
    check(ended, [1, 2, 3, 4])
    check_asynchronous_weights(ended, least_stale=1)


def test_critic_on_two_ranks(tmp_path):
    ended = run(tmp_path, steps=3, algorithm="ppo", cpu={"ranks": 2, "critic": True})
    check(ended, [1, 2, 3])
    check_weights(ended)
    for name in ("critic/vf_loss", "critic/grad_norm"):
        assert all(math.isfinite(value) for value in ended.values(name))
        assert len(ended.values(name)) == 3


def test_kl_to_the_reference_policy(tmp_path):
    ended = run(tmp_path, steps=3, algorithm="reinforce++", cpu={"reference": True})
    check(ended, [1, 2, 3])
    check_weights(ended)
    kl = ended.values("actor/kl_loss")
    assert len(kl) == 3
    assert kl[0] < 0.01  # the first mini-batch has none: nothing is learnt yet
    assert kl[0] < kl[1] < kl[2]


def test_thirty_steps_learn(tmp_path):
    cpu = {"rollouts_per_prompt": 8, "learning_rate": 6e-3}
    ended = run(tmp_path, timeout=3000, steps=30, cpu=cpu)
    check(ended, list(range(1, 31)), learning=10)
    check_weights(ended)
    rewards = ended.values("reward/mean")
    assert rewards[0] < 0.25  # 10 of the 101 tokens are digits
    assert sum(rewards[-3:]) / 3 > 0.9, rewards


def test_of_several_agents_writing_and_rewriting_are_learned_and_checking_is_not(tmp_path):
    pytest.importorskip("langgraph")
    script = Path(__file__).with_name("spider.py")
    done = python("-W", "ignore", script, tmp_path, "12", env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((tmp_path / "summary.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rewards = summary["rewards"]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:2]) / 2 + 0.1, rewards
    # Each check of a query is a call of the agent that is not trained.
    excluded = summary["calls_excluded"]
    assert excluded["agent_not_selected"] > 12 * 64
    assert summary["calls"] == summary["calls_trained"] + sum(excluded.values())
    differences = [line[DIFFERENCE] for line in lines if DIFFERENCE in line]
    assert len(differences) == 12
    assert max(differences) < 1e-5
