"""From training rows to tensors: padded forward passes that give log-probabilities per token."""

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from agl_torch.models import computing_in

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.records import TrainingRow
    from agl_torch.options import LearnerOptions


ENTROPY_TOKENS = 1024
"""So many tokens at once where the entropy carries no gradient."""


class TokenScores(NamedTuple):
    """Of the N sampled tokens of some rows, row after row."""

    logprobs_N: "Tensor"
    entropy_N: "Tensor"
    hidden_N_H: "Tensor"
    """What the output layer saw of each: the state of the model before the token was drawn."""


def sampled_positions(row: "TrainingRow") -> list[int]:
    """Positions of the tokens that the model sampled."""
    return [position for start, end in row.call_ranges for position in range(start, end)]


def recorded(row: "TrainingRow") -> list[float]:
    """Log-probabilities of the sampled tokens, as they were when they were sampled."""
    return [row.logprobs[position] for position in sampled_positions(row)]


def without_forced(scores: TokenScores, rows: Sequence["TrainingRow"]) -> TokenScores:
    """Scores in which tokens that were drawn with probability 1 are as they were recorded.

    An answer that is held to a form has such tokens, whatever the model would have said. There was
    no choice to learn from: their ratio is 1, and they have no gradient and no divergence.
    """
    old_N = scores.logprobs_N.new_tensor([one for row in rows for one in recorded(row)])
    logprobs_N = torch.where(old_N == 0, old_N, scores.logprobs_N)
    return scores._replace(logprobs_N=logprobs_N, entropy_N=scores.entropy_N * (old_N != 0))


@torch.no_grad()
def gaps_to(
    model: Any, rows: Sequence["TrainingRow"], options: "LearnerOptions"
) -> list[list[float]]:
    """Per row and sampled token, how much likelier it was when it was sampled than under a model.

    Args:
        model: The frozen start, say, or a teacher.
        rows: At least one.
        options: ``temperature``, ``dtype`` and ``microbatch_tokens``.

    Returns:
        Differences of log-probabilities, in nats.
    """
    gaps: list[list[float]] = []
    for chunk in chunks_by_tokens(rows, options.microbatch_tokens):
        with computing_in(options.dtype, model.device):
            scores = score_rows(model, chunk, options.temperature, entropy_gradient=False)
        parts = without_forced(scores, chunk).logprobs_N.split([row.num_sampled for row in chunk])
        for row, part in zip(chunk, parts, strict=True):
            pairs = zip(recorded(row), part.tolist(), strict=True)
            gaps.append([then - under for then, under in pairs])
    return gaps


def score_rows(
    model: Any,
    rows: Sequence["TrainingRow"],
    temperature: float = 1.0,
    *,
    entropy_gradient: bool = True,
) -> TokenScores:
    """Run the model over rows, padded on the right, and score the tokens it sampled.

    Logits are made for the sampled tokens alone: with a large vocabulary they are what fills the
    memory, and most tokens of an agent's rows were given to it.

    Args:
        model: A causal model of ``transformers``.
        rows: At least one; each with a given token before its first sampled one.
        temperature: At which the tokens were sampled.
        entropy_gradient: Whether the entropy carries one; without it, it costs no memory.

    Returns:
        Log-probability of each sampled token, with gradient, entropy of the distribution that it
        was drawn from, and the hidden state that gave it, in order.

    Raises:
        ValueError: A token id is not in the model's vocabulary.
    """
    _check_ids(rows, model.get_input_embeddings().weight.shape[0])
    inputs, row_N, position_N = pad(rows, model.device)
    # The logits at t - 1 are those that token t was drawn from.
    with _head_sees_only(model, row_N, position_N - 1) as seen:
        output = model(**inputs, use_cache=False)
    logits_N_V = output.logits[0].float()
    if temperature != 1.0:
        logits_N_V = logits_N_V / temperature
    logprobs_N_V = torch.log_softmax(logits_N_V, dim=-1)
    del output, logits_N_V
    target_N = inputs["input_ids"][row_N, position_N]
    logprobs_N = logprobs_N_V.gather(1, target_N[:, None])[:, 0]
    if entropy_gradient:
        return TokenScores(logprobs_N, _entropy(logprobs_N_V), *seen)
    with torch.no_grad():
        parts = [_entropy(part) for part in logprobs_N_V.split(ENTROPY_TOKENS)]
    return TokenScores(logprobs_N, torch.cat(parts), *seen)


def pad(
    rows: Sequence["TrainingRow"], device: Any
) -> tuple[dict[str, "Tensor"], "Tensor", "Tensor"]:
    """Rows as a model takes them; row and position of each sampled token in that."""
    padded = pad_sequence([torch.tensor(row.token_ids) for row in rows], batch_first=True)
    ones = pad_sequence([torch.ones(len(row.token_ids)) for row in rows], batch_first=True)
    inputs = {"input_ids": padded.to(device), "attention_mask": ones.long().to(device)}
    where = [(d, t) for d, row in enumerate(rows) for t in sampled_positions(row)]
    row_N = torch.tensor([d for d, _ in where], device=device)
    return inputs, row_N, torch.tensor([t for _, t in where], device=device)


def _entropy(logprobs_N_V: "Tensor") -> "Tensor":
    return -(logprobs_N_V.exp() * logprobs_N_V).sum(-1)


@contextlib.contextmanager
def _head_sees_only(model: Any, row_N: "Tensor", position_N: "Tensor") -> Generator[list["Tensor"]]:
    """A block in which the output layer gets the hidden states at these N places, as ``(1, N, H)``.

    ``logits_to_keep`` of transformers takes the same places of every row, and rows sampled at
    different ones. What a model does to its logits after this layer (a soft cap, a scale) it does
    all the same. The list has the states, ``(N, H)``, once the model has run.

    Of this thread alone: that of the server may sample from the same layers meanwhile.
    """
    seen: list[Tensor] = []
    ours = threading.get_ident()

    def gathered(layer: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != ours:
            return None
        hidden_D_T_H, *others = arguments
        seen[:] = [hidden_D_T_H[row_N, position_N]]
        return (seen[0][None], *others)

    hook = model.get_output_embeddings().register_forward_pre_hook(gathered)
    try:
        yield seen
    finally:
        hook.remove()


def _check_ids(rows: Sequence["TrainingRow"], vocabulary: int) -> None:
    """On a GPU an id beyond the vocabulary ends the process; such rows are excluded before."""
    for row in rows:
        if not 0 <= min(row.token_ids) <= max(row.token_ids) < vocabulary:
            raise ValueError(
                f"rollout {row.rollout_id!r}: its row has token ids from {min(row.token_ids)} to "
                f"{max(row.token_ids)}, and the model's vocabulary has {vocabulary}; was it "
                "sampled from another model?"
            )


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
