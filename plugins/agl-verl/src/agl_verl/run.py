"""One run of ``VERL`` in the algorithm's process: answers verl, publishes the model, notes."""

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError, ConfigError, StoppedError
from agl.types import Dataset
from agl_learning.collect.collector import Collector
from agl_learning.collect.step_metrics import Totals
from agl_learning.reports.report import Report
from agl_learning.reports.run_metrics import RunMetrics
from agl_learning.run.folder import Generation, begin_generation, mark_lost
from agl_models.versions import WHOLE_SOFTMAX, model_served
from agl_records.training_data import TrainedModel
from agl_verl.configuration import check, read
from agl_verl.groups import Groups, Policy
from agl_verl.messages import (
    Answer,
    Backend,
    GroupRequest,
    Message,
    Settle,
    Settled,
    Update,
    Validated,
)
from agl_verl.options import NAME
from agl_verl.preflight import check_micro_batches, num_servers, prepare_ray
from agl_verl.row_building import Limits

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm
    from agl.algorithm.gateway import Gateway, ModelConfig
    from agl_verl.options import Options

logger = logging.getLogger("agl.verl")

PATIENCE_SECONDS = 600.0
"""A step's groups wait for the same runners: only after so long is a silent one worth a line."""
LONG_RESPONSE = 8192
"""Tokens of a row's response, where ``trajectory_max_response_length`` does not say."""
PARTS = {"agl/": "", "val-agl/": "val/"}
"""Beginning of a name by which verl's log tells agl's metrics from its own -> what stands for it in
``metrics.jsonl``, and for hooks and trackers."""
NAMES = {"actor/grad_norm": "grad_norm", "actor/entropy": "entropy"}
"""Name of a metric in verl -> that which it has there for every algorithm; in the same unit, and
over the same tokens. What only verl measures keeps verl's name."""


def verl_config(config: Any, folder: Path, train: Dataset[Any], val: Dataset[Any] | None) -> Any:
    """Verl's configuration with what a run of agl sets in it.

    Raises:
        ConfigError: verl refuses it, or there are too few tasks.
    """
    from hydra.errors import InstantiationException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from agl_verl.tasks import files_of

    with open_dict(config):
        config.data.train_files = files_of(len(train))
        config.data.val_files = files_of(1 if val is None else len(val))
        config.data.custom_cls = {"path": "pkg://agl_verl.tasks", "name": "TaskNumbers"}
        if val is None or len(val) == 0:
            if config.trainer.test_freq > 0 or config.trainer.val_only:
                raise ConfigError(
                    "VERL config: trainer.test_freq and val_only ask for validation, and there are "
                    "no validation tasks; pass Trainer.fit(val_dataset=...)"
                )
            config.trainer.val_before_train = False
        if str(config.trainer.default_local_dir).startswith("checkpoints/"):
            config.trainer.default_local_dir = str(folder / "checkpoints")
    if len(train) < (batch := int(config.data.train_batch_size)):
        raise ConfigError(
            f"VERL: {len(train)} training tasks, and a step takes data.train_batch_size = {batch}. "
            "Give more tasks, or a smaller train_batch_size"
        )
    check_micro_batches(config)
    num_servers(config)  # refuses half a server
    prepare_ray(config)
    try:
        resolved: Any = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
        validate_config(resolved, need_reference_policy(resolved), need_critic(resolved))
    except (
        *(AssertionError, ValueError, TypeError),
        *(OmegaConfBaseException, InstantiationException),
    ) as error:
        raise ConfigError(f"VERL config: verl refuses it: {error}") from error
    return config


