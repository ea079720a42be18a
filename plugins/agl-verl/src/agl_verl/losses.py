"""Losses for verl's workers in which a token has the weight that its rollout gives it.

For a mini-batch of ``M`` rows (padding included) on ``D`` data-parallel ranks, the actor's loss is

    L = D / M * sum over sampled tokens t of w_t * (p_t - entropy_coeff * H_t + kl_loss_coef * k_t)

with ``p_t`` what verl's policy loss (``policy_loss.loss_mode``) has for the token, importance
weights and clipping included, and the critic's is the same with its clipped squared error. The
weights, made once for the whole batch of ``B`` rows with ``N`` rollouts, add up to ``B``:

    rollout    B / (N * sampled tokens of the rollout)   every rollout weighs the same
    token      B / (sampled tokens of the batch)         every token weighs the same (DAPO)
    constant   B / (N * constant)                        tokens are summed up (Dr. GRPO)

Exactness: verl sums the gradients of micro-batches and takes the mean over ranks, which D undoes;
so a mini-batch's gradient does not depend on how it is cut into micro-batches and ranks. With one
mini-batch per step (M = B) it is that of the whole batch; with several, rollouts are spread over
them, and the mean of their gradients (at the same parameters) is. Rows of padding have weight 0.
What rejection sampling removes counts as zero: it does not make the rest weigh more.

Where we differ from verl: its modes of ``loss_agg_mode`` weigh rows or tokens, count rows of
padding in the denominator, and the loss modes ``geo_mean`` and ``sapo``, in verl 0.9.0 ``gspo``
too, ignore them (the first even the number of micro-batches). Here these get the weights above as
all others do. ``clip_cov`` and ``kl_cov`` choose tokens by comparing those of one micro-batch, so
their gradient depends on how the batch is cut; they are refused, as is normalising importance
weights in ``bypass_mode``.

Source of ``token`` and ``constant``: DAPO (arXiv:2503.14476), Dr. GRPO (arXiv:2503.20783).
"""

from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from agl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.advantages.trajectories import Trajectories

FIELD = "agl_weights"
"""Name of the weights in the batch, per response token."""
MEANS = ("rollout", "token", "constant", "verl")
"""How tokens are weighed; ``verl`` leaves it to verl's own losses."""


def loss_weights(
    rollouts: "Trajectories", mean: str = "rollout", constant: float | None = None
) -> "Tensor":
    """Weight per response token, ``(B, L)``; 0 on what the model did not sample.

    The other arguments are those of ``agl_learning.advantages.comparisons.token_weights``.
    """
    from agl_learning.advantages.comparisons import token_weights

    weights_NT = token_weights(rollouts.mask_NT, mean, constant)
    return rollouts.unpack((weights_NT * rollouts.shape[0]).float())


