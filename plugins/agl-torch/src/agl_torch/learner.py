"""Gradient steps: advantages and rows in, changed weights and their measurements out."""

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from agl.errors import ConfigError
from agl_torch.batch import chunks_by_tokens, score_rows
from agl_torch.loss import policy_loss, row_weights
from agl_torch.models import computing_in
from agl_torch.options import LearnerOptions

if TYPE_CHECKING:
    from torch import Tensor

    from agl.types import TrainingRow


@dataclass
class Sample:
    """A row with what the loss needs beside its tokens."""

    row: "TrainingRow"
    advantages: list[float]
    """One per call of the row."""
    weight: float = 0.0
    """Of each of its sampled tokens."""
    reference_N: "Tensor | None" = None


class Learner:
    """A model, its optimiser, and the frozen start if a divergence from it is penalised.

    Args:
        model: Changed in place; its weights are float32, as small steps get lost in 16 bits. Kept
            in evaluation mode, so that log-probabilities are those of sampling: dropout, where a
            model has any, stays off.
        options: See ``LearnerOptions``.
        pad_token_id: Fills up short rows.
        seed: Of the order of minibatches.
        reference: The frozen start; None copies the model, if it is needed at all.
    """

    def __init__(
        self,
        model: Any,
        options: LearnerOptions,
        pad_token_id: int = 0,
        seed: int = 0,
        reference: Any = None,
    ) -> None:
        narrow = {str(p.dtype) for p in model.parameters() if p.dtype != torch.float32}
        if narrow:
            raise ConfigError(
                f"GRPO: weights in {', '.join(sorted(narrow))} cannot be trained: small steps get "
                "lost in them. Give the model in float32 (model.float()); dtype='bfloat16' then "
                "computes in 16 bits"
            )
        self.model = model
        self.options = options
        self.random = random.Random(seed)
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=options.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=options.weight_decay,
        )
        self.reference = reference
        if options.kl_coefficient and reference is None:
            self.reference = copy.deepcopy(model)
        if self.reference is not None:
            self.reference.requires_grad_(False).eval()
        self._pad_token_id = pad_token_id

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Take ``epochs`` passes of gradient steps over the samples.

        Args:
            samples: At least one. Their weights are set here: every rollout counts the same.

        Returns:
            ``loss/total``, ``loss/policy``, ``entropy``, ``kl``, ``clip_fraction`` and
            ``grad_norm`` as means over the gradient steps, ``logprob_gap`` as it was before the
            first one, and ``gradient_steps``.
        """
        weights = row_weights(
            [sample.row.rollout_id for sample in samples],
            [sample.row.num_sampled for sample in samples],
        )
        for sample, weight in zip(samples, weights, strict=True):
            sample.weight = weight
        gap = self._score_before(samples)
        steps: list[dict[str, float]] = []
        for _ in range(self.options.epochs):
            order = list(samples)
            self.random.shuffle(order)
            size = self.options.minibatch_rows or len(order)
            for start in range(0, len(order), size):
                steps.append(self._step(order[start : start + size]))
        means = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        return {**means, "logprob_gap": gap, "gradient_steps": float(len(steps))}

    def _score_before(self, samples: Sequence[Sample]) -> float:
        """Mean distance between recorded and present log-probabilities; sets the reference's."""
        gap = 0.0
        with torch.no_grad():
            for chunk in self._chunks(samples):
                rows = [sample.row for sample in chunk]
                scores = self._score(self.model, rows)
                old_N, _, weights_N = self._per_token(chunk)
                gap += float(((scores.logprobs_N - old_N).abs() * weights_N).sum())
                if self.reference is not None:
                    reference_N = self._score(self.reference, rows).logprobs_N
                    counts = [row.num_sampled for row in rows]
                    for sample, part_N in zip(chunk, reference_N.split(counts), strict=True):
                        sample.reference_N = part_N
        return gap

    def _step(self, minibatch: Sequence[Sample]) -> dict[str, float]:
        share = sum(sample.weight * sample.row.num_sampled for sample in minibatch)
        sums = dict.fromkeys(("loss/total", "loss/policy", "entropy", "kl", "clip_fraction"), 0.0)
        self.optimizer.zero_grad(set_to_none=True)
        for chunk in self._chunks(minibatch):
            scores = self._score(self.model, [sample.row for sample in chunk])
            old_N, advantages_N, weights_N = self._per_token(chunk)
            reference = [sample.reference_N for sample in chunk if sample.reference_N is not None]
            loss = policy_loss(
                scores.logprobs_N,
                old_N,
                advantages_N,
                weights_N / share,
                clip_low=self.options.clip_low,
                clip_high=self.options.clip_high,
                ratio_cap=self.options.ratio_cap,
                entropy_N=scores.entropy_N,
                entropy_bonus=self.options.entropy_bonus,
                reference_logprobs_N=torch.cat(reference) if reference else None,
                kl_coefficient=self.options.kl_coefficient,
            )
            loss.total.backward()
            part = float(weights_N.sum()) / share
            sums["loss/total"] += loss.total.item()
            sums["loss/policy"] += loss.policy.item()
            sums["entropy"] += loss.entropy.item()
            sums["kl"] += loss.kl.item()
            sums["clip_fraction"] += loss.clip_fraction.item() * part
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm)
        if not math.isfinite(norm.item()):
            raise FloatingPointError(
                f"the gradient is not finite (norm {norm.item()}); lower learning_rate, or train "
                "in float32"
            )
        self.optimizer.step()
        return {**sums, "grad_norm": norm.item()}

    def _score(self, model: Any, rows: "list[TrainingRow]") -> Any:
        with computing_in(self.options.dtype, model.device):
            return score_rows(
                model,
                rows,
                self.options.temperature,
                self._pad_token_id,
                entropy_gradient=bool(self.options.entropy_bonus),
            )

    def _chunks(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        by_row = {id(sample.row): sample for sample in samples}
        chunks = chunks_by_tokens(
            [sample.row for sample in samples], self.options.microbatch_tokens
        )
        return [[by_row[id(row)] for row in chunk] for chunk in chunks]

    def _per_token(self, samples: Sequence[Sample]) -> tuple["Tensor", "Tensor", "Tensor"]:
        """Old log-probabilities, advantages and weights of the sampled tokens, row after row."""
        old: list[float] = []
        advantages: list[float] = []
        weights: list[float] = []
        for sample in samples:
            ranges = zip(sample.row.call_ranges, sample.advantages, strict=True)
            for (start, end), advantage in ranges:
                old.extend(sample.row.logprobs[start:end])
                advantages.extend([advantage] * (end - start))
                weights.extend([sample.weight] * (end - start))
        device = self.model.device
        return (
            torch.tensor(old, device=device),
            torch.tensor(advantages, device=device),
            torch.tensor(weights, device=device),
        )
