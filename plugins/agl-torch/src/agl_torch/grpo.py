"""``GRPO``: reinforcement learning of a language model on one machine.

Each step runs P tasks G times through the agent, gives every rollout its reward's distance from the
mean of its group, and takes gradient steps on the tokens that the model sampled. The mathematics
is in ``loss``; here is the loop around it.

Metrics, one JSON object per line of ``metrics.jsonl``; training steps have:

- ``step``; ``reward/mean``, ``reward/std`` over rollouts with a reward (failed ones have none)
- ``rollouts/succeeded``, ``rollouts/failed``; ``rows``: trained token sequences
- ``calls/total``, ``calls/trained``, ``calls/excluded/<reason>``: total is the sum of the others
- ``loss/total``, ``loss/policy``, ``entropy``, ``kl``, ``clip_fraction``, ``grad_norm``,
  ``gradient_steps``: see ``loss`` and ``learner``
- ``logprob_gap``: mean distance between the log-probabilities recorded at sampling and those of
  the model before the update, nats; above 0.05 the agent samples otherwise than GRPO assumes
- ``version``: of the weights that the step made; ``version_lag``: how far, on average, the weights
  that sampled were behind the ones that were then changed
- ``time/step``, ``time/rollouts``, ``time/update``: seconds

Evaluations have ``step``, ``val/reward/mean``, ``val/rollouts/...``, ``val/calls/total``,
``val/time``.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.algorithm import Algorithm
from agl.errors import AlgorithmError, ConfigError
from agl.types import Dataset, ExclusionReason, TrainingRow

if TYPE_CHECKING:
    from agl.gateway import Gateway
    from agl_torch.collect import Collected, Collector
    from agl_torch.learner import Learner, Sample
    from agl_torch.server import InferenceServer

logger = logging.getLogger("agl.torch")

MODEL_NAME = "policy"
"""What the gateway calls the model that is trained."""
GAP_LIMIT = 0.05


@dataclass
class _Run:
    """What exists while a run goes on."""

    learner: "Learner"
    server: "InferenceServer"
    collector: "Collector"
    tokenizer: Any
    train_resources_id: str
    val_resources_id: str
    folder: Path
    totals: Counter[str] = field(default_factory=Counter[str])
    """Rollouts and calls of the whole run, evaluations too."""
    rewards: list[float | None] = field(default_factory=list[float | None])
    """Mean per step."""
    val_rewards: list[tuple[int, float | None]] = field(
        default_factory=list[tuple[int, float | None]]
    )
    """(step, mean) per evaluation."""
    idle_steps: int = 0
    """Steps without a gradient, in a row."""
    gap_warned: bool = False


class GRPO(Algorithm):
    """Group-relative policy optimisation (arXiv:2402.03300) in plain PyTorch.

    The model is served on an OpenAI-compatible address by this process and trained in place; the
    agent reaches it through the gateway as the resource ``resource_name``. Use it with a dataset
    of tasks and an agent that returns (or emits) a reward.

    Args:
        model: A folder or Hugging Face name, a ``transformers`` model, or a function that builds
            one. With the strategy ``cs`` give a function rather than a model: runners are forked
            before it is called.
        tokenizer: Likewise, with a chat template; None takes it from where the model comes.
        steps: Training steps in all.
        groups_per_step: P, how many tasks a step has.
        group_size: G, how often each of them runs.
        epochs: Passes over a step's rows.
        minibatch_rows: Rows per gradient step; None takes all of them at once.
        microbatch_tokens: Tokens, padding included, per forward pass; gradients add up. None takes
            everything at once.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        clip_low: Ratios of probabilities count down to ``1 - clip_low``.
        clip_high: Ratios count up to ``1 + clip_high``.
        normalise_std: Divide advantages by the standard deviation of the group's rewards.
        entropy_bonus: Reward for undecided tokens, per nat; keeps the model exploring.
        kl_coefficient: Penalty on the divergence from the start; 0 keeps no copy of the start.
        max_grad_norm: Longer gradients are shortened.
        temperature: At which rollouts are sampled; the agent must use it (it is in the resource).
        max_tokens: Of one answer; None leaves it to the agent.
        max_model_tokens: Of prompt and answer together; None takes the model's limit.
        seed: Of tasks' order, minibatches and sampling. Which rollout meets which draw depends on
            the network, so runs of one seed are alike and not equal.
        eval_every: Evaluate on the validation tasks after so many steps; before the first and
            after the last step in any case. None: only these two.
        eval_temperature: Of evaluations; 0 takes the most probable token.
        eval_copies: How often each validation task runs.
        target_reward: End when the mean reward of three steps in a row has reached it.
        max_idle_steps: End after so many steps in a row in which nothing could be trained.
        run_dir: Folder for ``metrics.jsonl``, ``summary.json`` and ``checkpoints``; None makes one
            under ``agl-runs`` named after the time.
        checkpoint_every: Save after so many steps; after the last step in any case.
        resume_from: A checkpoint, or a run's folder (then its newest): weights, optimiser, random
            states and step come from there.
        resource_name: Name of the resource that the agent gets.
        rollout_timeout_seconds: Limit of one attempt; None has no limit.
        device: For example ``cuda:0``; None takes a GPU if there is one.
        dtype: In which a model is loaded from a folder or name.
        torch_threads: Threads of one torch operation; None leaves it to torch. For a tiny model 1
            is fastest.
        max_batch_size: Answers sampled at once.
        show_progress: A bar on standard error, or log lines where that is no terminal.
    """

    default_adapter = "rows"
    needs_gateway = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        steps: int = 100,
        groups_per_step: int = 8,
        group_size: int = 8,
        epochs: int = 1,
        minibatch_rows: int | None = None,
        microbatch_tokens: int | None = 32768,
        learning_rate: float = 1e-6,
        weight_decay: float = 0.0,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        normalise_std: bool = True,
        entropy_bonus: float = 0.0,
        kl_coefficient: float = 0.0,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        max_model_tokens: int | None = None,
        seed: int = 0,
        eval_every: int | None = None,
        eval_temperature: float = 0.0,
        eval_copies: int = 1,
        target_reward: float | None = None,
        max_idle_steps: int = 10,
        run_dir: str | None = None,
        checkpoint_every: int | None = None,
        resume_from: str | None = None,
        resource_name: str = "main_llm",
        rollout_timeout_seconds: float | None = 300.0,
        device: str | None = None,
        dtype: str = "float32",
        torch_threads: int | None = None,
        max_batch_size: int = 64,
        show_progress: bool = True,
    ) -> None:
        at_least = {
            "steps": (steps, 1),
            "groups_per_step": (groups_per_step, 1),
            "group_size": (group_size, 2),
            "epochs": (epochs, 1),
            "minibatch_rows": (minibatch_rows, 1),
            "microbatch_tokens": (microbatch_tokens, 1),
            "learning_rate": (learning_rate, 0),
            "clip_low": (clip_low, 0),
            "clip_high": (clip_high, 0),
            "kl_coefficient": (kl_coefficient, 0),
            "max_tokens": (max_tokens, 1),
            "eval_every": (eval_every, 1),
            "eval_temperature": (eval_temperature, 0),
            "eval_copies": (eval_copies, 1),
            "max_idle_steps": (max_idle_steps, 1),
            "checkpoint_every": (checkpoint_every, 1),
            "torch_threads": (torch_threads, 1),
            "max_batch_size": (max_batch_size, 1),
        }
        for name, (value, least) in at_least.items():
            if value is not None and value < least:
                raise ConfigError(f"GRPO: {name} must be at least {least}; got {value!r}")
        for name, value in {"temperature": temperature, "max_grad_norm": max_grad_norm}.items():
            if value <= 0:
                raise ConfigError(f"GRPO: {name} must be above 0; got {value!r}")
        self.model, self.tokenizer = model, tokenizer
        self.steps, self.groups_per_step, self.group_size = steps, groups_per_step, group_size
        self.epochs, self.minibatch_rows = epochs, minibatch_rows
        self.microbatch_tokens = microbatch_tokens
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.clip_low, self.clip_high = clip_low, clip_high
        self.normalise_std, self.entropy_bonus = normalise_std, entropy_bonus
        self.kl_coefficient, self.max_grad_norm = kl_coefficient, max_grad_norm
        self.temperature, self.max_tokens = temperature, max_tokens
        self.max_model_tokens, self.seed = max_model_tokens, seed
        self.eval_every, self.eval_temperature = eval_every, eval_temperature
        self.eval_copies, self.target_reward = eval_copies, target_reward
        self.max_idle_steps, self.run_dir = max_idle_steps, run_dir
        self.checkpoint_every, self.resume_from = checkpoint_every, resume_from
        self.resource_name = resource_name
        self.rollout_timeout_seconds = rollout_timeout_seconds
        self.device, self.dtype, self.torch_threads = device, dtype, torch_threads
        self.max_batch_size, self.show_progress = max_batch_size, show_progress
        self.summary: dict[str, Any] | None = None
        """What ``summary.json`` holds, once ``run`` has ended."""
        self._run: _Run | None = None

    async def run(
        self,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Train to the end.

        Raises:
            ConfigError: No tasks, no gateway, or a model that cannot be loaded.
            AlgorithmError: For ``max_idle_steps`` steps nothing could be trained; the message says
                why.
            LedgerError: A model call stands in no bin or in several.
        """
        if train_dataset is None or len(train_dataset) == 0:
            raise ConfigError("GRPO: there are no training tasks; pass train_dataset")
        from agl_torch.report import Report
        from agl_torch.tasks import TaskOrder

        start = time.perf_counter()
        tasks = TaskOrder(len(train_dataset), self.seed)
        async with self._started(tasks) as (run, done):
            with Report(run.folder, self.steps, done, self.show_progress) as report:
                await self._evaluate_on(val_dataset, done, report)
                checkpoint = None
                for step in range(done + 1, self.steps + 1):
                    batch = [train_dataset[index] for index in tasks.take(self.groups_per_step)]
                    report.step(step, await self._step(step, batch))
                    last = step == self.steps or self._is_over()
                    if last or (self.eval_every and step % self.eval_every == 0):
                        await self._evaluate_on(val_dataset, step, report)
                    if last or (self.checkpoint_every and step % self.checkpoint_every == 0):
                        checkpoint = self._save(step, tasks)
                    if last:
                        break
                seconds = time.perf_counter() - start
                self.summary = self._summarise(checkpoint, seconds)
                report.summary(self.summary)

    async def evaluate(self, dataset: Dataset[Any]) -> "Collected":
        """Run tasks in mode ``val`` at ``eval_temperature``, ``eval_copies`` times each.

        Their calls are excluded from training as ``not_trained_mode``. Only while ``run`` runs,
        for subclasses and hooks.

        Raises:
            AlgorithmError: The algorithm is not running.
        """
        run = self._running()
        collected = await run.collector.collect(
            [dataset[index] for index in range(len(dataset))],
            self.eval_copies,
            "val",
            run.val_resources_id,
            {"algorithm": "grpo", "version": run.server.version},
        )
        for one in collected.ended:
            for row in one.rows:
                collected.ledger.exclude_row(row, "not_trained_mode", "its rollout is a validation")
        collected.ledger.check()
        self._add_up(collected)
        return collected

    # --- beginning and end

    @contextlib.asynccontextmanager
    async def _started(self, tasks: Any) -> AsyncGenerator[tuple[_Run, int]]:
        """Model, server, gateway and resources; everything is stopped at the end."""
        gateway = self.get_llm_proxy()
        if gateway is None:
            raise ConfigError(
                "GRPO needs a gateway that records model calls. Run: pip install agl-gateway, or "
                "pass Trainer(llm_proxy=...)"
            )
        import torch

        from agl_torch.checkpoint import find_checkpoint, restore
        from agl_torch.collect import Collector
        from agl_torch.learner import Learner
        from agl_torch.models import load_model, load_tokenizer
        from agl_torch.server import InferenceServer

        if self.torch_threads is not None:
            torch.set_num_threads(self.torch_threads)
        torch.manual_seed(self.seed)
        checkpoint = find_checkpoint(self.resume_from) if self.resume_from else None
        model = load_model(checkpoint or self.model, self.device, self.dtype)
        tokenizer = load_tokenizer(checkpoint or self.tokenizer, checkpoint or self.model)
        folder = self._folder(checkpoint)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        learner = Learner(
            model, self._learner_options(), pad, self.seed, self._reference(folder, checkpoint)
        )
        server = InferenceServer(
            model,
            tokenizer,
            model_name=MODEL_NAME,
            max_model_tokens=self.max_model_tokens,
            max_batch_size=self.max_batch_size,
            seed=self.seed,
        )
        done, totals = 0, Counter[str]()
        if checkpoint is not None:
            progress = restore(checkpoint, learner, server.sampler.random)
            done, totals = progress.step, Counter(progress.totals)
            server.weights.version = progress.version
            tasks.restore(progress.tasks)
            if done >= self.steps:
                raise ConfigError(
                    f"GRPO: the checkpoint {str(checkpoint)!r} is at step {done}, and steps is "
                    f"{self.steps}; nothing is left to do. Give more steps"
                )
        elif learner.reference is not None:
            learner.reference.save_pretrained(folder / "reference")
        server.start()
        try:
            await self._open_gateway(gateway, server)
            self._run = _Run(
                learner=learner,
                server=server,
                collector=Collector(
                    self.get_store(), gateway, self.get_adapter(), self.rollout_timeout_seconds
                ),
                tokenizer=tokenizer,
                val_resources_id=await self._publish(gateway, self.eval_temperature),
                train_resources_id=await self._publish(gateway, self.temperature),
                folder=folder,
                totals=totals,
            )
            yield self._run, done
        finally:
            self._run = None
            if gateway.is_running():
                await gateway.stop()
            await asyncio.to_thread(server.stop)

    async def _open_gateway(self, gateway: "Gateway", server: "InferenceServer") -> None:
        gateway.set_store(self.get_store())
        backend = {"model": f"hosted_vllm/{MODEL_NAME}", "api_base": server.url}
        gateway.update_model_list([{"model_name": MODEL_NAME, "litellm_params": backend}])
        if not gateway.is_running():
            await gateway.start()

    async def _publish(self, gateway: "Gateway", temperature: float) -> str:
        sampling: dict[str, Any] = {"temperature": temperature}
        if self.max_tokens is not None:
            sampling["max_tokens"] = self.max_tokens
        llm = gateway.as_resource(model=MODEL_NAME, sampling_parameters=sampling)
        resources = {**(self.get_initial_resources() or {}), self.resource_name: llm}
        return (await self.get_store().add_resources(resources)).resources_id

    def _folder(self, checkpoint: Path | None) -> Path:
        if self.run_dir is not None:
            folder = Path(self.run_dir)
        elif checkpoint is not None and checkpoint.parent.name == "checkpoints":
            folder = checkpoint.parent.parent
        else:
            folder = Path("agl-runs") / time.strftime("grpo-%Y%m%d-%H%M%S")
        if checkpoint is None and (folder / "metrics.jsonl").exists():
            raise ConfigError(
                f"GRPO: {str(folder)!r} holds another run already. Give another run_dir, or "
                f"continue that run with resume_from={str(folder)!r}"
            )
        return folder

    def _reference(self, folder: Path, checkpoint: Path | None) -> Any:
        """The frozen start of a run that is resumed."""
        if not self.kl_coefficient or checkpoint is None:
            return None
        from agl_torch.models import load_model

        return load_model(folder / "reference", self.device, self.dtype)

    def _learner_options(self) -> Any:
        from agl_torch.learner import LearnerOptions

        return LearnerOptions(
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            minibatch_rows=self.minibatch_rows,
            microbatch_tokens=self.microbatch_tokens,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            entropy_bonus=self.entropy_bonus,
            kl_coefficient=self.kl_coefficient,
            max_grad_norm=self.max_grad_norm,
            weight_decay=self.weight_decay,
            temperature=self.temperature,
        )

    def _save(self, step: int, tasks: Any) -> Path:
        from agl_torch.checkpoint import Progress, save_checkpoint

        run = self._running()
        return save_checkpoint(
            run.folder / "checkpoints" / f"step-{step:06d}",
            run.learner,
            run.tokenizer,
            Progress(step, run.server.version, dict(run.totals), tasks.state()),
            run.server.sampler.random,
        )

    def _running(self) -> _Run:
        if self._run is None:
            raise AlgorithmError("GRPO is not running; this can be called only while run() is")
        return self._run

    # --- one step

    async def _step(self, step: int, tasks: list[Any]) -> dict[str, Any]:
        run = self._running()
        start = time.perf_counter()
        collected = await run.collector.collect(
            tasks,
            self.group_size,
            "train",
            run.train_resources_id,
            {"algorithm": "grpo", "step": step, "version": run.server.version},
        )
        samples = self._samples(collected)
        collected.ledger.check()
        self._add_up(collected)
        update_start = time.perf_counter()
        learned: dict[str, float] = {}
        if samples:
            lag = _version_lag([sample.row for sample in samples], run.server.version)
            learned = {**await asyncio.to_thread(self._update, run, samples), "version_lag": lag}
            self._check_gap(run, learned, step)
        self._check_idle(run, collected, bool(samples), step)
        run.rewards.append(collected.mean_reward)
        end = time.perf_counter()
        return {
            "step": step,
            "version": run.server.version,
            "reward/mean": collected.mean_reward,
            "reward/std": _deviation(collected.rewards),
            "rollouts/succeeded": collected.count("succeeded"),
            "rollouts/failed": len(collected.ended) - collected.count("succeeded"),
            "rows": len(samples),
            **_call_metrics(collected),
            **learned,
            "time/rollouts": collected.seconds,
            "time/update": end - update_start,
            "time/step": end - start,
        }

    def _samples(self, collected: "Collected") -> "list[Sample]":
        """Rows with advantages; every row goes into one bin of the ledger."""
        from agl_torch.learner import Sample
        from agl_torch.loss import group_advantages

        groups: dict[int, list[list[TrainingRow]]] = {}
        for one in collected.ended:
            usable: list[TrainingRow] = []
            for row in one.rows:
                reason: tuple[ExclusionReason, str] | None = None
                if one.rollout.status != "succeeded":
                    reason = "failed_attempt", f"its rollout ended as {one.rollout.status}"
                elif row.reward is None:
                    reason = "no_reward", "no reward reached this row"
                elif not math.isfinite(row.reward):
                    reason = "malformed", f"its reward is {row.reward}"
                if reason is None:
                    usable.append(row)
                else:
                    collected.ledger.exclude_row(row, *reason)
            if usable:
                groups.setdefault(one.group, []).append(usable)
        samples: list[Sample] = []
        for rows_G in groups.values():
            rewards_G = [[row.reward or 0.0 for row in rows] for rows in rows_G]
            advantages_G = group_advantages(rewards_G, self.normalise_std)
            for rows, advantages in zip(rows_G, advantages_G, strict=True):
                for row, advantage in zip(rows, advantages, strict=True):
                    if advantage == 0.0:
                        detail = "its reward equals the mean of its group"
                        collected.ledger.exclude_row(row, "zero_advantage", detail)
                    else:
                        collected.ledger.train(row)
                        samples.append(Sample(row, advantage))
        return samples

    @staticmethod
    def _update(run: _Run, samples: "list[Sample]") -> dict[str, float]:
        with run.server.updating():
            return run.learner.update(samples)

    def _check_gap(self, run: _Run, learned: dict[str, float], step: int) -> None:
        if learned["logprob_gap"] > GAP_LIMIT and not learned["version_lag"] and not run.gap_warned:
            run.gap_warned = True
            logger.warning(
                "step %d: the recorded log-probabilities differ by %.2f nats on average from the "
                "model's at temperature %s. Does the agent sample with another temperature than "
                "the resource's sampling_parameters say?",
                step,
                learned["logprob_gap"],
                self.temperature,
            )

    def _check_idle(self, run: _Run, collected: "Collected", trained: bool, step: int) -> None:
        run.idle_steps = 0 if trained else run.idle_steps + 1
        if trained:
            return
        why = _why_nothing(collected)
        logger.warning("step %d trained nothing: %s", step, why)
        solved = run.totals["trained"] > 0 and set(collected.ledger.reasons()) <= {"zero_advantage"}
        if run.idle_steps >= self.max_idle_steps and not solved:
            raise AlgorithmError(
                f"GRPO: nothing could be trained in {run.idle_steps} steps in a row, up to step "
                f"{step}. The last one: {why}"
            )

    def _is_over(self) -> bool:
        run = self._running()
        if run.idle_steps >= self.max_idle_steps:
            logger.warning(
                "every group's rewards have been equal for %d steps: nothing is left to learn "
                "from these tasks; ending early",
                run.idle_steps,
            )
            return True
        last = [reward for reward in run.rewards[-3:] if reward is not None]
        return (
            self.target_reward is not None
            and len(last) == 3
            and sum(last) / 3 >= self.target_reward
        )

    # --- accounts

    async def _evaluate_on(self, dataset: Dataset[Any] | None, step: int, report: Any) -> None:
        if dataset is None or len(dataset) == 0:
            return
        run = self._running()
        collected = await self.evaluate(dataset)
        run.val_rewards.append((step, collected.mean_reward))
        report.evaluation(
            step,
            {
                "step": step,
                "val/reward/mean": collected.mean_reward,
                "val/rollouts/succeeded": collected.count("succeeded"),
                "val/rollouts/failed": len(collected.ended) - collected.count("succeeded"),
                "val/calls/total": len(collected.ledger.calls),
                "val/time": collected.seconds,
            },
        )

    def _add_up(self, collected: "Collected") -> None:
        totals = self._running().totals
        totals["rollouts"] += len(collected.ended)
        totals["rollouts_failed"] += len(collected.ended) - collected.count("succeeded")
        totals["calls"] += len(collected.ledger.calls)
        totals["trained"] += len(collected.ledger.trained)
        for reason, count in collected.ledger.reasons().items():
            totals[f"excluded/{reason}"] += count

    def _summarise(self, checkpoint: Path | None, seconds: float) -> dict[str, Any]:
        run = self._running()
        prefix = "excluded/"
        return {
            "steps": len(run.rewards),
            "seconds": seconds,
            "rewards": run.rewards,
            "val_rewards": run.val_rewards,
            "rollouts": run.totals["rollouts"],
            "rollouts_failed": run.totals["rollouts_failed"],
            "calls": run.totals["calls"],
            "calls_trained": run.totals["trained"],
            "calls_excluded": {
                name.removeprefix(prefix): count
                for name, count in sorted(run.totals.items())
                if name.startswith(prefix)
            },
            "checkpoint": str(checkpoint) if checkpoint else None,
            "run_dir": str(run.folder),
        }


