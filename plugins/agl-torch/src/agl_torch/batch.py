"""From training rows to tensors: padded forward passes that give log-probabilities per token."""

import contextlib
import functools
import logging
import re
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from agl_records.row_builder import common_length
from agl_torch.memory import AUTO_TOKENS, LOGITS_TOKENS
from agl_torch.models import as_mask, autocast

if TYPE_CHECKING:
    from torch import Tensor

    from agl_records.training_data import TrainingRow
    from agl_torch.options import LearnerOptions


logger = logging.getLogger("agl.torch")
PACKED = re.compile("cohere|gemma|glm|gpt_neox|granite|llama|olmo2?|phi3?|qwen(2|3)(_moe)?|smollm3")
"""Types of models whose scores in one line were seen to be those of each row by itself."""
PACKED_TOKENS = 4096
"""Of a line: attention costs the square of it."""
AUTO_ON_CPU = 512
"""Tokens of a microbatch: more take memory there, and save no time."""


class TokenScores(NamedTuple):
    """Of the N sampled tokens of some rows, row after row."""

    logprobs_N: "Tensor"
    entropy_N: "Tensor"
    hidden_N_H: "Tensor"
    """What the output layer saw of each: the state of the model before the token was drawn."""


def sampled_positions(row: "TrainingRow") -> list[int]:
    """Positions of the tokens that the model sampled."""
    return [position for start, end in row.call_ranges for position in range(start, end)]


def sampler_logprobs(row: "TrainingRow") -> list[float]:
    """Log-probabilities of the sampled tokens, as they were when they were sampled."""
    return [row.logprobs[position] for position in sampled_positions(row)]


def constrained(row: "TrainingRow") -> list[bool]:
    """Of the sampled tokens, whether their answer was held to a form."""
    flags = row.constrained or [False] * len(row.call_ranges)
    return [
        flag
        for flag, (start, end) in zip(flags, row.call_ranges, strict=True)
        for _ in range(start, end)
    ]


def mask_forced_tokens(scores: TokenScores, rows: Sequence["TrainingRow"]) -> TokenScores:
    """Scores in which tokens that a form forced are as they were recorded, with probability 1.

    There was no choice to learn from: their ratio is 1, and they have no gradient and no
    divergence.
    """
    old_N = scores.logprobs_N.new_tensor([one for row in rows for one in sampler_logprobs(row)])
    held = [one for row in rows for one in constrained(row)]
    forced_N = (old_N == 0) & torch.tensor(held, device=old_N.device)
    logprobs_N = torch.where(forced_N, old_N, scores.logprobs_N)
    return scores._replace(logprobs_N=logprobs_N, entropy_N=scores.entropy_N * ~forced_N)


@torch.no_grad()
def logprob_differences(
    model: Any, rows: Sequence["TrainingRow"], options: "LearnerOptions"
) -> list[list[float]]:
    """Per row and sampled token, how much likelier it was when it was sampled than under a model.

    Args:
        model: The frozen start, say, or a teacher.
        options: ``temperature``, ``dtype`` and ``memory``.

    Returns:
        Differences of log-probabilities, in nats.
    """
    gaps: dict[int, list[float]] = {}
    for chunk in microbatches(rows, model, options.memory.microbatch_tokens):
        with autocast(options.dtype, model.device):
            scores = token_logprobs(model, chunk, options.temperature, entropy_gradient=False)
        counts = [row.num_sampled for row in chunk]
        parts = mask_forced_tokens(scores, chunk).logprobs_N.split(counts)
        for row, part in zip(chunk, parts, strict=True):
            pairs = zip(sampler_logprobs(row), part.tolist(), strict=True)
            gaps[id(row)] = [then - under for then, under in pairs]
    return [gaps[id(row)] for row in rows]


