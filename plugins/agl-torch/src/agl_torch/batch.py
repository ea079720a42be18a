"""From training rows to tensors: padded forward passes that give log-probabilities per token."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from agl.types import TrainingRow


class TokenScores(NamedTuple):
    """Of the N sampled tokens of some rows, row after row."""

    logprobs_N: "Tensor"
    entropy_N: "Tensor"


def sampled_positions(row: "TrainingRow") -> list[int]:
    """Positions of the tokens that the model sampled."""
    return [position for start, end in row.call_ranges for position in range(start, end)]


def score_rows(
    model: Any, rows: Sequence["TrainingRow"], temperature: float = 1.0, pad_token_id: int = 0
) -> TokenScores:
    """Run the model over rows, padded on the right, and score the tokens it sampled.

    Args:
        model: A causal model of ``transformers``.
        rows: At least one; each with a given token before its first sampled one.
        temperature: At which the tokens were sampled.
        pad_token_id: Any valid id; padding changes no score.

    Returns:
        Log-probability of each sampled token and entropy of the distribution that it was drawn
        from, in order; both carry the gradient.
    """
    width = max(len(row.token_ids) for row in rows)
    device = model.device
    input_D_T = torch.tensor(
        [row.token_ids + [pad_token_id] * (width - len(row.token_ids)) for row in rows],
        device=device,
    )
    mask_D_T = torch.tensor(
        [[1] * len(row.token_ids) + [0] * (width - len(row.token_ids)) for row in rows],
        device=device,
    )
    where = [(d, t) for d, row in enumerate(rows) for t in sampled_positions(row)]
    row_N = torch.tensor([d for d, _ in where], device=device)
    position_N = torch.tensor([t for _, t in where], device=device)
    logits_D_T_V = model(input_ids=input_D_T, attention_mask=mask_D_T, use_cache=False).logits
    # The logits at t - 1 are those that token t was drawn from.
    logits_N_V = logits_D_T_V[row_N, position_N - 1].float() / temperature
    logprobs_N_V = torch.log_softmax(logits_N_V, dim=-1)
    target_N = input_D_T[row_N, position_N]
    logprobs_N = logprobs_N_V.gather(1, target_N[:, None])[:, 0]
    entropy_N = -(logprobs_N_V.exp() * logprobs_N_V).sum(-1)
    return TokenScores(logprobs_N, entropy_N)


def chunks_by_tokens(
    rows: Sequence["TrainingRow"], max_tokens: int | None
) -> Iterator[list["TrainingRow"]]:
    """Rows in order, in chunks whose padded size stays within ``max_tokens``.

    A row that is longer by itself is a chunk of its own. None: everything is one chunk.
    """
    chunk: list[TrainingRow] = []
    width = 0
    for row in rows:
        wider = max(width, len(row.token_ids))
        if chunk and max_tokens is not None and wider * (len(chunk) + 1) > max_tokens:
            yield chunk
            chunk, wider = [], len(row.token_ids)
        chunk.append(row)
        width = wider
    if chunk:
        yield chunk
