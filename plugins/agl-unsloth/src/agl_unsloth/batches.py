"""Examples as batches: padded on the right, and nothing trained that was not sampled."""

from collections.abc import Callable, Sequence
from typing import Any

IGNORED = -100
"""Label of a token that is not trained."""

Batch = dict[str, Any]
"""Tensors of shape [rows, tokens]."""


def sft_batch(pad_token_id: int) -> Callable[[Sequence[dict[str, Any]]], Batch]:
    """Makes batches of examples with ``input_ids`` and ``labels``."""

    def collate(examples: Sequence[dict[str, Any]]) -> Batch:
        return _batch(
            [example["input_ids"] for example in examples],
            {"labels": ([example["labels"] for example in examples], IGNORED)},
            pad_token_id,
        )

    return collate


def dpo_batch(pad_token_id: int) -> Callable[[Sequence[dict[str, Any]]], Batch]:
    """Makes batches of pairs: first all chosen, then all rejected, as TRL's DPO wants them."""

    def collate(examples: Sequence[dict[str, Any]]) -> Batch:
        sides = [
            (example["prompt_ids"], example[side])
            for side in ("chosen_ids", "rejected_ids")
            for example in examples
        ]
        masks = [[0] * len(prompt) + [1] * len(answer) for prompt, answer in sides]
        rows = [prompt + answer for prompt, answer in sides]
        return _batch(rows, {"completion_mask": (masks, 0)}, pad_token_id)

    return collate


def _batch(
    rows: list[list[int]], others: dict[str, tuple[list[list[int]], int]], pad_token_id: int
) -> Batch:
    import torch

    length = max(map(len, rows))

    def padded(values: list[list[int]], filler: int) -> Any:
        return torch.tensor([one + [filler] * (length - len(one)) for one in values])

    return {
        "input_ids": padded(rows, pad_token_id),
        "attention_mask": padded([[1] * len(row) for row in rows], 0),
        **{name: padded(values, filler) for name, (values, filler) in others.items()},
    }
