"""``GRPO``: reinforcement learning of a language model on one machine.

Each step runs P tasks G times through the agent, gives every rollout its reward's distance from the
mean of its group, and takes gradient steps on the tokens that the model sampled. The mathematics
is in ``loss``; here is the loop around it.

Metrics, one JSON object per line of ``metrics.jsonl``; training steps have:

- ``step``; ``generation``: in which start of the run, from 1
- ``reward/mean``, ``reward/std`` over rollouts with a reward (failed ones have none)
- ``rollouts/succeeded``, ``rollouts/failed``; ``rollouts/infrastructure``: those that succeeded
  although servers or the network failed a model call; ``rows``: token sequences that were trained
- ``calls/truncated``: answers of the model that the limit of tokens cut off, whatever became of
  them; ``calls/broken_tool_call``: those in rows that call a tool with arguments that are no JSON
- ``calls/total``, ``calls/trained``, ``calls/excluded/<reason>``: total is the sum of the others
- ``loss/total``, ``loss/policy``, ``entropy``, ``kl``, ``clip_fraction``, ``grad_norm``,
  ``gradient_steps``: see ``loss`` and ``learner``
- ``logprob_gap``: mean distance between the log-probabilities recorded at sampling and those of
  the model before the update, nats; above 0.05 the agent samples otherwise than GRPO assumes
- ``version``: of the weights that the step made; ``version_lag``: how far, on average, the weights
  that sampled were behind the ones that were then changed
- ``time/step``, ``time/rollouts``, ``time/update``: seconds

Evaluations have ``step``, ``generation``, and ``reward``, ``rollouts``, ``calls`` and
``time/rollouts`` of theirs under ``val/``.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.algorithm.base import Algorithm
from agl.algorithm.infrastructure import InfrastructureFailures, check_infrastructure_failures
from agl.algorithm.ledger import save_ledger
from agl.errors import AlgorithmError, ConfigError
from agl.plugins.build import check_credit
from agl.types import Dataset, RolloutConfig
from agl.utils.checks import absolute, check_name, check_numbers
from agl_learning.generations import cancel_dead_starts

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_learning.collect import Collected
    from agl_learning.report import Report
    from agl_torch.session import Session

logger = logging.getLogger("agl.torch")

GAP_LIMIT = 0.05
"""Nats between recorded and present log-probabilities that rounding does not explain."""
TARGET_STEPS = 3
"""So many steps in a row must reach ``target_reward``."""


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
        ratio_cap: Ratios of tokens with negative advantage, which neither of the two holds, count
            up to this (truncated importance weights, arXiv:1802.01561); with None only a
            ratio above e^20 is cut, to e^20, so that it stays a number.
        normalise_std: Divide advantages by the standard deviation of the group's rewards.
        credit: The credit rule, which says which call gets how much of which reward: its name, or
            a dict of ``type`` and options. None leaves it to the adapter, whose default is
            ``final``.
        entropy_bonus: Reward for undecided tokens, per nat; keeps the model exploring.
        kl_coefficient: Penalty on the divergence from the start; 0 keeps no copy of the start.
        max_grad_norm: Longer gradients are shortened.
        temperature: At which rollouts are sampled; the agent must use it (it is in the resource).
        max_tokens: Of one answer; None leaves it to the agent.
        max_model_tokens: Of prompt and answer together; None takes the model's limit.
        seed: Of tasks' order, minibatches and sampling. Which rollout meets which draw depends on
            the network, so runs of one seed are alike and not equal.
        eval_every: Evaluate on the validation tasks after so many steps; in any case before the
            first and after the last.
        eval_temperature: Of evaluations; 0 takes the most probable token.
        eval_copies: How often each validation task runs.
        target_reward: End when the mean rewards of three steps in a row have reached it.
        max_idle_steps: Fail after so many steps in a row in which nothing could be trained, and at
            the end of a run that trained nothing; end well when the rewards of every group have
            become equal after something was learned.
        run_dir: Folder for ``metrics.jsonl``, ``summary.json`` and ``checkpoints``; None makes one
            under ``agl-runs`` named after the time.
        checkpoint_every: Save after so many steps; after the last step in any case.
        resume_from: A checkpoint, or a run's folder (then the newest that is whole and that its
            last start made or went on from): weights, optimiser, random states, step and the
            rewards so far come from there. A run that ended before its first checkpoint begins at
            step 0 again. Rollouts that the run left behind are cancelled. In the folder of the same
            run, what came after the checkpoint counts no more: its metrics go, and its accounts are
            marked as lost. A folder that a live process uses is refused. With another ``run_dir``
            it is a run of its own, which the same two options begin again; the folder of any other
            run is refused.
        resource_name: Name of the resource that the agent gets.
        rollout_timeout_seconds: Limit of one attempt; None has no limit.
        unresponsive_seconds: A rollout whose runner is silent for longer is tried once more, by
            whichever runner is there; None waits for the limit above.
        infrastructure_failures: What becomes of a rollout that succeeded although servers or the
            network failed a model call of it: ``exclude`` it, ``drop_group`` (all rollouts of its
            task), or ``keep`` it.
        device: For example ``cuda:0``; None takes a GPU if there is one.
        dtype: In which the model computes, ``float32`` or ``bfloat16``. Weights and optimiser are
            float32 in any case: steps of 1e-6 get lost in 16 bits.
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
        ratio_cap: float | None = 3.0,
        normalise_std: bool = True,
        credit: str | dict[str, Any] | None = None,
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
        unresponsive_seconds: float | None = 60.0,
        infrastructure_failures: InfrastructureFailures = "exclude",
        device: str | None = None,
        dtype: str = "float32",
        torch_threads: int | None = None,
        max_batch_size: int = 64,
        show_progress: bool = True,
    ) -> None:
        check_numbers(
            "GRPO",
            whole=True,
            least=1,
            steps=steps,
            groups_per_step=groups_per_step,
            epochs=epochs,
            eval_copies=eval_copies,
            max_idle_steps=max_idle_steps,
            max_batch_size=max_batch_size,
        )
        check_numbers("GRPO", whole=True, least=2, group_size=group_size)
        check_numbers(
            "GRPO",
            whole=True,
            optional=True,
            least=1,
            minibatch_rows=minibatch_rows,
            microbatch_tokens=microbatch_tokens,
            max_tokens=max_tokens,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
            torch_threads=torch_threads,
        )
        check_numbers("GRPO", whole=True, optional=True, least=2, max_model_tokens=max_model_tokens)
        check_numbers("GRPO", whole=True, seed=seed)
        check_numbers(
            "GRPO",
            least=0,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            clip_high=clip_high,
            entropy_bonus=entropy_bonus,
            kl_coefficient=kl_coefficient,
            eval_temperature=eval_temperature,
        )
        check_numbers("GRPO", least=0, below=1, clip_low=clip_low)
        check_numbers("GRPO", optional=True, least=1, ratio_cap=ratio_cap)
        check_numbers("GRPO", optional=True, target_reward=target_reward)
        check_numbers("GRPO", above=0, temperature=temperature, max_grad_norm=max_grad_norm)
        check_numbers(
            "GRPO",
            above=0,
            optional=True,
            rollout_timeout_seconds=rollout_timeout_seconds,
            unresponsive_seconds=unresponsive_seconds,
        )
        check_name("GRPO", resource_name=resource_name)
        check_credit("GRPO", credit)
        check_infrastructure_failures(infrastructure_failures, "GRPO")
        self.infrastructure_failures: InfrastructureFailures = infrastructure_failures
        if dtype not in ("float32", "bfloat16"):
            raise ConfigError(
                f"GRPO: dtype is {dtype!r}; expected 'float32' or 'bfloat16' (float16 would need "
                "its losses scaled)"
            )
        self.model, self.tokenizer = model, tokenizer
        self.steps, self.groups_per_step, self.group_size = steps, groups_per_step, group_size
        self.epochs, self.minibatch_rows = epochs, minibatch_rows
        self.microbatch_tokens = microbatch_tokens
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.clip_low, self.clip_high, self.ratio_cap = clip_low, clip_high, ratio_cap
        self.normalise_std, self.entropy_bonus = normalise_std, entropy_bonus
        self.kl_coefficient, self.max_grad_norm = kl_coefficient, max_grad_norm
        self.temperature, self.max_tokens = temperature, max_tokens
        self.max_model_tokens, self.seed = max_model_tokens, seed
        self.eval_every, self.eval_temperature = eval_every, eval_temperature
        self.eval_copies, self.target_reward = eval_copies, target_reward
        self.max_idle_steps, self.run_dir = max_idle_steps, absolute(run_dir)
        self.checkpoint_every, self.resume_from = checkpoint_every, absolute(resume_from)
        self.resource_name = resource_name
        self.rollout_config = RolloutConfig(
            timeout_seconds=rollout_timeout_seconds,
            unresponsive_seconds=unresponsive_seconds,
            max_attempts=2,
            retry_condition=["unresponsive"],
        )
        self.device, self.dtype, self.torch_threads = device, dtype, torch_threads
        self.max_batch_size, self.show_progress = max_batch_size, show_progress
        if credit is not None:
            self.adapter_options = {"credit": credit}
        self.summary: dict[str, Any] | None = None
        """What ``summary.json`` holds, once ``run`` has ended."""
        self._session: Session | None = None

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Cancel what a killed part of the run left in the store, before runners claim it."""
        if self.resume_from is None and self.run_dir is None:
            return  # a folder of its own, which is made now
        from agl_torch.origin import find_origin

        # It refuses what run() would refuse, so that nothing is cancelled for a start that fails.
        origin = find_origin(self)
        await cancel_dead_starts(store, origin.folder, origin.home)

    async def run(
        self,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Train to the end.

        Raises:
            ConfigError: No tasks, no gateway, or a model that cannot be loaded.
            AlgorithmError: For ``max_idle_steps`` steps, or in a shorter run, nothing could be
                trained; the message says why.
            LedgerError: A model call stands in no bin or in several.
        """
        if train_dataset is None or len(train_dataset) == 0:
            raise ConfigError("GRPO: there are no training tasks; pass train_dataset")
        from agl_learning.report import Report
        from agl_torch.session import open_session

        async with open_session(self, len(train_dataset)) as session:
            self._session = session
            try:
                done = session.steps_done
                with Report(
                    self, "grpo", session.folder, self.steps, done, self.show_progress
                ) as report:
                    report.go_back(done, session.is_evaluated(done), session.branch)
                    await self._train(session, report, train_dataset, val_dataset)
            finally:
                self._session = None

    async def _train(
        self,
        session: "Session",
        report: "Report",
        train_dataset: Dataset[Any],
        val_dataset: Dataset[Any] | None,
    ) -> None:
        start = time.perf_counter()
        if not session.is_evaluated(session.steps_done):
            await self._evaluate_on(val_dataset, session.steps_done, session, report)
        checkpoint: Path | None = None
        for step in range(session.steps_done + 1, self.steps + 1):
            tasks = [train_dataset[index] for index in session.tasks.take(self.groups_per_step)]
            await report.step(step, await self._step(step, tasks, session))
            last = step == self.steps or self._is_over(session)
            if last or (self.eval_every and step % self.eval_every == 0):
                await self._evaluate_on(val_dataset, step, session, report)
            if last or (self.checkpoint_every and step % self.checkpoint_every == 0):
                checkpoint = session.save(step)
                await self.tell("on_checkpoint_saved", step=step, path=checkpoint)
            if last:
                break
        self.summary = {
            "steps": len(session.rewards),
            "seconds": time.perf_counter() - start,
            "rewards": session.rewards,
            "val_rewards": session.val_rewards,
            **session.totals.summary(),
            "checkpoint": str(checkpoint),
            "run_dir": str(session.folder),
        }
        report.summary(self.summary)

    async def evaluate(self, dataset: Dataset[Any]) -> "Collected":
        """Run tasks in mode ``val`` at ``eval_temperature``, ``eval_copies`` times each.

        Their calls are excluded from training as ``not_trained_mode``. Only while ``run`` runs,
        for subclasses.

        Raises:
            AlgorithmError: The algorithm is not running.
        """
        session = self._session
        if session is None:
            raise AlgorithmError(
                "GRPO is not running; evaluate() can be called only while run() is"
            )
        collected = await session.collector.collect(
            [dataset[index] for index in range(len(dataset))],
            self.eval_copies,
            "val",
            session.val_resources_id,
            session.metadata(session.last_step),
        )
        for one in collected.ended:
            for row in one.rows:
                collected.ledger.exclude_row(row, "not_trained_mode", "its rollout is a validation")
        await self._keep(collected, session, session.last_step)
        return collected

    async def _keep(self, collected: "Collected", session: "Session", step: int) -> None:
        await save_ledger(
            self.get_store(),
            collected.ledger,
            [one.rollout for one in collected.ended],
            step=step,
            algorithm="grpo",
            run=session.generation.run,
            generation=session.generation.number,
            version=session.server.version,
        )
        session.totals.add(collected)

    async def _evaluate_on(
        self, dataset: Dataset[Any] | None, step: int, session: "Session", report: "Report"
    ) -> None:
        if dataset is None or len(dataset) == 0 or self.is_budget_spent():
            return
        from agl_learning.accounts import collected_metrics

        collected = await self.evaluate(dataset)
        session.val_rewards.append((step, collected.mean_reward))
        metrics = {f"val/{name}": value for name, value in collected_metrics(collected).items()}
        start = session.generation.number
        await report.evaluation(step, {"step": step, "generation": start, **metrics})

    async def _step(self, step: int, tasks: list[Any], session: "Session") -> dict[str, Any]:
        from agl_learning.accounts import collected_metrics, version_lag, weigh
        from agl_torch.learner import Sample

        start = time.perf_counter()
        collected = await session.collector.collect(
            tasks,
            self.group_size,
            "train",
            session.train_resources_id,
            session.metadata(step),
        )
        samples = [
            Sample(one.row, [advantage.value for advantage in one.advantages])
            for one in weigh(collected, self.normalise_std)
        ]
        learned: dict[str, float] = {}
        update_start = time.perf_counter()
        if samples:
            lag = version_lag([sample.row for sample in samples], session.server.version)
            learned = {**await asyncio.to_thread(session.update, samples), "version_lag": lag}
            self._check_gap(step, learned, session)
        # Not before: rows of an update that failed must not be in the store as trained.
        await self._keep(collected, session, step)
        session.last_step = step
        session.rewards.append(collected.mean_reward)
        end = time.perf_counter()
        self._check_idle(step, collected, bool(samples), session)
        return {
            "step": step,
            "generation": session.generation.number,
            "version": session.server.version,
            **collected_metrics(collected),
            "rows": len(samples),
            **learned,
            "time/update": end - update_start,
            "time/step": end - start,
        }

    def _check_gap(self, step: int, learned: dict[str, float], session: "Session") -> None:
        gap, is_fresh = learned["logprob_gap"], not learned["version_lag"]
        if gap > GAP_LIMIT and is_fresh and not session.gap_warned:
            session.gap_warned = True
            logger.warning(
                "step %d: the recorded log-probabilities differ by %.2f nats on average from the "
                "model's at temperature %s. Does the agent sample with another temperature, and "
                "the gateway not set this one?",
                step,
                gap,
                self.temperature,
            )

    def _check_idle(
        self, step: int, collected: "Collected", trained: bool, session: "Session"
    ) -> None:
        from agl_learning.accounts import is_solved, why_nothing

        if trained:
            session.idle_steps = 0
            return
        if self.is_budget_spent():
            return  # that is why, and the run ends with what it has
        session.idle_steps += 1
        has_learned = session.totals.counts["calls_trained"] > 0
        if has_learned and is_solved(collected):
            return
        why = why_nothing(collected)
        # Few rollouts may have equal rewards by chance; without any row something is wrong.
        in_vain = not has_learned and "zero_advantage" not in collected.ledger.reasons()
        if session.idle_steps >= self.max_idle_steps or (step == self.steps and in_vain):
            raise AlgorithmError(
                f"GRPO: nothing could be trained in {session.idle_steps} steps in a row, up to "
                f"step {step}. The last one: {why}"
            )
        logger.warning("step %d trained nothing: %s", step, why)

    def _is_over(self, session: "Session") -> bool:
        if self.is_budget_spent():
            return True
        if session.idle_steps >= self.max_idle_steps:
            logger.warning(
                "the rewards of every group have been equal for %d steps (mean reward %s): nothing "
                "is left to learn from these tasks; ending early",
                session.idle_steps,
                session.rewards[-1],
            )
            return True
        last = session.rewards[-TARGET_STEPS:]
        return (
            self.target_reward is not None
            and len(last) == TARGET_STEPS
            and all(reward is not None and reward >= self.target_reward for reward in last)
        )