def token_logprobs(
    model: Any,
    rows: Sequence["TrainingRow"],
    temperature: float = 1.0,
    *,
    entropy_gradient: bool = True,
) -> TokenScores:
    """Run the model over rows, and score the tokens it sampled.

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
        ValueError: A token id is not in the model's vocabulary.
    """
    _check_ids(rows, model.get_input_embeddings().weight.shape[0])
    batch = pack_rows(rows, model)
    with _head_sees_only(model, batch.line_N, batch.before_N) as seen:
        first_V = model(**batch.inputs, use_cache=False).logits[0, 0].detach().float()
    hidden_N_H, head = seen[0], model.get_output_embeddings()

    def score(logits_n_V: "Tensor", target_n: "Tensor") -> tuple["Tensor", "Tensor"]:
        logits_n_V = logits_n_V.float() / temperature
        # Not log_softmax: on a CPU its sums over a large vocabulary are off in one direction.
        logprobs_n_V = logits_n_V - logits_n_V.logsumexp(-1, keepdim=True)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_n = -(logprobs_n_V.exp() * logprobs_n_V).sum(-1)
        return logprobs_n_V.gather(1, target_n[:, None])[:, 0], entropy_n

    with torch.no_grad():
        ours_V = after_head(model, head(hidden_N_H[:1]))[0].float()
    if torch.isfinite(first_V).all() and not torch.allclose(ours_V, first_V, 1e-2, 1e-3):
        _warn_of_own_logits(type(model).__name__)
        logits_N_V = model(**batch.inputs, use_cache=False).logits[batch.line_N, batch.before_N]
        return TokenScores(*score(logits_N_V, batch.target_N), hidden_N_H)

    def piece(hidden_n_H: "Tensor", target_n: "Tensor") -> tuple["Tensor", "Tensor"]:
        return score(after_head(model, head(hidden_n_H[None]))[0], target_n)

    parts = zip(hidden_N_H.split(LOGITS_TOKENS), batch.target_N.split(LOGITS_TOKENS), strict=True)
    keep: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    scored = [checkpoint(piece, *part, **keep) for part in parts]
    logprobs_N, entropy_N = map(torch.cat, zip(*scored, strict=True))
    return TokenScores(logprobs_N, entropy_N, hidden_N_H)


@functools.cache
def _warn_of_own_logits(kind: str) -> None:
    """Say once of each kind of model that ``after_head`` does not compute its logits."""
    logger.warning(
        "agl-torch does not know how %s computes its logits: it runs the model a second time for "
        "the logits of all sampled tokens of a microbatch at once. That takes more time, and more "
        "memory than the estimate says",
        kind,
    )


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


class PackedBatch(NamedTuple):
    """Rows as a model takes them."""

    inputs: dict[str, Any]
    line_N: "Tensor"
    """Of each sampled token, row after row, the line in the batch that has it."""
    before_N: "Tensor"
    """And the place in it of the token before, whose logits it was drawn from."""
    target_N: "Tensor"


def pack_rows(rows: Sequence["TrainingRow"], model: Any) -> PackedBatch:
    """Rows in lines, padded on the right; what rows have in common at their beginning stands once.

    A line is the tokens that some rows begin with and then the rest of each, which sees those and
    itself. Where no line has several rows there is no mask, which costs attention its fast way:
    padding comes after all else, and a causal model has nothing see it.

    Source: Prefix Grouper (arXiv:2506.05433).
    """
    groups = group_by_prefix(rows, model)
    lines: list[list[int]] = []
    places: dict[int, tuple[int, int, int]] = {}
    segments: list[list[int]] = []
    positions: list[list[int]] = []
    for number, (some, prefix) in enumerate(groups):  # of one row, all of it is prefix
        lines.append([*some[0].token_ids[:prefix]])
        segments.append([0] * prefix)
        positions.append([*range(prefix)])
        for segment, row in enumerate(some, 1):
            places[id(row)] = (number, prefix, len(lines[-1]) - prefix)
            rest = row.token_ids[prefix:]
            lines[-1] += rest
            segments[-1] += [segment] * len(rest)
            positions[-1] += range(prefix, prefix + len(rest))
    device = model.device
    inputs: dict[str, Any] = {"input_ids": _padded(lines, 0).to(device)}
    if len(groups) < len(rows):
        inputs["position_ids"] = _padded(positions, 0).to(device)
        segment_B_T = _padded(segments, -1).to(device)
        seen_B_1_T_T = (segment_B_T[:, None, None] == 0) | (
            segment_B_T[:, None, None] == segment_B_T[:, None, :, None]
        )
        inputs["attention_mask"] = as_mask(model, seen_B_1_T_T.tril())

    def place(row: "TrainingRow", position: int) -> tuple[int, int]:
        line, prefix, shift = places[id(row)]
        return line, position + shift * (position >= prefix)

    sampled = [(row, position) for row in rows for position in sampled_positions(row)]
    before = torch.tensor([place(row, position - 1) for row, position in sampled], device=device)
    target = torch.tensor([row.token_ids[position] for row, position in sampled], device=device)
    return PackedBatch(inputs, before[:, 0], before[:, 1], target)


