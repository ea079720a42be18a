"""The options of ``VERL``."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

from agl.types import RolloutConfig
from agl_records.credit import check_credit
from agl_runs.failures import Failures
from agl_runs.options import AboveZero, Name, Named, absolute, check_options
from agl_verl.configuration import check, read, with_algorithm

NAME = "verl"
"""Of the algorithm: in configurations, and in the folder of a run."""


@dataclass(frozen=True, eq=False, repr=False)
class Options(Named):
    """What ``VERL`` was given; ``config``, ``algorithm`` and ``run_dir`` as they were understood.

    Args:
        config: verl's configuration: nested dicts, or the path of a YAML file. The section
            ``agentlightning`` (or ``agl``) has ``trace_aggregator``: ``level`` (``trajectory``,
            rows by exact prefix, or ``transition``, a row per call),
            ``trajectory_max_prompt_length`` and ``trajectory_max_response_length`` in tokens.
        trainer_cls: In the place of the trainer that ``trainer.v1.trainer_mode`` names: a subclass
            of verl's ``PPOTrainer``, or its path.
        daemon_cls: In the place of ``agl_verl.manager.AglManager``: a subclass of it, or its path.
        algorithm: ``grpo``, ``ppo``, ``rloo``, ``reinforce++`` and others, see
            ``agl_verl.algorithms``; None takes ``algorithm.adv_estimator``, or ``grpo``.
        credit: The credit rule, which says which call gets how much of which reward: its name, or
            a dict of ``type`` and options. None leaves it to the adapter, whose default is
            ``final``.
        resource_name: Name of the resource that the agent gets.
        rollout_timeout_seconds: Limit of one attempt; None has no limit.
        unresponsive_seconds: A rollout whose runner is silent for longer is tried once more; None
            waits for the limit above.
        group_timeout_seconds: Limit of all rollouts of one task together, waiting for runners
            included; what has not ended then is cancelled and counts as failed. None has no limit.
        failures: What to do with rollouts that failed, by what failed them: ``exclude`` them,
            ``drop_group`` (their siblings, too), ``retry``, ``keep`` with the reward that they
            gave, or ``penalise``. See docs/explanation/failures.md.
        run_dir: Folder for ``metrics.jsonl``, ``summary.json`` and, unless
            ``trainer.default_local_dir`` says otherwise, ``checkpoints``; None takes that of the
            run (``run_dir`` of the file or the trainer), and where it has none a new one under
            ``agl-runs``. With a folder that has checkpoints, and verl's ``trainer.resume_mode`` at
            its default, training goes on from the newest. In a folder that a run was in, what that
            one did after the checkpoint (or, where verl takes none, all of it) counts no more: its
            metrics go, its accounts are marked as lost, and rollouts that it left behind are
            cancelled. The folder of another algorithm's run is refused.

    Raises:
        ConfigError: A key is unknown or would have no effect, or a value is wrong.
    """

    safe_options = frozenset({"unresponsive_seconds", "failures.stop_after"})

    config: dict[str, Any] | str
    trainer_cls: Any = None
    daemon_cls: Any = None
    _: KW_ONLY
    algorithm: str | None = None
    credit: Annotated[str | dict[str, Any] | None, check_credit] = None
    resource_name: Name = "main_llm"
    rollout_timeout_seconds: AboveZero | None = 1800.0
    unresponsive_seconds: AboveZero | None = 60.0
    group_timeout_seconds: AboveZero | None = 7200.0
    failures: Failures = Failures()
    run_dir: str | None = None

    def __post_init__(self) -> None:
        check_options("VERL", self)
        config = read(self.config)
        check(config)
        object.__setattr__(self, "algorithm", with_algorithm(config, self.algorithm))
        object.__setattr__(self, "config", config)
        object.__setattr__(self, "run_dir", absolute(self.run_dir))

    @property
    def rollout_config(self) -> RolloutConfig:
        """Limits and retries of each rollout."""
        return RolloutConfig(
            timeout_seconds=self.rollout_timeout_seconds,
            unresponsive_seconds=self.unresponsive_seconds,
            max_attempts=2,
            retry_condition=["unresponsive"],
        )
