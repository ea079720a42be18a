"""What verl's batches get of advantages and of weights in the loss; no verl."""

import itertools
import random
from typing import Any

import pytest
import torch
from tests.training_rows import training_row

from agl.types import Rollout
from agl_learning.advantages.estimator_option import ADVANTAGES
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.results import Collected, Ended
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import ModelCall, TrainingRow
from agl_records.types import Credit, StepCredit
from agl_verl.losses import loss_weights
from agl_verl.rows import CallNote, RowNotes
from agl_verl.trainer_mixin import RowContext, estimate, row_context, trajectories


def test_weights_of_a_loss_stay_in_single_precision() -> None:
    mask = torch.arange(7) < torch.tensor([3, 5, 7])[:, None]
    keys = [f"u0_{number}_0" for number in range(3)]
    rollouts = trajectories(keys, [False] * 3, mask.float())
    for mean in ("rollout", "token"):
        weights = loss_weights(rollouts, mean)
        assert weights.dtype == torch.float32
        assert weights.sum().item() == pytest.approx(3.0)


CREDITS_OF_CALLS = ("rloo", "opo", "gpg", "reinforce_plus_plus_baseline")


@pytest.mark.parametrize("name", ADVANTAGES)
def test_other_trainers_weigh_calls_as_verl_does(name: str) -> None:
    """Two tasks of three rollouts, each of up to three calls in two rows."""
    rng, ledger, ended, batch = random.Random(5), Ledger(), [], []
    for session, task in itertools.product(range(3), range(2)):
        rollout = Rollout(
            rollout_id=f"r{task}{session}", input=None, start_time=0, status="succeeded"
        )
        reward = rng.choice([0.0, 0.5, 1.0])
        one = Ended(rollout, task, reward, rewards={"a": reward, "b": rng.random()})
        for index, number in enumerate([1, session]):
            if not number:
                continue
            row = row_of(f"r{task}{session}", index, number, reward, name, rng)
            for call_id in row.call_ids:
                ids = {"rollout_id": row.rollout_id, "attempt_id": "a", "call_id": call_id}
                ledger.add_call(ModelCall(**ids, sequence_id=1))
            one.rows.append(row)
            batch.append((f"u{task}_{session}_{index}", row, one))
        ended.append(one)
    options = {"reward_keys": ["a", "b"], "reward_weights": [1.0, 0.5]} if name == "gdpo" else {}
    rewards = dict(zip(*options.values(), strict=True)) if options else None
    chosen = WeighingOptions(estimator={"type": name, "rewards": rewards})
    weighed = weigh(Collected(ended, ledger, 0.0), chosen)
    got = {
        call_id: advantage.value
        for one in weighed
        for call_id, advantage in zip(one.row.call_ids, one.advantages, strict=True)
    }
    expected = as_verl(name, batch, {f"gdpo_{key}": value for key, value in options.items()})
    assert any(expected.values())
    assert {key: got.get(key, 0.0) for key in expected} == pytest.approx(expected, abs=1e-5)
    assert sorted(e.call_id for e in ledger.exclusions) == sorted(set(expected) - set(got))


def row_of(rollout_id: str, index: int, number: int, reward: float, name: str, rng: random.Random):
    """A row of calls with up to four tokens; their rewards differ where an estimator takes it."""
    tokens, ranges = [1], []
    for _ in range(number):
        start, length = len(tokens) + 1, rng.randint(1, 4)
        tokens += [2] * (1 + length)
        ranges.append((start, start + length))
    apart = name in CREDITS_OF_CALLS
    credits = [
        Credit(
            reward=reward * (1 + rng.random() * apart),
            group=f"call {call}" if apart else "",
            step=StepCredit(group="s", reward=rng.random(), weight=0.5) if apart else None,
        )
        for call in range(number)
    ]
    call_ids = [f"{rollout_id}-{index}-{call}" for call in range(number)]
    given = {"rollout_id": rollout_id, "call_ids": call_ids, "credits": credits}
    return training_row(tokens, ranges, **given)


def as_verl(name: str, batch: list[tuple[str, TrainingRow, Ended]], config: dict[str, Any]):
    """Call -> its advantage, from the estimator in the form that verl calls."""
    mask_BL = torch.zeros(len(batch), max(len(row.token_ids) for _, row, _ in batch))
    scores_BL, notes = torch.zeros_like(mask_BL), []
    for number, (_, row, one) in enumerate(batch):
        mask_BL[number, : len(row.token_ids)] = torch.tensor(row.loss_mask).float()
        scores_BL[number, len(row.token_ids) - 1] = one.reward or 0.0
        calls = [
            CallNote(start=start, end=end, credit=credit)
            for (start, end), credit in zip(row.call_ranges, row.credits, strict=True)
        ]
        notes.append(RowNotes(calls=calls, rewards=one.rewards).model_dump_json())
    keys = [key for key, *_ in batch]
    rollouts = trajectories(keys, [False] * len(keys), mask_BL, notes)
    with row_context(RowContext(rollouts, scores_BL)):
        advantages_BL, _ = estimate(name, scores_BL, mask_BL, config)
    return {
        call_id: advantages_BL[number, start:end].mean().item()
        for number, (_, row, _) in enumerate(batch)
        for call_id, (start, end) in zip(row.call_ids, row.call_ranges, strict=True)
    }
