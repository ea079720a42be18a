"""What verl's batches get of advantages and of weights in the loss; no verl."""

import pytest
import torch

from agl.types import Credit, Ledger, TrainingRow
from agl_learning.estimators import ESTIMATORS
from agl_learning.siblings import Inputs
from agl_learning.trajectories import Trajectories
from agl_verl.groups import _train
from agl_verl.losses import loss_weights
from agl_verl.rows import CallNote, RowNotes
from agl_verl.trajectories import trajectories


def rollouts_of(rewards: list[float]) -> Trajectories:
    """The rollouts of one task, of different lengths."""
    lengths = [3, 5, 7][: len(rewards)]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    notes = [
        RowNotes(
            calls=[CallNote(start=0, end=length, credit=Credit(reward=reward))],
            rewards={"a": reward, "b": 2 * reward},
        ).model_dump_json()
        for reward, length in zip(rewards, lengths, strict=True)
    ]
    keys = [f"u0_{number}_0" for number in range(len(rewards))]
    return trajectories(keys, [False] * len(rewards), mask.float(), notes)


def test_weights_of_a_loss_stay_in_single_precision() -> None:
    rollouts = rollouts_of([0.0, 1.0, 0.4])
    for mean in ("rollout", "token"):
        weights = loss_weights(rollouts, mean)
        assert weights.dtype == torch.float32
        assert weights.sum().item() == pytest.approx(3.0)


def test_calls_of_an_equal_group_are_not_booked_as_trained() -> None:
    rollouts = rollouts_of([0.1] * 3)
    zeros = torch.zeros(rollouts.mask_NT.shape)
    equal = ESTIMATORS["rloo"](Inputs(rollouts, torch.tensor([0.1] * 3), zeros))[:, 0].tolist()
    row = TrainingRow(
        rollout_id="r",
        attempt_id="a",
        token_ids=[1, 2],
        logprobs=[0, -1.0],
        call_ids=["c"],
        call_ranges=[(1, 2)],
        credits=[Credit(reward=0.1)],
        model_versions=["0"],
    )
    ledger = Ledger()
    _train(row, [equal[0]], 0, ledger)
    assert not ledger.trained
    assert [one.reason for one in ledger.exclusions] == ["zero_advantage"]