def actor_loss(
    config: Any, model_output: Any, data: Any, dp_group: Any = None
) -> "tuple[Tensor, dict[str, Any]]":
    """In the place of ``verl.workers.utils.losses.ppo_loss``, with the same arguments.

    Args:
        config: verl's ``ActorConfig``; ``loss_agg_mode`` is not used, see the module.
        model_output: ``log_probs``, and ``entropy`` where it was asked for.
        data: A micro-batch with the field ``agl_weights``.
        dp_group: Not used; verl reduces gradients.

    Returns:
        Loss of the micro-batch, to be summed, and metrics.
    """
    from verl.trainer.ppo.core_algos import get_policy_loss_fn, kl_penalty
    from verl.utils.metric import AggregationType, Metric
    from verl.workers.utils.padding import no_padding_2_padding

    logprobs_BL = no_padding_2_padding(model_output["log_probs"], data)
    entropy_BL = model_output.get("entropy", None)
    if entropy_BL is not None:
        entropy_BL = no_padding_2_padding(entropy_BL, data)
    scale = _scale(data)
    config.global_batch_info.update(
        dp_size=data["dp_size"],
        batch_num_tokens=data["batch_num_tokens"],
        global_batch_size=data["global_batch_size"],
        loss_scale_factor=config.loss_scale_factor,
    )
    fields = ["response_mask", "old_log_probs", "advantages", FIELD]
    fields += [name for name in ("rollout_is_weights", "ref_log_prob") if name in data]
    padded = data.select(*fields).to_padded_tensor()
    mask_BL = padded["response_mask"].bool()
    weights_BL = padded[FIELD].to(logprobs_BL.dtype) * mask_BL
    mode = config.policy_loss.get("loss_mode", "vanilla")

    advantages_BL, factors_BL = padded["advantages"], weights_BL * _unit(mode, mask_BL, scale)
    if mode == "bypass_mode":
        # It makes its own importance weights and takes none, but is linear in advantages.
        advantages_BL, factors_BL = advantages_BL * factors_BL, None
    elif "rollout_is_weights" in padded:
        factors_BL = factors_BL * padded["rollout_is_weights"]
    policy_loss: Any = get_policy_loss_fn(mode)
    loss, of_policy = policy_loss(
        old_log_prob=padded["old_log_probs"],
        log_prob=logprobs_BL,
        advantages=advantages_BL,
        response_mask=mask_BL,
        loss_agg_mode="seq-mean-token-sum",
        config=config,
        rollout_is_weights=factors_BL,
    )
    metrics = Metric.from_dict(of_policy, aggregation=AggregationType.MEAN)
    metrics["actor/pg_loss"] = Metric(value=loss.detach(), aggregation=AggregationType.SUM)
    if entropy_BL is not None:
        entropy = scale * (weights_BL * entropy_BL).sum()
        loss = loss - config.entropy_coeff * entropy
        metrics["actor/entropy_loss"] = Metric(
            value=entropy.detach(), aggregation=AggregationType.SUM
        )
    if config.use_kl_loss:
        penalty: Any = kl_penalty
        gap_BL = penalty(logprobs_BL, padded["ref_log_prob"], config.kl_loss_type)
        kl = scale * (weights_BL * gap_BL).sum()
        loss = loss + config.kl_loss_coef * kl
        metrics["kl_loss"] = Metric(value=kl.detach(), aggregation=AggregationType.SUM)
        metrics["kl_coef"] = config.kl_loss_coef
    return loss, metrics


def critic_loss(
    config: Any, model_output: Any, data: Any, dp_group: Any = None
) -> "tuple[Tensor, dict[str, Any]]":
    """In the place of ``verl.workers.utils.losses.value_loss``, with the same arguments."""
    from verl.utils.metric import AggregationType, Metric
    from verl.utils.torch_functional import masked_mean
    from verl.workers.utils.padding import no_padding_2_padding

    now_BL = no_padding_2_padding(model_output["values"], data)
    scale = _scale(data)
    padded = data.select("values", "returns", "response_mask", FIELD).to_padded_tensor()
    mask_BL = padded["response_mask"].bool()
    weights_BL = padded[FIELD].to(now_BL.dtype) * mask_BL
    before_BL, limit = padded["values"], config.cliprange_value
    held_BL = now_BL.clamp(before_BL - limit, before_BL + limit)
    plain_BL = (now_BL - padded["returns"]) ** 2
    clipped_BL = (held_BL - padded["returns"]) ** 2
    loss = 0.5 * scale * (weights_BL * plain_BL.maximum(clipped_BL)).sum()
    share = masked_mean((clipped_BL > plain_BL).float(), mask_BL)
    return loss, {
        "critic/vf_loss": Metric(value=loss.detach(), aggregation=AggregationType.SUM),
        "critic/vf_clipfrac": share.detach().item(),
        "critic/vpred_mean": masked_mean(now_BL, mask_BL).detach().item(),
    }


def _scale(data: Any) -> float:
    """D / M of the module's formula."""
    if FIELD not in data:
        raise ConfigError(
            f"the batch has no field {FIELD!r}: this loss needs a trainer with "
            "agl_verl.trainer_mixin.RolloutAdvantages"
        )
    if data["global_batch_size"] is None:
        raise ConfigError("the batch has no global_batch_size, the rows of a mini-batch")
    return data["dp_size"] / data["global_batch_size"]


def _unit(mode: str, mask_BL: "Tensor", scale: float) -> "Tensor | float":
    """What makes a loss mode that aggregates in its own way a sum over tokens, times D / M."""
    if mode not in (*_row_means(), "geo_mean"):
        return 1.0
    tokens_B1 = mask_BL.sum(-1, keepdim=True)
    if mode == "geo_mean":
        return tokens_B1 * (len(mask_BL) * scale)
    return tokens_B1


@lru_cache
def _row_means() -> tuple[str, ...]:
    """Loss modes that take the mean of each row's tokens whatever ``loss_agg_mode`` says."""
    return ("sapo", "gspo") if Version(version("verl")) < Version("0.9.1") else ("sapo",)
