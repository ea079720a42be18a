"""``RolloutAdvantages``: makes a verl V1 trainer work on rollouts where verl works on rows.

verl's train step is not rewritten. Its advantage step calls, by ``algorithm.adv_estimator``, a
registered function in the midst of its own work (KL penalty in rewards and rollout correction come
before, writing the results back after). Ours are registered as ``agl_<name>``; what they need
beyond the arguments verl has for them (which row is whose, values, credits) lies ready in a context
variable while the step runs. After it the weights of the loss are written beside the advantages,
and workers get ``losses.actor_loss`` and ``critic_loss`` through verl's own ``set_loss_fn``.

Options that are read here, all in verl's own configuration:

- ``algorithm.adv_estimator``: must be ``agl_<name>``, the name one of
  ``agl_learning.ESTIMATORS``
- ``algorithm.gamma``, ``lam``, ``norm_adv_by_std_in_grpo``, ``gdpo_reward_keys``,
  ``gdpo_reward_weights``
- ``actor_rollout_ref.rollout.custom.agl_loss_mean``: one of ``losses.MEANS``; ``rollout`` if absent
- ``actor_rollout_ref.actor.loss_scale_factor``: the ``constant`` of that mean; without it
  ``data.max_response_length``
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, ConfigError
from agl_verl.rows import RowNotes

if TYPE_CHECKING:
    from torch import Tensor

    from agl_learning.advantages.trajectories import Trajectories

PREFIX = "agl_"


@dataclass(frozen=True)
class RowContext:
    """What an estimator needs of the batch and verl does not pass on. Tensors are ``(B, L)``."""

    rollouts: "Trajectories"
    scores_BL: "Tensor"
    """``rm_scores``."""
    values_BL: "Tensor | None" = None
    old_logprobs_BL: "Tensor | None" = None
    sum_pi_squared_BL: "Tensor | None" = None


_CONTEXT: ContextVar[RowContext | None] = ContextVar("agl_verl_rows", default=None)


@contextmanager
def row_context(context: RowContext) -> Iterator[None]:
    """The batch that estimators called within are about."""
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def register_estimators() -> None:
    """Make ``agl_<name>`` known to verl, in this process; again does nothing."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

    from agl_learning.advantages.estimators import ESTIMATORS

    for name in ESTIMATORS:
        if PREFIX + name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(PREFIX + name)(partial(estimate, name))


def estimate(
    name: str, token_level_rewards: "Tensor", response_mask: "Tensor", config: Any, **_: Any
) -> "tuple[Tensor, Tensor]":
    """An estimator in the form that verl calls.

    Args:
        name: One of ``agl_learning.ESTIMATORS``.
        token_level_rewards: ``(B, L)``, with KL penalties if verl is told to subtract them.
        response_mask: ``(B, L)``; less than the trajectories' where tokens were rejected.

    Returns:
        Advantages and returns, ``(B, L)``.

    Raises:
        AlgorithmError: Called by another trainer than ours.
    """
    import torch

    from agl_learning.advantages.comparisons import Inputs
    from agl_learning.advantages.estimators import ESTIMATORS

    context = _CONTEXT.get()
    if context is None:
        raise AlgorithmError(
            f"advantage estimator '{PREFIX}{name}' works on rollouts, and this trainer does not "
            "tell which rows are whose. Use a trainer of agl-verl, or one that has "
            "agl_verl.trainer_mixin.RolloutAdvantages"
        )
    rollouts, scores_BL = context.rollouts, context.scores_BL.float()

    def packed(values_BL: "Tensor | None") -> "Tensor | None":
        return None if values_BL is None else rollouts.pack(values_BL)

    inputs = Inputs(
        rollouts,
        outcomes_N=scores_BL.sum(-1)[[rows[-1] for rows in rollouts.rows]],
        penalties_NT=rollouts.pack(token_level_rewards.float() - scores_BL),
        gamma=config.get("gamma", 1.0),
        lam=config.get("lam", 1.0),
        normalise_std=config.get("norm_adv_by_std_in_grpo", True),
        reward_keys=config.get("gdpo_reward_keys", None) or (),
        reward_weights=config.get("gdpo_reward_weights", None),
        values_NT=packed(context.values_BL),
        old_logprobs_NT=packed(context.old_logprobs_BL),
        sum_pi_squared_NT=packed(context.sum_pi_squared_BL),
    )
    with torch.no_grad():
        result = ESTIMATORS[name](inputs)
    advantages_NT, returns_NT = result if isinstance(result, tuple) else (result, result)
    return rollouts.unpack(advantages_NT) * response_mask, rollouts.unpack(returns_NT)


