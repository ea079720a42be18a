"""Gradient steps: advantages and rows in, changed weights and their measurements out."""

import copy
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from agl.errors import ConfigError
from agl_torch.batch import (
    constrained,
    mask_forced_tokens,
    microbatches,
    sampler_logprobs,
    token_logprobs,
)
from agl_torch.critic import value_loss
from agl_torch.loss import (
    MAX_LOG_RATIO,
    Gain,
    Tokens,
    Weight,
    check_gain,
    next_coefficient,
    policy_loss,
    row_weights,
)
from agl_torch.memory import return_free_memory
from agl_torch.models import autocast, checkpoint_layers
from agl_torch.options import LearnerOptions, Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from agl_records.training_data import TrainingRow
    from agl_torch.critic import Critic


NO_WEIGHT = Weight(0.0, 0.0)


@dataclass
class Sample:
    """A row with what the loss needs beside its tokens; lists have one value per sampled token."""

    row: "TrainingRow"
    advantages: list[float]
    returns: list[float] = field(default_factory=list[float])
    """What a critic is to expect; empty where there is none, and so are ``values``."""
    values: list[float] = field(default_factory=list[float])
    """What it expected when the advantages were made."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """See ``agl_learning.Weighed``; the same for all samples of a step."""
    is_current: bool = True
    """Whether the weights that sampled it are those that are trained."""
    weight: Weight = NO_WEIGHT
    """Set by the update, as what follows."""
    old_N: "Tensor | None" = None
    """Log-probabilities that ratios are taken to; see ``sampling_correction``."""
    correction_N: Any = None
    """How often each token counts."""
    gap: float = 0.0
    """Its part of ``logprob_gap``."""
    reference_N: "Tensor | None" = None

    @property
    def is_masked(self) -> bool:
        """Whether nothing of it was trained, as the trainer finds it far likelier."""
        return not self.correction_N.any()


@dataclass(frozen=True)
class Objective:
    """What sets one algorithm's gradients apart from another's."""

    gain: Callable[[Tokens], Gain]
    mean: str = "grpo"
    constant: int | None = None
    penalises_loss: bool = True
    """Whether the penalty on the divergence is in the loss; else it is in the rewards."""
    critic_learning_rate: float = 0.0
    value_clip: float | None = None
    value_coefficient: float = 1.0


class Learner:
    """A model, its optimiser, the frozen start if a divergence from it is penalised, and a critic.

    Args:
        model: Changed in place; its weights are float32, as small steps get lost in 16 bits. Kept
            in evaluation mode, so that log-probabilities are those of sampling: dropout, where a
            model has any, stays off.
        seed: Of the order of minibatches.
        reference: The frozen start; None copies the model, if it is needed at all.
        critic: With it, samples have returns and values.
        base: Fingerprint of the weights under an adapter.
    """

    def __init__(
        self,
        model: Any,
        options: LearnerOptions,
        objective: Objective,
        seed: int = 0,
        reference: Any = None,
        critic: "Critic | None" = None,
        base: str = "",
    ) -> None:
        narrow = {str(p.dtype) for p in trained(model) if p.dtype != torch.float32}
        if narrow:
            raise ConfigError(
                f"weights in {', '.join(sorted(narrow))} cannot be trained: small steps get "
                "lost in them. Give the model in float32 (model.float()); dtype='bfloat16' then "
                "computes in 16 bits"
            )
        self.model = model
        self.options = options
        with self._checkpointing(model):  # where it cannot be, it is told at once
            pass
        self.objective = objective
        self.critic = critic
        self.base = base
        self.random = random.Random(seed)
        self.kl_coefficient = options.kl.coefficient
        """As it is by now."""
        self._parts = {"model": trained(model), "critic": trained(critic) if critic else []}
        """Gradients are shortened in each by itself: errors of a critic leave the policy's."""
        rates = {"model": options.learning_rate, "critic": objective.critic_learning_rate}
        groups = [
            {"params": some, "lr": rates[part], "weight_decay": decay}
            for part, parameters in self._parts.items()
            for is_matrix, decay in ((True, options.optimizer.weight_decay), (False, 0.0))
            if (some := [one for one in parameters if (one.dim() > 1) is is_matrix])
        ]
        self._rates = [group["lr"] for group in groups]
        betas = (options.optimizer.beta1, options.optimizer.beta2)
        made: Any = partial(torch.optim.AdamW, fused=True)  # one pass over each weight
        if options.optimizer.type == "adamw_8bit":
            made = import_module("torchao.optim").AdamW8bit
        self.optimizer = made(groups, betas=betas)
        self.reference = reference
        if options.kl.coefficient and reference is None:
            self.reference = copy.deepcopy(model)
        if self.reference is not None:
            self.reference.requires_grad_(False).eval()

    def update(self, samples: Sequence[Sample], factor: float = 1.0) -> dict[str, float]:
        """Take ``epochs`` passes of gradient steps over the samples.

        Args:
            samples: At least one. Their weights are set here.

        Returns:
            ``loss/total``, ``loss/policy``, ``entropy``, ``kl``, ``clip_fraction`` and
            ``grad_norm`` as means over the gradient steps, and ``loss/value`` with a critic;
            ``logprob_gap``, ``masked_fraction``, the mean ``sampling_weight`` (of
            ``sampling_correction``) and ``explained_variance`` as they were before the first one;
            ``loss_tokens``, ``gradient_steps``; ``learning_rate`` and ``kl_coefficient`` where
            they change.
        """
        weights = row_weights(
            [sample.row.rollout_id for sample in samples],
            [sample.row.num_sampled for sample in samples],
            self.objective.mean,
            self.objective.constant,
            samples[0].left_out,
        )
        for sample, weight in zip(samples, weights, strict=True):
            sample.weight, sample.old_N = weight, None
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            is_number = isinstance(group["lr"], float)  # torchao has a tensor
            group["lr"] = rate * factor if is_number else torch.tensor(rate * factor)
        size = self.options.minibatch_rows or len(samples)
        if self.options.epochs > 1 or size < len(samples):
            # A single gradient step finds them on its way.
            with torch.no_grad():
                for chunk in self._chunks(samples):
                    scores = self._score(self.model, [sample.row for sample in chunk])
                    self._set_old_logprobs(chunk, scores.logprobs_N)
        steps: list[dict[str, float]] = []
        for _ in range(self.options.epochs):
            order = list(samples)
            self.random.shuffle(order)
            for start in range(0, len(order), size):
                steps.append(self._step(order[start : start + size], len(steps)))
        means = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        means["gradient_steps"] *= len(steps)
        before = {"logprob_gap": sum(sample.gap for sample in samples)}
        counted = [one.weight.step_share * float(one.correction_N.mean()) for one in samples]
        masked = [one.weight.step_share for one in samples if one.is_masked]
        before |= {"sampling_weight": sum(counted), "masked_fraction": float(sum(masked))}
        if self.objective.mean == "dapo":
            before["loss_tokens"] = 1 / samples[0].weight.token
        if self.critic is not None:
            before["explained_variance"] = _explained(samples)
        if self.options.schedule != Schedule():
            before["learning_rate"] = self._rates[0] * factor
        if self.options.kl.target is not None:
            before["kl_coefficient"] = self.kl_coefficient
            self.kl_coefficient = next_coefficient(
                self.kl_coefficient, means["kl"], self.options.kl.target
            )
        return {**means, **before}

    def release(self) -> None:
        """Keep nothing of an update but what it taught."""
        self.optimizer.zero_grad(set_to_none=True)
        return_free_memory()

    @torch.no_grad()
    def expected(self, rows: "Sequence[TrainingRow]") -> list[list[float]]:
        """Per row and sampled token, what the critic expects before it."""
        assert self.critic is not None
        values: dict[int, list[float]] = {}
        for chunk in microbatches(
            rows, self.critic.trunk or self.model, self.options.memory.microbatch_tokens
        ):
            hidden_N_H = None
            if self.critic.trunk is None:
                hidden_N_H = self._score(self.model, chunk).hidden_N_H
            with autocast(self.options.dtype, self.model.device):
                values_N = self.critic.values(chunk, hidden_N_H)
            parts = values_N.split([row.num_sampled for row in chunk])
            values |= {id(row): part.tolist() for row, part in zip(chunk, parts, strict=True)}
        return [values[id(row)] for row in rows]

    @torch.no_grad()
    def _set_old_logprobs(self, chunk: Sequence[Sample], own_N: "Tensor") -> None:
        """Set what the update compares with; ``own_N`` is what the model says before it."""
        counts = [sample.row.num_sampled for sample in chunk]
        sampler_N = torch.tensor([one for sample in chunk for one in sampler_logprobs(sample.row)])
        sampler_N = sampler_N.to(own_N.device)
        # Under a form, probabilities are among what it allowed: no mismatch can be seen there, and
        # a token that it made likelier is compared with what was recorded.
        constrained_N = torch.tensor([one for sample in chunk for one in constrained(sample.row)])
        constrained_N = constrained_N.to(own_N.device)
        base_N = torch.where(constrained_N, torch.maximum(sampler_N, own_N), own_N)
        mismatch_N = (own_N - sampler_N) * ~constrained_N
        free = (~constrained_N).split(counts)
        parts = (part.split(counts) for part in (sampler_N, base_N, mismatch_N))
        for sample, free_N, then_N, now_N, gap_N in zip(chunk, free, *parts, strict=True):
            sample.gap = (
                float(gap_N.abs().sum() / free_N.sum().clamp(min=1)) * sample.weight.step_share
            )
            sample.old_N = then_N if self.options.sampling_correction.type == "none" else now_N
            sample.correction_N = self._correction(gap_N, sample.is_current)
        if self.reference is not None:
            rows = [sample.row for sample in chunk]
            reference_N = self._score(self.reference, rows).logprobs_N
            for sample, part_N in zip(chunk, reference_N.split(counts), strict=True):
                sample.reference_N = part_N

    def _correction(self, gap_N: "Tensor", is_current: bool) -> "Tensor":
        """See ``sampling_correction``; of one row."""
        kind, cap = self.options.sampling_correction.type, self.options.sampling_correction.cap
        if kind == "none":
            return torch.ones_like(gap_N)
        if kind == "token_truncate" or not is_current:
            return gap_N.clamp(max=math.log(cap)).exp()
        total = gap_N.sum().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # never 0, but where it is masked
        return ((total <= math.log(cap)) * total.exp()).expand_as(gap_N)

    def _step(self, minibatch: Sequence[Sample], done: int) -> dict[str, float]:
        part = sum(sample.weight.step_share for sample in minibatch)
        whole = sum(sample.weight.token * sample.row.num_sampled for sample in minibatch)
        names = ("loss/total", "loss/policy", "entropy", "kl", "clip_fraction")
        names += ("loss/value",) if self.critic else ()
        sums: dict[str, float] = dict.fromkeys(names, 0.0)
        num_trained = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for chunk in self._chunks(minibatch):
            rows = [sample.row for sample in chunk]
            with self._checkpointing(self.model):
                scores = self._score(self.model, rows)
            if chunk[0].old_N is None:
                self._set_old_logprobs(chunk, scores.logprobs_N)
            tokens = self._per_token(chunk, scores.logprobs_N)
            gain = self.objective.gain(tokens)
            check_gain(gain, len(tokens.advantages_N))
            correction_N = torch.cat([sample.correction_N for sample in chunk])
            shares = [one.weight.token / whole for one in chunk for _ in range(one.row.num_sampled)]
            weights_N = torch.tensor(shares).to(self.model.device)
            trained_N = weights_N * (correction_N > 0)  # nothing of a row that is masked
            reference = [sample.reference_N for sample in chunk if sample.reference_N is not None]
            loss = policy_loss(
                gain,
                scores.logprobs_N,
                trained_N,
                scale=whole / part,
                entropy_N=scores.entropy_N,
                entropy_bonus=self.options.entropy_bonus,
                reference_logprobs_N=torch.cat(reference) if reference else None,
                kl_coefficient=self.kl_coefficient if self.objective.penalises_loss else 0.0,
                old_logprobs_N=tokens.old_logprobs_N,
                correction_N=correction_N,
            )
            total = loss.total
            if self.critic is not None:
                of_critic = self._value_loss(chunk, scores.hidden_N_H, weights_N)
                total = total + self.objective.value_coefficient * of_critic
                sums["loss/value"] += of_critic.item()
            total.backward()
            sums["loss/total"] += total.item()
            sums["loss/policy"] += loss.policy.item()
            sums["entropy"] += loss.entropy.item()
            sums["kl"] += loss.kl.item()
            sums["clip_fraction"] += loss.clip_fraction.item() * trained_N.sum().item()
            num_trained += trained_N.sum().item()
        norms = [
            torch.nn.utils.clip_grad_norm_(parameters, self.options.optimizer.max_grad_norm)
            for parameters in self._parts.values()
        ]
        if not all(math.isfinite(norm) for norm in norms):
            self.optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(
                f"the gradient of step {done + 1} of an update is not finite (norm "
                f"{norms[0].item()}); that step was not taken, and the {done} before it were. "
                "Lower learning_rate, or look at the rewards, and at gain if it is your own"
            )
        has_trained = num_trained > 0 or self.critic is not None
        if has_trained:  # else momentum would move the weights
            self.optimizer.step()
        for name in ("entropy", "kl", "clip_fraction"):  # means over what is trained
            sums[name] /= num_trained or 1.0
        return {**sums, "grad_norm": norms[0].item(), "gradient_steps": float(has_trained)}

    def _value_loss(
        self, chunk: Sequence[Sample], hidden_N_H: "Tensor", weights_N: "Tensor"
    ) -> "Tensor":
        assert self.critic is not None
        device, trunk = self.model.device, self.critic.trunk
        with self._checkpointing(*filter(None, [trunk])), autocast(self.options.dtype, device):
            values_N = self.critic.values([sample.row for sample in chunk], hidden_N_H)
        old = [value for sample in chunk for value in sample.values]
        returns = [value for sample in chunk for value in sample.returns]
        return value_loss(
            values_N,
            torch.tensor(old, device=device),
            torch.tensor(returns, device=device),
            weights_N,
            self.objective.value_clip,
        )

    def _checkpointing(self, *models: Any) -> AbstractContextManager[None]:
        return (
            checkpoint_layers(*models)
            if self.options.memory.gradient_checkpointing
            else nullcontext()
        )

    def _score(self, model: Any, rows: "list[TrainingRow]") -> Any:
        with autocast(self.options.dtype, model.device):
            has_gradient = bool(self.options.entropy_bonus)
            temperature = self.options.temperature
            scores = token_logprobs(model, rows, temperature, entropy_gradient=has_gradient)
        return mask_forced_tokens(scores, rows)

    def _chunks(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        by_row = {id(sample.row): sample for sample in samples}
        rows = [sample.row for sample in samples]
        chunks = microbatches(rows, self.model, self.options.memory.microbatch_tokens)
        return [[by_row[id(row)] for row in chunk] for chunk in chunks]

    def _per_token(self, samples: Sequence[Sample], logprobs_N: "Tensor") -> Tokens:
        old_N = torch.cat([sample.old_N for sample in samples if sample.old_N is not None])
        advantages_N = logprobs_N.new_tensor([one for each in samples for one in each.advantages])
        return Tokens(logprobs_N, old_N, advantages_N, [each.row.num_sampled for each in samples])


def trained(model: Any) -> "list[Tensor]":
    """Parameters that change: all of them, or those of an adapter."""
    return [one for one in model.parameters() if one.requires_grad]


def _explained(samples: Sequence[Sample]) -> float:
    """Which part of the returns' variance the critic had foreseen."""
    returns = torch.tensor([one for sample in samples for one in sample.returns])
    values = torch.tensor([one for sample in samples for one in sample.values])
    spread = returns.var(correction=0)
    return float(1 - (returns - values).var(correction=0) / spread if spread > 0 else spread)
