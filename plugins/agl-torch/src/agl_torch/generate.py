"""Sampling from a causal language model: sequences join and leave between two steps.

A step gives every sequence one token more; those that have just joined get their first one from
a pass over what of their prompts no slot holds (see ``slots``). Each sequence draws from a
generator of its own, so its neighbours change nothing but the rounding of sums, which kernels do
otherwise in another shape.

With ``batch_rows`` not even that: a batch has a fixed number of rows, filled up with copies and
kept to its end, of prompts whose length says the same width; nothing is taken from other sequences.

What the log-probabilities are: of the whole softmax at the request's temperature over what a form
allows (``Constraint``), before ``top_p`` cuts its tail. A token that the form forces has 0. That is
what the answer was drawn from; at temperature 0 (greedy) they are those of temperature 1.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy
import torch

from agl.errors import ConfigError
from agl_models.completions import RequestError, end_tokens
from agl_models.sampling.sequences import Completion, Constraint, SamplingRequest
from agl_records.row_builder import common_length
from agl_torch.draws import CHANCES, draw, generator, sampling_distribution
from agl_torch.models import as_mask, autocast
from agl_torch.slots import Place, Slot, Slots

if TYPE_CHECKING:
    from torch import Tensor

WIDTH_STEP = 16
"""Prompts of a batch of fixed shape are padded to the next multiple of it."""

PASS_TOKENS = 4096
"""Of the prompts that are read at once, padding included; one prompt may have more."""

ATTENTION = {None, "full_attention", "sliding_attention"}
"""Kinds of layers whose keys and values can lie in slots."""


@dataclass(eq=False)
class Running:
    """A sequence that waits or is sampled, or was."""

    request: SamplingRequest
    random: torch.Generator | None
    """Of its draws; None where nothing is left to chance."""
    constraint: Constraint | None
    completion: Completion = field(default_factory=Completion)
    is_over: bool = False
    error: Exception | None = None
    """What went wrong with it alone."""
    slot: Slot = field(default_factory=Slot)
    """Once it has joined. The newest of its tokens has not been read by the model."""


class Sampler:
    """Samples from a model whose parameters it shares; it keeps no copy.

    Args:
        model: A causal model of ``transformers``, in evaluation mode while it is used here.
        tokenizer: Its tokenizer.
        seed: Of the draws of requests without a seed.
        dtype: In which the model computes; None is that of its weights.
        batch_rows: Every batch has exactly so many rows, so that a completion depends on its
            request alone; None: as many as there are requests.
        max_rows: Sequences sampled at once.
        keep_bytes: Keys and values up to which sequences that ended are kept, for those that begin
            like them. 0: each prompt is read anew.

    Raises:
        ConfigError: The model has layers whose state cannot be kept in slots.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        seed: int = 0,
        dtype: str | None = None,
        batch_rows: int | None = None,
        max_rows: int = 64,
        keep_bytes: int = 0,
    ) -> None:
        self._dtype = dtype
        self._batch_rows = batch_rows
        self._max_rows = batch_rows or max_rows
        self.model = model
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        """Of the draws of requests without a seed."""
        self.end_token_ids = end_tokens(model.generation_config, tokenizer)
        self.vocabulary_size: int = model.get_output_embeddings().weight.shape[0]
        """How many logits the model has."""
        self._config = model.config.get_text_config()
        self._kinds = set(getattr(self._config, "layer_types", None) or [None])
        attention = self._config._attn_implementation
        if not self._kinds <= ATTENTION or attention not in ("eager", "sdpa"):
            raise ConfigError(
                f"{type(model).__name__} cannot be sampled from here: layers "
                f"{sorted(map(str, self._kinds))} with attention {attention!r}; expected full or "
                "sliding attention, loaded with attn_implementation='sdpa' or 'eager'"
            )
        # Without anything kept, slots lie in memory as the width of a fixed batch says.
        self._slots = Slots(self._max_rows, 0 if batch_rows else keep_bytes)
        self._waiting: list[Running] = []
        self._running: list[Running] = []
        """Number n has slot n."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one completion per request."""
        made = [self.add(request) for request in requests]
        while not all(one.is_over for one in made):
            self.step()
        if errors := [one.error for one in made if one.error]:
            raise errors[0]
        return [one.completion for one in made]

    def check_batches(self, rows: int) -> None:
        """Try whether completions depend on their requests alone, as ``batch_rows`` promises.

        Nothing forces a kernel to compute every row of one shape alike, though those that we know
        do.

        Raises:
            ConfigError: They do not.
        """
        vocabulary = range(self.model.get_input_embeddings().weight.shape[0])
        prompts = [random.Random(row).choices(vocabulary, k=row % 15 + 1) for row in range(rows)]
        requests = [SamplingRequest(prompts[n], max_tokens=4, seed=n) for n in range(rows)]
        together = self.generate(requests)
        for row in range(rows - 1, -1, -max(1, rows // 4)):
            if self.generate([requests[row]]) != [together[row]]:
                raise ConfigError(
                    f"deterministic: on {self.model.device}, answers of this model "
                    f"({type(self.model).__name__}) depend on what else is in their batch. Set "
                    "max_batch_size to 1, so that there is nothing else"
                )

    def add(self, request: SamplingRequest) -> Running:
        """Have a sequence join at the next step that has room for it.

        Raises:
            RequestError: Its prompt has tokens that the model does not know.
        """
        known = self.model.get_input_embeddings().weight.shape[0]
        if beyond := [one for one in request.prompt_token_ids if not 0 <= one < known]:
            raise RequestError(400, f"the prompt has token {beyond[0]}; the model has {known}")
        seed = self.random.getrandbits(64) if request.seed is None else request.seed
        constraint = request.constraint() if request.constraint else None
        chance = generator(seed, self.model.device) if request.temperature else None
        running = Running(request, chance, constraint)
        self._waiting.append(running)
        return running

    def drop(self, running: Running) -> None:
        """Sample no more of a sequence: nobody wants it."""
        running.is_over = True
        if running in self._waiting:
            self._waiting.remove(running)

    def forget(self) -> None:
        """Keep nothing of earlier sequences; for when the weights change, while nothing runs."""
        self._slots.forget()

    def give_up(self) -> None:
        """Sample no more of anything: a step has failed."""
        self._running.clear()
        self._waiting.clear()
        self._slots.forget()

    @property
    def is_idle(self) -> bool:
        """Whether nothing has joined that is not over."""
        return not self._running

    @torch.no_grad()
    def step(self, may_join: bool = True) -> list[Running]:
        """Give every sequence one token, and another to those that join; returns what is over."""
        begun = len(self._running)
        if may_join:
            self._join()
        for start, end in self._passes(begun):
            self._advance(start, end)
        over = self._leave()
        if self._running:
            self._advance(0, len(self._running))
        return over + self._leave()

    def _join(self) -> None:
        """Let those join that there is room for."""
        if not self._waiting or (self._batch_rows and self._running):
            return
        room = self._waiting[: self._max_rows - len(self._running)]
        if self._batch_rows:
            self._width = _padded_width(self._waiting[0])
            room = [one for one in self._waiting if _padded_width(one) == self._width]
        joined: list[Running] = []
        # Prompts of about the same length are read at once.
        for one in sorted(
            room[: self._max_rows], key=lambda one: len(one.request.prompt_token_ids)
        ):
            prompt = list(one.request.prompt_token_ids)
            # What another is about to read need not be read twice: a step later it is there.
            if not self._slots.keeps or all(
                common_length(prompt[:-1], other.slot.tokens) <= max(other.slot.held, WIDTH_STEP)
                for other in joined
            ):
                one.slot = self._slots.take(len(self._running), prompt)
                self._running.append(one)
                joined.append(one)
        self._waiting = [one for one in self._waiting if one not in joined]
        if self._batch_rows:
            copy = replace(joined[0].request, on_token=None, constraint=None)
            for number in range(len(joined), self._batch_rows):
                slot = self._slots.take(number, list(copy.prompt_token_ids))
                self._running.append(Running(copy, None, None, is_over=True, slot=slot))

    def _passes(self, begun: int) -> list[tuple[int, int]]:
        """Which of those that have joined since there were ``begun`` are read together.

        One that has but one token left to read is not among them: it goes with the others.
        """
        if self._batch_rows:
            return [] if begun else [(0, len(self._running))]
        passes: list[tuple[int, int]] = []
        start, longest, total = begun, 0, 0
        for number in range(begun, len(self._running)):
            slot = self._running[number].slot
            new = len(slot.tokens) - slot.held
            area = max(longest, new) * (number + 1 - start)
            # Padding costs as much as tokens do.
            wasteful = area > max(128, 1.3 * (total + new)) or area > PASS_TOKENS
            if number > start and (new == 1 or wasteful):
                passes.append((start, number))
                start, longest, total = number, 0, 0
            if new == 1:
                start = number + 1
            else:
                longest, total = max(longest, new), total + new
        return [*passes, (start, len(self._running))] if start < len(self._running) else passes

    def _leave(self) -> list[Running]:
        """Take those out that are over; the others stay in the first slots."""
        over = [one for one in self._running if one.is_over]
        if len(over) == len(self._running):
            self._running = []
        elif self._batch_rows:  # kept to its end
            return []
        else:
            for one in over:
                number, last = self._running.index(one), len(self._running) - 1
                self._slots.swap(number, last)
                self._running[number] = self._running[last]
                self._running.pop()
        if over and not self._running:
            self._slots.rest()
        return over

    def _advance(self, start: int, end: int) -> None:
        """Read what some have not read of their tokens, and sample one more of each."""
        batch, device = self._running[start:end], self.model.device
        new = [one.slot.tokens[one.slot.held :] for one in batch]
        columns = max(map(len, new))
        width = max(len(one.slot.tokens) for one in batch)
        if self._batch_rows:
            columns, width = columns if columns == 1 else self._width, self._width
            self._width += 1
        self._slots.reserve(len(self._running), width)
        input_B_Q = torch.tensor([[0] * (columns - len(ids)) + ids for ids in new], device=device)
        position_B_Q = torch.tensor(
            [
                [-1] * (columns - len(ids)) + [*range(one.slot.held, len(one.slot.tokens))]
                for one, ids in zip(batch, new, strict=True)
            ],
            device=device,
        )
        self._slots.place = Place(
            rows=slice(start, end),
            row_B_1=torch.arange(start, end, device=device)[:, None],
            # Padding goes to the last column, which nothing reads.
            column_B_Q=position_B_Q.where(position_B_Q >= 0, self._slots.width - 1),
            width=width,
        )
        position_B_Q = position_B_Q.clamp(min=0)
        with autocast(self._dtype or "float32", device):
            logits_B_V = self.model(
                input_ids=input_B_Q,
                attention_mask=self._mask(position_B_Q, width),
                position_ids=position_B_Q,
                past_key_values=self._slots.cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
        self._draw(batch, logits_B_V)

    def _mask(self, position_B_Q: "Tensor", width: int) -> Any:
        """What each token sees, in the form that the model takes."""
        column_W = torch.arange(width, device=position_B_Q.device)
        distance_B_1_Q_W = position_B_Q[:, None, :, None] - column_W
        masks: dict[str, Tensor] = {}
        for kind in sorted(map(str, self._kinds)):
            seen_B_1_Q_W = distance_B_1_Q_W >= 0
            window = getattr(self._config, "sliding_window", None)
            if window and kind != "full_attention":
                seen_B_1_Q_W &= distance_B_1_Q_W < window
            masks[kind] = as_mask(self.model, seen_B_1_Q_W)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _draw(self, batch: Sequence[Running], logits_B_V: "Tensor") -> None:
        """Sample one token of each that is not over."""
        device, requests = logits_B_V.device, [one.request for one in batch]
        temperature_B = torch.tensor([request.temperature for request in requests], device=device)
        top_p_B = torch.tensor([request.top_p for request in requests], device=device)
        allowed_B_V = None
        if any(one.constraint for one in batch):
            allowed_B_V = torch.ones_like(logits_B_V, dtype=torch.bool)
            for row, one in enumerate(batch):
                if one.constraint and not one.is_over:
                    try:
                        allowed = one.constraint.allowed()
                    except Exception as error:  # of this sequence; the others go on
                        one.is_over, one.error = True, error
                        continue
                    bits = numpy.frombuffer(allowed, dtype=numpy.uint8)
                    bits = numpy.unpackbits(bits, count=logits_B_V.shape[1], bitorder="little")
                    allowed_B_V[row] = torch.from_numpy(bits.astype(bool)).to(device)
        logprobs_B_V, draw_B_V = sampling_distribution(
            logits_B_V, temperature_B, top_p_B, allowed_B_V
        )
        chance_B_V = torch.full_like(logprobs_B_V, 0.5, dtype=torch.double)
        for row, one in enumerate(batch):
            if one.random is not None and not one.is_over:
                chance_B_V[row].uniform_(*CHANCES, generator=one.random)
        token_B = draw(draw_B_V, chance_B_V)
        logprob_B = logprobs_B_V.gather(1, token_B[:, None])[:, 0]
        for one, token_id, logprob in zip(batch, token_B.tolist(), logprob_B.tolist(), strict=True):
            if one.is_over:
                one.slot.held = len(one.slot.tokens) - 1
                continue
            one.slot.held = len(one.slot.tokens)
            one.slot.tokens.append(token_id)
            try:
                if one.constraint:
                    one.constraint.accept(token_id)
            except Exception as error:  # of this sequence; the others go on
                one.is_over, one.error = True, error
                continue
            one.is_over = not self._append(one.request, one.completion, token_id, logprob)

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
        stops = bool(request.stop) and _may_stop(completion.token_ids, request.stop, self.decode)
        if ended or full or stops:
            completion.text = self.decode(completion.token_ids)
            completion.text, completion.stop_reason = _first_stop(completion.text, request.stop)
            ended |= completion.stop_reason is not None
        if ended:
            completion.finish_reason = "stop"
        return not (ended or full)


def _padded_width(running: Running) -> int:
    # At least one column of padding: attention goes another way where there is none.
    return (len(running.request.prompt_token_ids) // WIDTH_STEP + 1) * WIDTH_STEP


def _first_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """``text`` up to the earliest of the stop texts, and that one; all of it and None without."""
    hits = [(text.index(candidate), candidate) for candidate in stop if candidate in text]
    position, found = min(hits, default=(len(text), None))
    return text[:position], found


def _may_stop(
    token_ids: Sequence[int], stop: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> bool:
    """Whether the newest token may complete one of the stop texts; decodes the end alone."""
    # What is cut off from its beginning reads otherwise for a character or two.
    number = (needed := max(map(len, stop)) + 8) + 1
    while number < len(token_ids) and len(decode(token_ids[-number:-1])) < needed:
        number *= 2
    end = decode(token_ids[-number:])
    return any(text in end for text in stop)