def _padded(lines: list[list[int]], fill: int) -> "Tensor":
    return pad_sequence([torch.tensor(one) for one in lines], batch_first=True, padding_value=fill)


def supports_packing(model: Any) -> bool:
    """Whether a model makes the same of rows in one line, with a mask, as of each by itself."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    window = None if kinds else getattr(config, "sliding_window", None)
    sees_all = {*(kinds or ["full_attention"])} == {"full_attention"} and not window
    takes_masks = config._attn_implementation in ("sdpa", "eager")
    return bool(PACKED.fullmatch(config.model_type) and takes_masks and sees_all)


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


class PrefixGroup(NamedTuple):
    """Rows that begin alike."""

    rows: list["TrainingRow"]
    prefix: int
    """So many tokens all of them begin with."""

    @property
    def length(self) -> int:
        """Of a line with all of them."""
        return self.prefix + sum(len(row.token_ids) - self.prefix for row in self.rows)


def group_by_prefix(
    rows: Sequence["TrainingRow"], model: Any, max_tokens: int | None = None, is_auto: bool = False
) -> list[PrefixGroup]:
    """Rows with those that begin like them, where that saves a quarter of a row or more.

    Each by itself where the model cannot have them in one line. With ``auto`` a line may be four
    times as long as what its rows share, so that a long prompt is read once.
    """
    if not supports_packing(model):
        return [PrefixGroup([row], len(row.token_ids)) for row in rows]
    limit = min(max_tokens or PACKED_TOKENS, PACKED_TOKENS)
    groups: list[PrefixGroup] = []
    for row in sorted(rows, key=lambda row: row.token_ids):
        size = len(row.token_ids)
        if groups:
            others, prefix = groups[-1]
            common = common_length(others[0].token_ids[:prefix], row.token_ids)
            joined = PrefixGroup([*others, row], common)
            saved = common * len(others) - prefix * (len(others) - 1)
            longest = max(limit, min(4 * common, AUTO_TOKENS)) if is_auto else limit
            if 4 * saved >= size and joined.length <= longest:
                groups[-1] = joined
                continue
        groups.append(PrefixGroup([row], size))
    return groups


def microbatches(
    rows: Sequence["TrainingRow"], model: Any, microbatch_tokens: "int | str | None"
) -> Iterator[list["TrainingRow"]]:
    """Rows in chunks whose size as ``pack_rows`` has them stays within ``microbatch_tokens``.

    Long ones come first: lines of a chunk are about as long as each other, and little of it is
    padding. A line that is longer by itself is a chunk of its own. None: everything is one chunk.
    """
    max_tokens = cast("int | None", microbatch_tokens)
    is_auto = microbatch_tokens == "auto"
    if is_auto:
        max_tokens = AUTO_ON_CPU if model.device.type == "cpu" else AUTO_TOKENS
    chunk: list[PrefixGroup] = []
    groups = group_by_prefix(rows, model, max_tokens, is_auto)
    for group in sorted(groups, key=lambda group: -group.length):
        width = (chunk or [group])[0].length
        if chunk and max_tokens is not None and width * (len(chunk) + 1) > max_tokens:
            yield [row for one in chunk for row in one.rows]
            chunk = []
        chunk.append(group)
    if chunk:
        yield [row for one in chunk for row in one.rows]