def loss_mean(config: Any) -> str:
    """The option ``agl_loss_mean`` of a trainer's configuration."""
    from agl_verl.losses import MEANS

    custom = config.actor_rollout_ref.rollout.get("custom", None) or {}
    mean = custom.get("agl_loss_mean", "rollout")
    if mean not in MEANS:
        raise ConfigError(
            f"actor_rollout_ref.rollout.custom.agl_loss_mean: {mean!r}; expected one of {MEANS}"
        )
    return mean


def check(config: Any) -> None:
    """Refuse what would be ignored, or done by rows."""
    from agl_learning.advantages.estimators import ESTIMATORS
    from agl_verl.algorithms import REFUSED

    known = [PREFIX + name for name in ESTIMATORS]
    name, algorithm = config.algorithm.adv_estimator, config.algorithm
    if name not in known:
        raise ConfigError(
            f"algorithm.adv_estimator: {name!r} works on rows; expected one of {known}"
        )
    if algorithm.get("use_pf_ppo", False):
        raise ConfigError("algorithm.use_pf_ppo resamples rows, not rollouts; turn it off")
    if name == "agl_gae" and not config.critic.get("enable", False):
        raise ConfigError("algorithm.adv_estimator 'agl_gae' needs critic.enable=True")
    if name == "agl_gdpo" and not algorithm.get("gdpo_reward_keys", None):
        raise ConfigError(
            "algorithm.adv_estimator 'agl_gdpo': set algorithm.gdpo_reward_keys, the names of the "
            "reward's dimensions"
        )
    correction = algorithm.get("rollout_correction", None) or {}
    bypass = bool(correction.get("bypass_mode", False))
    asked = bool(correction.get("rollout_is", None) or correction.get("rollout_rs", None))
    actor = config.actor_rollout_ref.actor
    policy_loss = actor.get("policy_loss", None) or {}
    mode = policy_loss.get("loss_mode", "vanilla")
    if bypass and asked and mode != "bypass_mode":
        raise ConfigError(
            "algorithm.rollout_correction: with bypass_mode, rollout_is and rollout_rs have no "
            "effect unless actor.policy_loss.loss_mode is 'bypass_mode'; set it, and the same "
            "options in actor.policy_loss.rollout_correction"
        )
    if name == "agl_optimal_token_baseline" and (bypass or correction.get("rollout_is", None)):
        raise ConfigError(
            "algorithm.adv_estimator 'agl_optimal_token_baseline' takes no rollout_is and no "
            "bypass_mode: verl computes neither in time for it"
        )
    if loss_mean(config) != "verl":
        if mode in REFUSED:
            raise ConfigError(
                f"actor.policy_loss.loss_mode {mode!r} is refused: {REFUSED[mode]}. Take another, "
                "or agl_loss_mean=verl"
            )
        of_loss = policy_loss.get("rollout_correction", None) or {}
        if mode == "bypass_mode" and of_loss.get("rollout_is_batch_normalize", False):
            raise ConfigError(
                "policy_loss.rollout_correction.rollout_is_batch_normalize: in bypass_mode weights "
                "would be normalised over a micro-batch. Turn it off, or take agl_loss_mean=verl"
            )
        if (config.get("distillation", None) or {}).get("enabled", False):
            raise ConfigError(
                "distillation has a loss of its own, which agl_loss_mean would replace; set "
                "actor_rollout_ref.rollout.custom.agl_loss_mean=verl"
            )