@dataclass(eq=False, repr=False)
class Run:
    """From the first question of verl to the last line of the summary."""

    algorithm: "Algorithm"
    """Whose run this is: store, adapter, hooks and budget are its."""
    options: "Options"
    gateway: "Gateway"
    config: Any
    """verl's whole configuration."""
    folder: Path
    """For metrics and summary."""
    train: Dataset[Any]
    val: Dataset[Any] | None

    def __post_init__(self) -> None:
        self._serving = contextlib.AsyncExitStack()
        """Ends what the gateway serves for verl."""
        self._groups: Groups | None = None
        self._start = time.perf_counter()
        self._last_step = self._saved_step = 0
        self._is_asked_to_stop = self._stops = False
        self._generation: Generation | None = None
        self._report = Report(self.algorithm, NAME, self.folder, 0, 0, show_progress=False)

    async def answer(self, message: Message) -> Answer:
        """Answer a question of verl."""
        if isinstance(message, Backend):
            self._groups = await self._open(message)
            return None
        groups = self._groups
        if groups is None:
            raise AlgorithmError("verl asked for rollouts before it served the model")
        if isinstance(message, GroupRequest):
            if self.algorithm.is_budget_spent():
                raise AlgorithmError("the budget of the run is spent")
            return await groups.run(message)
        if isinstance(message, Update):
            rows = [one.copy() for one in groups.weighed(message.advantages)]
            if rows:
                await self.algorithm.tell("on_update_start", step=message.step, rows=rows)
            return Settled({})
        if isinstance(message, Settle):
            metrics = await groups.settle(message)
            await self._step(message, metrics)
            self._stops = self._is_asked_to_stop and not message.is_last
            return Settled(metrics, self._stops)
        metrics = groups.validated()
        await self._validation(message, metrics)
        return Settled(metrics)

    def ask_to_stop(self) -> None:
        """End after the step under way, with a checkpoint; from any thread."""
        logger.warning(
            "asked to stop: the step under way ends first, with a checkpoint. Asked once more, the "
            "run ends at once, and goes on from the checkpoint before"
        )
        self._is_asked_to_stop = True

    def raise_if_stopped(self, error: AlgorithmError | None = None) -> None:
        """Say why verl ended before its last step, or failed, where something stopped it."""
        where = f"after step {self._last_step}; its newest checkpoint is of step"
        where = f"{where} {self._latest_checkpoint()}"
        if error is not None and self.algorithm.is_budget_spent():
            raise StoppedError(f"the budget of the run is spent, {where}") from error
        if error is None and self._stops:
            raise StoppedError(f"as it was asked to, {where}")

    async def end(self) -> dict[str, Any]:
        """Account for the rest, write the summary, and leave the gateway as it was."""
        try:
            if self._groups is not None:
                await self._groups.end()
                await self._tell_saved()
        finally:
            await self._serving.aclose()
        summary: dict[str, Any] = {
            "algorithm": self.options.algorithm,
            "steps": self._last_step,
            "seconds": time.perf_counter() - self._start,
            **self._rewards(),
            **(self._groups.totals.summary() if self._groups is not None else {}),
            "checkpoints": str(self.config.trainer.default_local_dir),
            "run_dir": str(self.folder),
        }
        self._report.summary(summary, self._generation and self._generation.number)
        return summary

    async def _open(self, backend: Backend) -> Groups:
        """Put the gateway before the model, publish it, and be ready for groups."""
        options, rollout = self.options, self.config.actor_rollout_ref.rollout
        store = self.algorithm.get_store()
        # verl takes the policy at these settings, whatever the agent asks for.
        forced = {"train": _sampling(rollout), "val": _sampling(rollout.val_kwargs)}
        entry: ModelConfig = {
            "model_name": backend.model,
            "litellm_params": {
                "model": f"hosted_vllm/{backend.model}",
                "api_base": backend.url,
                **({"api_key": backend.api_key} if backend.api_key else {}),
            },
            "forced_parameters": forced,
            # Seeds cost vLLM time, so they are sent where verl is told to be deterministic.
            "send_seed": bool(rollout.get("full_determinism", False)),
        }
        gateway = self.gateway
        await self._serving.aclose()  # there is something where verl began once more
        await self._serving.enter_async_context(model_served(gateway, entry, store))
        resources = {
            mode: await self._publish(backend.model, sampling["temperature"])
            for mode, sampling in forced.items()
        }
        collector = Collector(
            store,
            gateway,
            self.algorithm.get_adapter(),
            options.rollout_config,
            PATIENCE_SECONDS,
            failures=options.failures,
            model=TrainedModel(name=backend.model, vocabulary_size=backend.vocabulary_size),
            seed=int(rollout.seed),
        )
        generation = await self._begin(backend.step)
        return Groups(
            store=store,
            generation=generation,
            since=self._since(backend.step),
            totals=await Totals.counting(store, generation.run),
            collector=collector,
            train=self.train,
            val=[] if self.val is None else self.val,
            resources=resources,
            policy=self._policy(),
        )

    async def _begin(self, step: int) -> Generation:
        """Count this start; what earlier ones in the folder did after the checkpoint is lost."""
        generation = self._generation = begin_generation(
            self.folder, self.algorithm, algorithm=NAME
        )
        # Where verl begins anew nothing stays, not even a validation at step 0.
        last = (step or -1) if self._is_own() else -1
        store = self.algorithm.get_store()
        await mark_lost(store, generation.run, lambda part: (part.step or 0) > last)
        self._report.go_back(last, True)
        self._last_step = step
        self._saved_step = self._latest_checkpoint()
        return generation

    def _since(self, step: int) -> tuple[int, int] | None:
        """The step of the checkpoint, and which start trained it."""
        for line in RunMetrics.read(self.folder).lines:
            if line["step"] == step and "calls/total" in line:
                return step, int(line["generation"])
        return None

    def _is_own(self) -> bool:
        """Whether the checkpoint that verl takes is of the run in this folder."""
        trainer = self.config.trainer
        return trainer.resume_mode != "resume_path" or (
            Path(trainer.resume_from_path).resolve().parent
            == Path(trainer.default_local_dir).resolve()
        )

    def _rewards(self) -> dict[str, list[Any]]:
        """Of the steps and of the validations, of earlier starts too."""
        lines = RunMetrics.read(self.folder if self._generation else None).lines
        return {
            "rewards": [line.get("reward/mean") for line in lines if "calls/total" in line],
            "val_rewards": [  # that of the last step is in two lines
                *{
                    line["step"]: line.get("val/reward/mean")
                    for line in lines
                    if "val/rollouts/succeeded" in line
                }.items()
            ],
        }

    def _policy(self) -> Policy:
        options, data = self.options, self.config.data
        ours = check(read(options.config))
        answer = int(data.max_response_length)
        longest = max(answer, LONG_RESPONSE) if ours.level == "trajectory" else answer
        return Policy(
            level=ours.level,
            limits=Limits(
                prompt=ours.trajectory_max_prompt_length or int(data.max_prompt_length),
                response=ours.trajectory_max_response_length or longest,
            ),
            timeout_seconds=options.group_timeout_seconds,
            estimator=str(self.config.algorithm.adv_estimator).removeprefix("agl_"),
            dimensions=_compares_dimensions(self.config.algorithm),
            waits=self.config.trainer.v1.trainer_mode == "sync",
        )

    async def _publish(self, model: str, temperature: float) -> str:
        sampling = {
            "temperature": temperature,
            "max_tokens": int(self.config.data.max_response_length),
        }
        llm = self.gateway.as_resource(model=model, sampling_parameters=sampling)
        algorithm = self.algorithm
        resources = {**(algorithm.get_initial_resources() or {}), self.options.resource_name: llm}
        return (await algorithm.publish_resources(resources)).resources_id

    async def _step(self, settle: Settle, metrics: dict[str, float]) -> None:
        self._last_step = settle.step
        await self._report.step(settle.step, self._line(settle, metrics))
        await self._tell_saved()
        logger.info(
            "step %d: reward %s, %d calls trained",
            settle.step,
            _shown(metrics.get("agl/reward/mean")),
            metrics.get("agl/calls/trained", 0),
        )

    async def _validation(self, validated: Validated, metrics: dict[str, float]) -> None:
        await self._report.evaluation(validated.step, self._line(validated, metrics))
        shown = _shown(metrics.get("val-agl/reward/mean"))
        logger.info("after step %d: held-out reward %s", validated.step, shown)

    def _line(self, ended: Settle | Validated, metrics: dict[str, float]) -> dict[str, Any]:
        """What is written of a step or an evaluation; the summary is made of it."""
        assert self._generation is not None
        about = {"step": ended.step, "generation": self._generation.number}
        return {**about, **by_our_names({**ended.metrics, **metrics})}

    def _latest_checkpoint(self) -> int:
        """The step of the checkpoint that verl wrote last, 0 where there is none here."""
        path = Path(self.config.trainer.default_local_dir) / "latest_checkpointed_iteration.txt"
        try:
            return int(path.read_text("utf-8"))
        except (OSError, ValueError):
            return 0  # none yet, or on another machine

    async def _tell_saved(self) -> None:
        """Tell the hooks of a checkpoint that verl has written meanwhile."""
        step = self._latest_checkpoint()
        if step != self._saved_step:
            self._saved_step = step
            path = Path(self.config.trainer.default_local_dir) / f"global_step_{step}"
            await self.algorithm.tell("on_checkpoint_saved", step=step, path=path)


def by_our_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics of verl's log by the names that they have elsewhere."""

    def ours(name: str) -> str:
        for part, instead in PARTS.items():
            if name.startswith(part):
                return instead + name.removeprefix(part)
        return NAMES.get(name, name)

    return {ours(name): value for name, value in metrics.items()}


def _shown(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.3f}"


def _compares_dimensions(algorithm: Any) -> bool:
    filters = algorithm.get("filter_groups", None) or {}
    filtered = bool(filters.get("enable")) and filters.get("metric") != "reward"
    return filtered or bool(algorithm.get("gdpo_reward_keys", None))


def _sampling(section: Any) -> dict[str, Any]:
    """Forced sampling parameters: those that verl's section names, and no others."""
    top_k = int(section.top_k)
    return {
        **WHOLE_SOFTMAX,
        "temperature": float(section.temperature),
        "top_p": float(section.top_p),
        **({"top_k": top_k} if top_k > 0 else {}),
    }
