"""What verl's batches get of advantages and of weights in the loss; no verl."""

import pytest
import torch

from agl_verl.losses import loss_weights
from agl_verl.trainer_mixin import trajectories


def test_weights_of_a_loss_stay_in_single_precision() -> None:
    mask = torch.arange(7) < torch.tensor([3, 5, 7])[:, None]
    keys = [f"u0_{number}_0" for number in range(3)]
    rollouts = trajectories(keys, [False] * 3, mask.float())
    for mean in ("rollout", "token"):
        weights = loss_weights(rollouts, mean)
        assert weights.dtype == torch.float32
        assert weights.sum().item() == pytest.approx(3.0)