class RolloutAdvantages:
    """Mixin for verl's V1 trainers; put it before them: ``class T(RolloutAdvantages, Sync)``."""

    config: Any
    actor_rollout_wg: Any
    critic_wg: Any
    use_critic: bool

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        register_estimators()
        check(config)
        super().__init__(config, *args, **kwargs)  # pyright: ignore[reportCallIssue]

    def on_init_end(self) -> None:
        """Give the workers our losses."""
        from verl.utils.config import omega_conf_to_dataclass

        from agl_verl.losses import actor_loss, critic_loss

        super().on_init_end()  # pyright: ignore[reportAttributeAccessIssue]
        if loss_mean(self.config) == "verl":
            return
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(partial(actor_loss, config=actor))
        if self.use_critic:
            critic = omega_conf_to_dataclass(self.config.critic)
            self.critic_wg.set_loss_fn(partial(critic_loss, config=critic))

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        of_super = super()._compute_old_log_prob  # pyright: ignore[reportAttributeAccessIssue]
        if self.config.algorithm.adv_estimator != "agl_optimal_token_baseline":
            return of_super(batch, metrics)
        # Workers write every output of theirs to TransferQueue, this one if asked.
        batch.extra_info["calculate_sum_pi_squared"] = True
        batch = of_super(batch, metrics)
        batch.extra_info["calculate_sum_pi_squared"] = False
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        import transfer_queue as tq

        data = tq.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=[
                "response_mask", "loss_mask", "rm_scores", "values", "old_log_probs",
                "sum_pi_squared", "agl_row",
            ],
        )  # fmt: skip
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        nested_mask = data["response_mask"]
        context = read_context(batch.keys, padding, data)
        with row_context(context):
            batch = super()._compute_advantage(batch, metrics)  # pyright: ignore
        mean = loss_mean(self.config)
        if mean != "verl":
            from tensordict import TensorDict
            from verl.workers.utils.padding import response_to_nested

            from agl_verl.losses import FIELD, loss_weights

            given = self.config.actor_rollout_ref.actor.get("loss_scale_factor", None)
            constant = float(given or self.config.data.max_response_length)
            weights_BL = loss_weights(context.rollouts, mean, constant)
            fields = TensorDict(
                {FIELD: response_to_nested(weights_BL, nested_mask)}, batch_size=len(batch)
            )
            batch = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch


def trajectories(
    keys: Sequence[str],
    padding: Sequence[bool],
    mask_BL: "Tensor",
    notes: Sequence[str] | None = None,
) -> "Trajectories":
    """Sort the rows of a batch into rollouts.

    Args:
        keys: Per row ``{uid}_{session}_{index}``.
        padding: Per row, whether verl added it to fill up the batch.
        mask_BL: 1 on sampled tokens.
        notes: Per row the field ``agl_row``.

    Raises:
        AlgorithmError: A key is not of this form, a row is there twice, no row is a rollout's, or
            a note does not fit its row.
    """
    from agl_learning.advantages.trajectories import Call, lay_out

    members: dict[tuple[str, str], dict[int, int]] = {}
    for number, (key, is_padding) in enumerate(zip(keys, padding, strict=True)):
        if not is_padding:
            task, session, index = _parts(key)
            rows = members.setdefault((task, session), {})
            if index in rows:
                raise AlgorithmError(f"row {key!r} is in the batch twice: {rows[index]}, {number}")
            rows[index] = number
    if not members:
        raise AlgorithmError(f"the batch has {len(keys)} rows, and all of them are padding")
    rows = [[found[index] for index in sorted(found)] for found in members.values()]
    read = None if notes is None else [RowNotes.model_validate_json(note) for note in notes]
    has_calls = read is not None and any(read[row].calls for numbers in rows for row in numbers)
    return lay_out(
        rows,
        mask_BL,
        names=[f"{task}_{session}" for task, session in members],
        tasks=[task for task, _ in members],
        calls=[[Call(one.start, one.end, one.credit) for one in note.calls] for note in read]
        if read is not None and has_calls
        else None,
        rewards=[read[numbers[-1]].rewards for numbers in rows] if read else None,
    )


def _parts(key: str) -> tuple[str, str, int]:
    task, session, index = [*key.rsplit("_", 2), "", ""][:3]
    if not (task and session and index.isdigit()):
        raise AlgorithmError(
            f"row {key!r}: cannot tell its rollout; expected a key '{{uid}}_{{session}}_{{index}}'"
        )
    return task, session, int(index)


def read_context(keys: Sequence[str], padding: Sequence[bool], data: Any) -> RowContext:
    """The context of a batch as TransferQueue has it: fields nested, those that exist."""
    from verl.workers.utils.padding import response_from_nested

    nested_mask = data["response_mask"]
    if "sum_pi_squared" in data:
        data["sum_pi_squared"] = response_from_nested(data.pop("sum_pi_squared"), nested_mask)
    notes = [str(note) for note in data.pop("agl_row").tolist()] if "agl_row" in data else None
    padded = data.to_padded_tensor()
    mask_BL = padded["loss_mask"] if "loss_mask" in padded else padded["response_mask"]
    return RowContext(
        trajectories(keys, padding, mask_BL, notes),
        scores_BL=padded["rm_scores"],
        values_BL=padded.get("values", None),
        old_logprobs_BL=padded.get("old_log_probs", None),
        sum_pi_squared_BL=padded.get("sum_pi_squared", None),
    )
