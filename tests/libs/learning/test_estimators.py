"""Equal rewards have no advantage, in any estimator that compares siblings."""

import itertools
import random

import pytest

from agl_records.types import Credit

torch = pytest.importorskip("torch")

from agl_learning.advantages.comparisons import Inputs  # noqa: E402
from agl_learning.advantages.estimators import ESTIMATORS  # noqa: E402
from agl_learning.advantages.trajectories import Call, lay_out  # noqa: E402

pytestmark = pytest.mark.plugins
LENGTHS = [3, 5, 7, 2, 9, 11, 4, 6]
COMPARING = [
    *("grpo", "rloo", "opo", "gpg", "grpo_passk", "reinforce_plus_plus_baseline", "gdpo"),
    "optimal_token_baseline",
]


def inputs_of(groups: list[list[float]]) -> Inputs:
    """Tasks with the rewards of their rollouts, of different lengths."""
    rewards = [reward for group in groups for reward in group]
    lengths = [LENGTHS[n % len(LENGTHS)] for group in groups for n in range(len(group))]
    mask = torch.zeros(len(rewards), max(lengths))
    for number, length in enumerate(lengths):
        mask[number, :length] = 1
    tasks = [f"u{task}" for task, group in enumerate(groups) for _ in group]
    found = lay_out(
        [[number] for number in range(len(rewards))],
        mask,
        names=[f"{task}_{number}" for number, task in enumerate(tasks)],
        tasks=tasks,
        calls=[
            [Call(0, length, Credit(reward=reward))]
            for reward, length in zip(rewards, lengths, strict=True)
        ],
        rewards=[{"a": reward, "b": 2 * reward} for reward in rewards],
    )
    return Inputs(
        found,
        torch.tensor(rewards),
        torch.zeros_like(mask),
        reward_keys=("a", "b"),
        old_logprobs_NT=torch.full_like(mask, -0.5),
        sum_pi_squared_NT=torch.full_like(mask, 0.4),
    )


def estimate(name: str, groups: list[list[float]]) -> list[list[float]]:
    """Per task, the advantages of its rollouts; of their first token."""
    result = ESTIMATORS[name](inputs_of(groups))
    first = (result[0] if isinstance(result, tuple) else result)[:, 0].tolist()
    numbers = iter(first)
    return [[next(numbers) for _ in group] for group in groups]


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.6, 0.7, 1 / 3, -0.1])
def test_equal_rewards_give_exactly_zero(name, reward):
    for number in range(2, 9):
        equal, other = estimate(name, [[reward] * number, [0.0, 1.0, 0.4]])
        assert equal == [0.0] * number
        assert any(other)


@pytest.mark.parametrize("reward", [0.1, 0.3, 1.0, 1 / 3, -0.1])
def test_equal_rewards_of_a_batch_give_exactly_zero_where_it_is_compared(reward):
    for sizes in ([2], [5], [8], [3, 4, 7]):
        inputs = inputs_of([[reward] * size for size in sizes])
        got, returns = ESTIMATORS["reinforce_plus_plus"](inputs)
        assert not got.any()
        assert returns.any()


def test_unequal_rewards_are_whitened_as_verl_does():
    """verl's ``masked_whiten``: all rollouts have three tokens, its variance is unbiased."""
    for rewards in ([0.0, 1.0, 0.4, 1.0], [0.9999, 1.0, 1.0, 1.0], [5e-5, 0.0, 1e-4, 0.0]):
        inputs = inputs_of([rewards])
        mask_NT = inputs.rollouts.mask_NT
        mask_NT[:] = torch.arange(mask_NT.shape[1]) < 3
        got, _ = ESTIMATORS["reinforce_plus_plus"](inputs)
        values = inputs.outcomes_N.double()[:, None].expand(-1, 3)
        expected = (values - values.mean()) / (values.var() + 1e-8).sqrt()
        assert torch.allclose(got[:, :3].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["grpo", "rloo", "gpg", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"]
)
def test_the_middle_of_three_has_none_whatever_rounding_does(name):
    for rewards in ([0.0, 0.5, 1.0], [0.1, 0.2, 0.3], [0.2, 0.4, 0.6]):
        for given in itertools.permutations(rewards):
            (found,) = estimate(name, [list(given)])
            assert [value == 0 for value in found] == [one == rewards[1] for one in given]


def test_dimensions_that_outweigh_each_other_give_exactly_zero():
    rng = random.Random(0)
    for _ in range(50):
        equal = [rng.random() for _ in range(4)]
        inputs = inputs_of([equal, [0.0, 1.0, 0.4]])
        for found, a in zip(inputs.rollouts.rewards, equal, strict=False):
            found.update(a=a, b=1 - a)
        result = ESTIMATORS["gdpo"](inputs)
        assert not result[:4].any()
        assert result[4:].any()
        assert result.dtype == torch.float32
