"""verl's V1 trainers, and what agl adds: advantages per rollout, the account of every step.

Nothing of verl's train step is rewritten. ``trainer_class`` puts two mixins before the trainer
that ``trainer.v1.trainer_mode`` names.
"""

import logging
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, ConfigError
from agl_verl.messages import Settle, Update, Validated
from agl_verl.rows import RowNotes
from agl_verl.trainer_mixin import RolloutAdvantages

if TYPE_CHECKING:
    from agl_verl.manager import AglManager


class Accounted:
    """Mixin: the algorithm hears what a step trains, and may end verl; its metrics join verl's."""

    agent_loop_manager: "AglManager"
    global_steps: int
    total_training_steps: int

    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        # verl polls for groups, and refills those that failed: here it learns that none will come.
        self.agent_loop_manager.check()
        return super()._add_prompts_to_generate(num_prompts)  # pyright: ignore

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)  # pyright: ignore
        self.agent_loop_manager.tell(Update(self.global_steps, advantages_of(batch)))
        return batch

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: Any, global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(  # pyright: ignore
            batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch
        )
        is_last = global_steps >= self.total_training_steps
        settle = Settle(global_steps, advantages_of(batch), _numbers(metrics), is_last)
        settled = self.agent_loop_manager.tell(settle)
        metrics.update(settled.metrics)
        if settled.stops:
            self._end_with(global_steps)

    def _end_with(self, step: int) -> None:
        """End verl's loop after a step, with a checkpoint of it."""
        trainer: Any = self
        save_freq = trainer.config.trainer.save_freq
        if save_freq <= 0 or step % save_freq:
            trainer._save_checkpoint()
        self.total_training_steps = step

    def _validate(self) -> dict[str, float]:
        try:
            metrics = super()._validate()  # pyright: ignore
        except RuntimeError as error:
            # verl's message is about its batch; ours is about the agents.
            why = self.agent_loop_manager.validation_failure
            if why:
                raise AlgorithmError(f"no validation task could be measured: {why}") from error
            raise
        validated = Validated(self.global_steps, _numbers(metrics))
        metrics.update(self.agent_loop_manager.tell(validated).metrics)
        return metrics


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """What of verl's metrics is a number, as plain floats."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def advantages_of(batch: Any) -> dict[str, list[float | None]]:
    """Per row of a batch that is no padding, the advantage of each of its calls."""
    import transfer_queue as tq

    keys = [
        key
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False)
    ]
    data = tq.kv_batch_get(
        keys=keys,
        partition_id=batch.partition_id,
        select_fields=["advantages", "response_mask", "agl_row"],
    )
    notes = [RowNotes.model_validate_json(str(note)) for note in data.pop("agl_row").tolist()]
    advantages: Any = data["advantages"].unbind(0)
    masks: Any = data["response_mask"].unbind(0)
    return {
        key: [
            _mean(values[call.start : call.end], mask[call.start : call.end]) for call in note.calls
        ]
        for key, note, values, mask in zip(keys, notes, advantages, masks, strict=True)
    }


def _mean(values: Any, mask: Any) -> float | None:
    """Over tokens that are trained; None when none is."""
    kept = mask.bool()
    return float(values[kept].mean()) if bool(kept.any()) else None


def trainer_class(config: Any, given: Any = None) -> type:
    """The class that trains.

    Args:
        given: In the place of the one that ``trainer.v1.trainer_mode`` names: a subclass of verl's
            ``PPOTrainer``, or its path.

    Raises:
        ConfigError: It is no trainer of verl's, or there is no such mode.
    """
    from verl.trainer.ppo.v1 import PPOTrainer, get_trainer_cls, trainer_separate_async

    # verl 0.9.1 calls logger.info(message, flush=True) there, an error.
    trainer_separate_async.logger.setLevel(logging.WARNING)
    try:
        base = get_trainer_cls(config.trainer.v1.trainer_mode)
    except ValueError as error:
        raise ConfigError(f"trainer.v1.trainer_mode: {error}") from error
    if given is not None:
        base = load_class(given, PPOTrainer, "trainer_cls")
    mixins = [mixin for mixin in (Accounted, RolloutAdvantages) if not issubclass(base, mixin)]
    return type(f"Agl{base.__name__}", (*mixins, base), {}) if mixins else base


def load_class(given: Any, base: type, option: str) -> type:
    """A class that was given as such or as a path.

    Raises:
        ConfigError: It is not a subclass of ``base``.
    """
    from agl.plugins.build import import_attribute

    found: Any = import_attribute(given, f"VERL: {option}") if isinstance(given, str) else given
    if not isinstance(found, type) or not issubclass(found, base):
        raise ConfigError(
            f"VERL: {option}: expected a subclass of {base.__module__}.{base.__qualname__}; "
            f"got {found!r}"
        )
    return found
