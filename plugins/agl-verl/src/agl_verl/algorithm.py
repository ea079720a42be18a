"""``VERL``: the algorithm that trains with verl.

This process has store, gateway and adapter. verl trains in processes of Ray, and asks here for
groups of rollouts (``agl_verl.link``). Agents' calls go through the gateway to a token backend in
verl's process, and from there to verl's rollout servers.
"""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.algorithm.base import Algorithm
from agl.algorithm.infrastructure import InfrastructureFailures, check_infrastructure_failures
from agl.errors import ConfigError, install_line
from agl.plugins.build import check_credit
from agl.types import AttemptStatus, Dataset, RolloutConfig
from agl.utils.checks import absolute, check_name, check_numbers
from agl_learning.generations import cancel_dead_starts, hold_run
from agl_verl.configuration import check, compose, read, with_algorithm
from agl_verl.options import Options

if TYPE_CHECKING:
    from agl.store.base import LightningStore

logger = logging.getLogger("agl.verl")


class VERL(Algorithm):
    """Reinforcement learning with verl 0.9: FSDP or Megatron, vLLM or SGLang, one GPU or a cluster.

    Needs a dataset of tasks and an agent that returns (or emits) a reward; the agent gets the model
    as the resource ``resource_name``. The configuration is verl's own, as a dict; see
    ``agl_verl.configuration`` for the keys that are refused, and where defaults differ.

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
        unresponsive_seconds: An attempt whose runner is silent for longer counts as lost; None
            waits for the limit above.
        group_timeout_seconds: Limit of all rollouts of one task together, waiting for runners
            included; what has not ended then is cancelled and counts as failed. None has no limit.
        max_attempts: How often a rollout is tried.
        retry_on: After which ends of an attempt it is tried again; by default when its runner was
            lost. Errors of the agent are final.
        failed_rollouts: ``keep`` trains the siblings of failed rollouts, ``drop`` drops their
            group. In both cases failed rollouts are no zeros: they are in no mean.
        max_failed_groups: So many groups in a row without anything to train end the run; None
            takes two steps' worth.
        infrastructure_failures: What becomes of a rollout that succeeded although servers or the
            network failed a model call of it: ``exclude`` it, ``drop_group`` (all rollouts of its
            task), or ``keep`` it.
        run_dir: Folder for ``metrics.jsonl``, ``summary.json`` and, unless
            ``trainer.default_local_dir`` says otherwise, ``checkpoints``; None makes one under
            ``agl-runs`` named after the time. With a folder that has checkpoints, and verl's
            ``trainer.resume_mode`` at its default, training goes on from the newest. In a folder
            that a run was in, what that one did after the checkpoint (or, where verl takes none,
            all of it) counts no more: its metrics go, its accounts are marked as lost, and rollouts
            that it left behind are cancelled.

    Raises:
        ConfigError: A key is unknown or would have no effect, or a value is wrong.
    """

    default_adapter = "rows"
    needs_gateway = True

    def __init__(
        self,
        config: dict[str, Any] | str,
        trainer_cls: Any = None,
        daemon_cls: Any = None,
        *,
        algorithm: str | None = None,
        credit: str | dict[str, Any] | None = None,
        resource_name: str = "main_llm",
        rollout_timeout_seconds: float | None = 1800.0,
        unresponsive_seconds: float | None = 60.0,
        group_timeout_seconds: float | None = 7200.0,
        max_attempts: int = 2,
        retry_on: list[str] | None = None,
        failed_rollouts: str = "keep",
        max_failed_groups: int | None = None,
        infrastructure_failures: InfrastructureFailures = "exclude",
        run_dir: str | None = None,
    ) -> None:
        self.config = read(config)
        self.ours = check(self.config)
        self.algorithm = with_algorithm(self.config, algorithm)
        if failed_rollouts not in ("keep", "drop"):
            raise ConfigError(
                f"VERL: failed_rollouts is {failed_rollouts!r}; expected 'keep' or 'drop'"
            )
        check_numbers(
            "VERL",
            above=0,
            optional=True,
            rollout_timeout_seconds=rollout_timeout_seconds,
            unresponsive_seconds=unresponsive_seconds,
            group_timeout_seconds=group_timeout_seconds,
        )
        check_numbers("VERL", whole=True, above=0, max_attempts=max_attempts)
        check_numbers(
            "VERL", whole=True, above=0, optional=True, max_failed_groups=max_failed_groups
        )
        check_name("VERL", resource_name=resource_name)
        check_credit("VERL", credit)
        retry: list[AttemptStatus] = list(retry_on or ["unresponsive"])  # pyright: ignore
        ends = ("failed", "timeout", "unresponsive")
        for status in retry:
            if status not in ends:
                raise ConfigError(
                    f"VERL: retry_on has {status!r}; an attempt that did not succeed ends as one "
                    f"of {', '.join(ends)}"
                )
        check_infrastructure_failures(infrastructure_failures, "VERL")
        self.infrastructure_failures: InfrastructureFailures = infrastructure_failures
        self.rollout_config = RolloutConfig(
            timeout_seconds=rollout_timeout_seconds,
            unresponsive_seconds=unresponsive_seconds,
            max_attempts=max_attempts,
            retry_condition=retry,
        )
        self.group_timeout_seconds = group_timeout_seconds
        self.failed_rollouts = failed_rollouts
        self.options = Options(max_failed_groups, trainer_cls, daemon_cls)
        self.resource_name = resource_name
        self.run_dir = absolute(run_dir)
        if credit is not None:
            self.adapter_options = {"credit": credit}
        self.summary: dict[str, Any] | None = None
        """What ``summary.json`` holds, once ``run`` has ended."""

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Cancel what a killed part of the run left in the store, before runners claim it."""
        path = (self.config.get("trainer") or {}).get("resume_from_path")
        homes = [Path(path).parent.parent] if isinstance(path, str) else []
        if self.run_dir is not None:
            await cancel_dead_starts(store, self.run_dir, *homes)

    async def run(
        self,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Train to the end.

        Raises:
            ConfigError: No tasks, no gateway, a folder that another process uses, or verl or the
                cluster cannot do it.
            AlgorithmError: verl failed, or nothing to train on came any more.
            LedgerError: A model call stands in no bin or in several.
        """
        if train_dataset is None or len(train_dataset) == 0:
            raise ConfigError("VERL: there are no training tasks; pass train_dataset")
        gateway = self.get_llm_proxy()
        if gateway is None:
            raise ConfigError(
                "VERL needs a gateway that records model calls. Run: "
                f"{install_line('agl-gateway')}, or pass Trainer(llm_proxy=...)"
            )
        from agl_verl.backend import MODEL_NAME
        from agl_verl.launch import launch
        from agl_verl.preflight import check_environment
        from agl_verl.run import Run, verl_config

        gateway.check_free(MODEL_NAME)
        check_environment()
        folder = self._folder()
        config = verl_config(compose(self.config), folder, train_dataset, val_dataset)
        with hold_run(folder):
            run = Run(self, gateway, config, folder, train_dataset, val_dataset)
            try:
                await launch(config, self.options, run.answer)
            finally:
                self.summary = await run.end()

    def _folder(self) -> Path:
        """Absolute: verl's processes have other working folders."""
        named = f"agl-runs/{time.strftime('verl-%Y%m%d-%H%M%S')}"
        return Path(self.run_dir or named).resolve()
