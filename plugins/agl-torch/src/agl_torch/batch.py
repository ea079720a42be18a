"""From training rows to tensors: padded forward passes that give log-probabilities per token."""

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from agl.errors import ConfigError
from agl_torch.models import computing_in

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.records import TrainingRow
    from agl_torch.options import LearnerOptions


LOGITS_TOKENS = 512
"""Logits are made for so many tokens at once: those of all would fill the memory."""


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
    gaps: dict[int, list[float]] = {}
    for chunk in chunks_by_tokens(rows, options.microbatch_tokens):
        with computing_in(options.dtype, model.device):
            scores = score_rows(model, chunk, options.temperature, entropy_gradient=False)
        parts = without_forced(scores, chunk).logprobs_N.split([row.num_sampled for row in chunk])
        for row, part in zip(chunk, parts, strict=True):
            pairs = zip(recorded(row), part.tolist(), strict=True)
            gaps[id(row)] = [then - under for then, under in pairs]
    return [gaps[id(row)] for row in rows]


def score_rows(
    model: Any,
    rows: Sequence["TrainingRow"],
    temperature: float = 1.0,
    *,
    entropy_gradient: bool = True,
) -> TokenScores:
    """Run the model over rows, padded on the right, and score the tokens it sampled.

    Logits are made for the sampled tokens alone, ``LOGITS_TOKENS`` at once, and again where
    gradients need them: with a large vocabulary they are what fills the memory.

    Args:
        model: A causal model of ``transformers``.
        rows: At least one; each with a given token before its first sampled one.
        temperature: At which the tokens were sampled.
        entropy_gradient: Whether the entropy carries one; without it, it costs no memory.

    Returns:
        Log-probability of each sampled token, with gradient, entropy of the distribution that it
        was drawn from, and the hidden state that gave it, in order.

    Raises:
        ConfigError: What the model makes of its logits is unknown.
        ValueError: A token id is not in the model's vocabulary.
    """
    _check_ids(rows, model.get_input_embeddings().weight.shape[0])
    inputs, row_N, position_N = pad(rows, model.device)
    # The logits at t - 1 are those that token t was drawn from.
    with _head_sees_only(model, row_N, position_N - 1) as seen:
        first_V = model(**inputs, use_cache=False).logits[0, 0].detach()
    hidden_N_H, head = seen[0], model.get_output_embeddings()
    with torch.no_grad():
        if not torch.allclose(after_head(model, head(hidden_N_H[:1]))[0], first_V, rtol=1e-2):
            raise ConfigError(
                f"{type(model).__name__} changes the numbers of its output layer in a way that "
                "agl-torch does not know, and so cannot be trained by it"
            )

    def score(hidden_n_H: "Tensor", target_n: "Tensor") -> tuple["Tensor", "Tensor"]:
        logits_n_V = after_head(model, head(hidden_n_H[None]))[0].float() / temperature
        logprobs_n_V = torch.log_softmax(logits_n_V, dim=-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_n = -(logprobs_n_V.exp() * logprobs_n_V).sum(-1)
        return logprobs_n_V.gather(1, target_n[:, None])[:, 0], entropy_n

    target_N = inputs["input_ids"][row_N, position_N]
    pieces = zip(hidden_N_H.split(LOGITS_TOKENS), target_N.split(LOGITS_TOKENS), strict=True)
    keep = {"use_reentrant": False, "preserve_rng_state": False}
    scored = [checkpoint(score, *piece, **keep) for piece in pieces]
    logprobs_N, entropy_N = (torch.cat(parts) for parts in zip(*scored, strict=True))
    return TokenScores(logprobs_N, entropy_N, hidden_N_H)


def after_head(model: Any, logits: "Tensor") -> "Tensor":
    """What a model of ``transformers`` makes of the numbers of its output layer."""
    config = model.config.get_text_config()
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):  # Granite
        logits = logits / divisor
    if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
        logits = cap * torch.tanh(logits / cap)
    return logits


def pad(
    rows: Sequence["TrainingRow"], device: Any
) -> tuple[dict[str, "Tensor"], "Tensor", "Tensor"]:
    """Rows as a model takes them; row and position of each sampled token in that.

    Without a mask, which costs attention its fast way: what is padded comes after all tokens of
    its row, and a causal model has none of them see it.
    """
    padded = pad_sequence([torch.tensor(row.token_ids) for row in rows], batch_first=True)
    inputs = {"input_ids": padded.to(device)}
    where = [(d, t) for d, row in enumerate(rows) for t in sampled_positions(row)]
    row_N = torch.tensor([d for d, _ in where], device=device)
    return inputs, row_N, torch.tensor([t for _, t in where], device=device)


@contextlib.contextmanager
def _head_sees_only(model: Any, row_N: "Tensor", position_N: "Tensor") -> Generator[list["Tensor"]]:
    """A block in which the output layer keeps the hidden states at these N places, ``(N, H)``.

    ``logits_to_keep`` of transformers takes the same places of every row, and rows sampled at
    different ones. The list has the states once the model has run; the layer gets the first alone.

    Of this thread alone: that of the server may sample from the same layers meanwhile.
    """
    seen: list[Tensor] = []
    ours = threading.get_ident()

    def gathered(layer: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != ours:
            return None
        hidden_D_T_H, *others = arguments
        seen[:] = [hidden_D_T_H[row_N, position_N]]
        return (seen[0][None, :1].detach(), *others)

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
    """Rows, the longest first, in chunks whose padded size stays within ``max_tokens``.

    Rows of a chunk are about as long as each other, and little of it is padding. A row that is
    longer by itself is a chunk of its own. None: everything is one chunk.
    """
    chunk: list[TrainingRow] = []
    for row in sorted(rows, key=lambda row: -len(row.token_ids)):
        width = len((chunk or [row])[0].token_ids)
        if chunk and max_tokens is not None and width * (len(chunk) + 1) > max_tokens:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk
