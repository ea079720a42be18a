"""Batched sampling from a causal language model: a plain decoder with a key-value cache.

Prompts of different lengths are padded on the left, with position ids that count the real tokens,
so a row's result depends on its neighbours by no more than rounding. A row that is finished leaves
the batch.

With ``batch_rows`` it does not depend on them at all, to the last bit. Rounding differs where a
kernel sees another shape, so a batch always has one: a fixed number of rows, filled up with copies
and kept to its end, and a width that follows from the length of each row's prompt alone.

What the log-probabilities are: of the whole softmax at the request's temperature, before ``top_p``
cuts its tail. That is the policy that a policy gradient differentiates; at temperature 0 (greedy)
they are those of temperature 1.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from agl.errors import ConfigError
from agl_torch.models import computing_in

if TYPE_CHECKING:
    from torch import Tensor

WIDTH_STEP = 16
"""Prompts of a batch of fixed shape are padded to the next multiple of it."""

TokenSink = Callable[[int, float], None]
"""Called with each token id and its log-probability, from the generating thread."""


@dataclass(frozen=True)
class SamplingRequest:
    """One sequence to sample."""

    prompt_token_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    """0 takes the most probable token."""
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these texts."""
    seed: str | int | None = None
    """Same seed, same draw, whatever else is in the batch."""
    on_token: TokenSink | None = None


@dataclass
class Completion:
    """What was sampled."""

    token_ids: list[int] = field(default_factory=list[int])
    """End token included."""
    logprobs: list[float] = field(default_factory=list[float])
    text: str = ""
    """Without special tokens, and cut before a stop text."""
    finish_reason: Literal["stop", "length"] = "length"
    stop_reason: str | None = None
    """The stop text that ended it, if one did."""


def sampling_distribution(
    logits_B_V: "Tensor", temperature_B: "Tensor", top_p_B: "Tensor"
) -> tuple["Tensor", "Tensor"]:
    """Log-probabilities of the policy, and the probabilities to draw from.

    Args:
        logits_B_V: The model's output.
        temperature_B: Per row; 0 puts all mass on the most probable token.
        top_p_B: Per row; the smallest set of most probable tokens with at least this mass is kept.

    Returns:
        ``log_softmax(logits / temperature)``, and unnormalised probabilities whose zeros are never
        drawn; both B x V, the second one in double precision.
    """
    greedy_B = temperature_B == 0
    scale_B = torch.where(greedy_B, torch.ones_like(temperature_B), temperature_B)
    logprobs_B_V = torch.log_softmax(logits_B_V.float() / scale_B[:, None], dim=-1)
    draw_B_V = logprobs_B_V.double().exp()
    if bool((top_p_B < 1).any()):
        sorted_B_V, order_B_V = draw_B_V.sort(dim=-1, descending=True)
        before_B_V = sorted_B_V.cumsum(-1) - sorted_B_V
        # By rounding, it may reach 1 before the end: who asked for everything keeps everything.
        limit_B = torch.where(top_p_B < 1, top_p_B, torch.inf)
        sorted_B_V[before_B_V >= limit_B[:, None]] = 0
        draw_B_V = torch.zeros_like(draw_B_V).scatter_(1, order_B_V, sorted_B_V)
    if bool(greedy_B.any()):
        best_B = logits_B_V.argmax(-1)
        draw_B_V[greedy_B] = torch.nn.functional.one_hot(
            best_B[greedy_B], logits_B_V.shape[-1]
        ).double()
    return logprobs_B_V, draw_B_V


def draw(weights_B_V: "Tensor", uniform_B: "Tensor") -> "Tensor":
    """One index per row, by inverting the cumulative distribution at ``uniform_B`` in [0, 1)."""
    cumulative_B_V = weights_B_V.cumsum(-1)
    target_B = uniform_B * cumulative_B_V[:, -1]
    return torch.searchsorted(cumulative_B_V, target_B[:, None], right=True)[:, 0].clamp_(
        max=weights_B_V.shape[-1] - 1
    )


class Sampler:
    """Samples from a model whose parameters it shares; it keeps no copy.

    Args:
        model: A causal model of ``transformers``, in evaluation mode while it is used here.
        tokenizer: Its tokenizer.
        seed: Of the draws of requests without a seed.
        dtype: In which the model computes; None is that of its weights.
        batch_rows: Every batch has exactly so many rows, so that a completion depends on its
            request alone; None: as many as there are requests.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        seed: int = 0,
        dtype: str | None = None,
        batch_rows: int | None = None,
    ) -> None:
        self._dtype = dtype
        self._batch_rows = batch_rows
        self.model = model
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        """Of the draws of requests without a seed."""
        self.end_token_ids = _end_token_ids(model, tokenizer)
        pad = tokenizer.pad_token_id
        self._pad_token_id = pad if pad is not None else min(self.end_token_ids, default=0)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one completion per request: all in one batch, or in batches of a fixed shape."""
        if self._batch_rows is None:
            return self._generate(requests)
        numbers_by_width: defaultdict[int, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            # At least one column of padding: attention goes another way where there is none.
            width = (len(request.prompt_token_ids) // WIDTH_STEP + 1) * WIDTH_STEP
            numbers_by_width[width].append(number)
        completions = [Completion() for _ in requests]
        for width, numbers in numbers_by_width.items():
            for start in range(0, len(numbers), self._batch_rows):
                batch = numbers[start : start + self._batch_rows]
                made = self._generate([requests[number] for number in batch], width)
                for number, completion in zip(batch, made, strict=True):
                    completions[number] = completion
        return completions

    def check_batches(self, rows: int) -> None:
        """Try whether completions depend on their requests alone, as ``batch_rows`` promises.

        Nothing forces a kernel to compute every row of one shape alike, though those that we know
        do.

        Args:
            rows: ``batch_rows``.

        Raises:
            ConfigError: They do not.
        """
        chance = random.Random(0)
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        requests = [
            SamplingRequest(
                [chance.randrange(vocabulary) for _ in range(row % (WIDTH_STEP - 1) + 1)],
                max_tokens=4,
                seed=row,
            )
            for row in range(rows)
        ]
        together = self.generate(requests)
        for row in range(rows - 1, -1, -max(1, rows // 4)):
            if self.generate([requests[row]]) != [together[row]]:
                raise ConfigError(
                    f"deterministic: on {self.model.device}, answers of this model "
                    f"({type(self.model).__name__}) depend on what else is in their batch. Set "
                    "max_batch_size to 1, so that there is nothing else"
                )

    @torch.no_grad()
    def _generate(
        self, requests: Sequence[SamplingRequest], fixed_width: int | None = None
    ) -> list[Completion]:
        """Sample in one batch; with a width for the prompts, in one of ``batch_rows`` rows."""
        from transformers import DynamicCache

        completions = [Completion() for _ in requests]
        is_fixed, num_asked = fixed_width is not None, len(requests)
        if is_fixed and self._batch_rows is not None:
            copy = replace(requests[0], on_token=None, seed=0)
            requests = [*requests, *[copy] * (self._batch_rows - num_asked)]
        randoms = [
            self.random if request.seed is None else random.Random(request.seed)
            for request in requests
        ]
        device = self.model.device
        input_B_T, mask_B_T = self._pad(requests, device, fixed_width)
        position_B_T = (mask_B_T.cumsum(-1) - 1).clamp_(min=0)
        temperature_B = torch.tensor([r.temperature for r in requests], device=device)
        top_p_B = torch.tensor([r.top_p for r in requests], device=device)
        cache = DynamicCache(config=self.model.config)
        rows = list(range(len(requests)))
        unfinished = set(range(num_asked))
        while unfinished:
            with computing_in(self._dtype or "float32", device):
                output = self.model(
                    input_ids=input_B_T,
                    attention_mask=mask_B_T,
                    position_ids=position_B_T,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
            logprobs_B_V, draw_B_V = sampling_distribution(
                output.logits[:, -1], temperature_B, top_p_B
            )
            uniform_B = torch.tensor(
                [randoms[row].random() for row in rows], dtype=torch.float64, device=device
            )
            token_B = draw(draw_B_V, uniform_B)
            logprob_B = logprobs_B_V.gather(1, token_B[:, None])[:, 0]
            for row, token_id, logprob in zip(
                rows, token_B.tolist(), logprob_B.tolist(), strict=True
            ):
                if row in unfinished and not self._append(
                    requests[row], completions[row], token_id, logprob
                ):
                    unfinished.remove(row)
            if not is_fixed and 0 < len(unfinished) < len(rows):
                going = [index for index, row in enumerate(rows) if row in unfinished]
                keep = torch.tensor(going, device=device)
                cache.batch_select_indices(keep)
                token_B, mask_B_T = token_B[keep], mask_B_T[keep]
                position_B_T = position_B_T[keep]
                temperature_B, top_p_B = temperature_B[keep], top_p_B[keep]
                rows = [rows[index] for index in going]
            input_B_T = token_B[:, None]
            mask_B_T = torch.cat([mask_B_T, mask_B_T.new_ones(len(rows), 1)], dim=1)
            position_B_T = position_B_T[:, -1:] + 1
        return completions

    def _pad(
        self, requests: Sequence[SamplingRequest], device: Any, width: int | None = None
    ) -> tuple["Tensor", "Tensor"]:
        width = width or max(len(request.prompt_token_ids) for request in requests)
        ids = [
            [self._pad_token_id] * (width - len(r.prompt_token_ids)) + list(r.prompt_token_ids)
            for r in requests
        ]
        mask = [
            [0] * (width - len(r.prompt_token_ids)) + [1] * len(r.prompt_token_ids)
            for r in requests
        ]
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _append(
        self, request: SamplingRequest, completion: Completion, token_id: int, logprob: float
    ) -> bool:
        """Add a token to a completion; returns whether it goes on."""
        completion.token_ids.append(token_id)
        completion.logprobs.append(logprob)
        if request.on_token is not None:
            request.on_token(token_id, logprob)
        ended = token_id in self.end_token_ids
        full = len(completion.token_ids) >= request.max_tokens
        if ended or full or request.stop:
            completion.text = self.decode(completion.token_ids)
            found = first_stop(completion.text, request.stop)
            if found is not None:
                completion.text, completion.stop_reason = found
                ended = True
        if ended:
            completion.finish_reason = "stop"
        return not (ended or full)


def first_stop(text: str, stop: Sequence[str]) -> tuple[str, str] | None:
    """``text`` up to the earliest of the stop texts, and that one; None when there is none."""
    hits = [(text.index(candidate), candidate) for candidate in stop if candidate in text]
    if not hits:
        return None
    position, candidate = min(hits)
    return text[:position], candidate


def _end_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids: set[int] = set()
    for value in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        if isinstance(value, int):
            ids.add(value)
        elif value is not None:
            ids.update(value)
    return frozenset(ids)