def _call_metrics(collected: "Collected") -> dict[str, int]:
    summary = collected.ledger.summary()
    excluded = {f"calls/excluded/{name}": count for name, count in summary["excluded"].items()}
    return {"calls/total": summary["calls"], "calls/trained": summary["trained"], **excluded}


def _why_nothing(collected: "Collected") -> str:
    parts = [f"{len(collected.ended)} rollouts, {collected.count('succeeded')} succeeded"]
    failures = [f"{kind} ({count})" for kind, count in collected.failures().items()]
    if failures:
        parts.append("failed with " + ", ".join(failures[:3]))
    if not collected.ledger.calls:
        parts.append(
            "no model call was recorded: does the agent use the base_url of its LLM resource?"
        )
    reasons = collected.ledger.reasons()
    if reasons:
        listed = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
        parts.append(f"model calls excluded as {listed}")
    if collected.mean_reward is not None:
        parts.append(f"mean reward {collected.mean_reward:.3f}")
    return "; ".join(parts)


def _version_lag(rows: list[TrainingRow], version: int) -> float:
    lags = [
        version - int(given)
        for row in rows
        for given in row.model_versions
        if given is not None and given.isdecimal()
    ]
    return sum(lags) / len(lags) if lags else 0.0


def _deviation(values: list[float]) -> float | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
