"""What is sent to Tinker for training: pure functions over plain lists.

Tinker's losses sum over tokens. With targets x, given log-probabilities q, the model's p:

- ``cross_entropy``: - sum_t w_t log p(x_t)
- ``importance_sampling``: - sum_t A_t p(x_t) / q(x_t)
- ``ppo``: the same with the ratio clipped to 1 +- 0.2 where that makes the loss larger

Source: Tinker's documentation, "Loss functions". A token that was given, not sampled, has w = A = 0
and so no gradient.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agl_records.training_data import TrainingRow

Loss = Literal["importance_sampling", "ppo", "cross_entropy"]


def example_of_row(row: "TrainingRow", per_token: Iterable[float]) -> dict[str, Any]:
    """A row as JSON: its tokens, and what each of them counts.

    What follows the last call is left out: it would change nothing, and be paid for.

    Args:
        per_token: The advantage, or weight, of each sampled token.

    Returns:
        ``token_ids``, ``logprobs`` and ``weights`` of one length, ``reward``, ``rollout_id``.
    """
    weights, given = [0.0] * len(row.token_ids), iter(per_token)
    for start, end in row.call_ranges:
        weights[start:end] = islice(given, end - start)
    last = row.call_ranges[-1][1]
    return {
        "token_ids": row.token_ids[:last],
        "logprobs": row.logprobs[:last],
        "weights": weights[:last],
        "reward": row.reward,
        "rollout_id": row.rollout_id,
    }


def shifted(example: dict[str, Any], loss: Loss) -> tuple[list[int], dict[str, list[Any]]]:
    """The input of an example and the tensors of its loss: position i predicts token i + 1.

    Example:
        Tokens ``[5, 6, 7]`` with weights ``[0, 0, 1]``: input ``[5, 6]``, targets ``[6, 7]``,
        weights ``[0, 1]``.
    """
    tokens: list[int] = example["token_ids"]
    inputs: dict[str, list[Any]] = {"target_tokens": tokens[1:]}
    if loss == "cross_entropy":
        inputs["weights"] = example["weights"][1:]
    else:
        inputs["logprobs"] = example["logprobs"][1:]
        inputs["advantages"] = example["weights"][1:]
    return tokens[:-1], inputs


def batches(
    examples: Sequence[dict[str, Any]], epochs: int, batch_size: int | None, seed: str
) -> Iterator[list[dict[str, Any]]]:
    """The examples of each gradient step, in another order every epoch; None takes all at once."""
    for epoch in range(epochs):
        order = list(examples)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        size = batch_size or len(order)
        for start in range(0, len(order), size):
            yield order[start : start + size]


def logprob_gap(
    examples: Sequence[dict[str, Any]], logprobs: Sequence[Sequence[float]]
) -> float | None:
    """Mean distance in nats between recorded log-probabilities and the model's, trained tokens.

    Args:
        logprobs: Per example the model's, of its targets.
    """
    gaps = [
        abs(recorded - present)
        for example, of_model in zip(examples, logprobs, strict=True)
        for recorded, weight, present in zip(
            example["logprobs"][1:], example["weights"][1:], of_model, strict=True
        )
        if weight
    ]
    return sum(gaps) / len(gaps) if gaps else None
