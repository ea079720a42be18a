"""What a critic expects of the rewards to come, before each sampled token."""

from typing import TYPE_CHECKING, Any

import torch

from agl_torch.batch import pack_rows

if TYPE_CHECKING:
    from torch import Tensor

    from agl_records.training_data import TrainingRow


class Critic(torch.nn.Module):
    """A value head, on the hidden states of the policy or of a network of its own.

    Args:
        model: What the states are of; its output layer is not used.
        is_apart: It is a network of its own, and trained as such.
    """

    def __init__(self, model: Any, is_apart: bool) -> None:
        super().__init__()
        size = model.get_output_embeddings().weight.shape[1]
        self.head = torch.nn.Linear(size, 1, device=model.device)
        # It begins by expecting nothing, whatever the seed.
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.trunk = model.base_model if is_apart else None

    def values(self, rows: "list[TrainingRow]", hidden_N_H: "Tensor | None") -> "Tensor":
        """Of the N sampled tokens of some rows, row after row; with gradient.

        Args:
            hidden_N_H: The policy's states before them; a network of its own needs none.
        """
        if self.trunk is not None:
            batch = pack_rows(rows, self.trunk)
            output = self.trunk(**batch.inputs, use_cache=False)
            hidden_N_H = output.last_hidden_state[batch.line_N, batch.before_N]
        assert hidden_N_H is not None
        return self.head(hidden_N_H.to(self.head.weight.dtype))[:, 0].float()


def value_loss(
    values_N: "Tensor",
    old_values_N: "Tensor",
    returns_N: "Tensor",
    weights_N: "Tensor",
    clip: float | None,
) -> "Tensor":
    """Half the squared distance from the returns, and at least that of a value held near its old.

        sum_t w_t * max((V_t - R_t)^2, (old_t + clamp(V_t - old_t, -clip, clip) - R_t)^2) / 2

    Source: as in OpenAI's baselines; see arXiv:2005.12729, 3.

    Args:
        values_N: With gradient.
        old_values_N: When the advantages were made of them.
        returns_N: What they are to be.
        weights_N: They add up to 1.
        clip: None holds nothing.
    """
    errors_N = (values_N - returns_N) ** 2
    if clip is not None:
        near_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
        errors_N = torch.maximum(errors_N, (near_N - returns_N) ** 2)
    return (weights_N * errors_N).sum() / 2
