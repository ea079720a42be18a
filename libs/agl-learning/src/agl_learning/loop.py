"""The loop of fine-tuning on an agent's own rollouts, whoever serves and trains the model.

Per iteration: serve the newest version of the model, publish it through the gateway, run the
tasks, choose what to learn from, train, and the next version is there. A subclass says how a
version is served and trained. What is finished stands in ``journal.jsonl``; a run that is killed
and started again with the same ``run_dir`` goes on behind it:

- a collection that had begun goes on (rollouts have durable keys; those that were cut off run
  again) with the tasks and copies that it had; one that had ended is not repeated: its examples
  lie in ``iterations/NNNN/examples.jsonl``
- a training that had not ended is begun again, from the version before
- an evaluation that had ended is not repeated
- the ledger of an iteration is kept in the store when its training has ended; until then it lies in
  ``iterations/NNNN/ledger.jsonl``

Metrics, one JSON object per line of ``metrics.jsonl``: per iteration ``step``, ``version``,
``examples``, those of ``agl_learning.accounts.collected_metrics``, what the training says under
``train/``, ``time/train`` and ``time/step`` in seconds. Evaluations have ``step`` and ``val/...``.
"""

import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agl.algorithm.base import Algorithm
from agl.algorithm.gateway import model_served
from agl.algorithm.infrastructure import InfrastructureFailures, check_infrastructure_failures
from agl.algorithm.ledger import ledger_parts, save_ledger
from agl.errors import AlgorithmError, ConfigError
from agl.plugins.build import check_credit
from agl.types import Dataset, LedgerPart, RolloutMode, TrainedModel
from agl.utils.checks import absolute, check_name, check_numbers
from agl_learning.session import Session, open_session
from agl_learning.versions import Version, write_lines

LEDGER = "ledger.jsonl"

if TYPE_CHECKING:
    from agl.algorithm.gateway import ModelConfig
    from agl_learning.collect import Collected

logger = logging.getLogger("agl.learning")

MODEL_NAME = "policy"
"""What the gateway calls the model that is trained."""


@dataclass(frozen=True)
class Served:
    """A version that answers requests."""

    litellm_params: dict[str, Any]
    """For the gateway: ``model`` (as ``hosted_vllm/NAME``), ``api_base``, perhaps ``api_key``."""


@dataclass(frozen=True)
class _Request:
    """Tasks that are to run, each some times, under a durable key."""

    mode: RolloutMode
    version: Version
    tasks: list[Any]
    copies: int
    key: str
    written: dict[str, Any]
    """What its entry in the journal says of tasks and copies."""


@dataclass(kw_only=True, eq=False, repr=False)
class FineTuning(Algorithm):
    """Serve, roll out, choose, train, again; the base of ``SFT``, ``DPO`` and remote trainers.

    A subclass gives ``prepare``, ``serve``, ``select`` and ``train``, and where it holds something
    ``clean_up``. All of them may use ``self.session``.

    Args:
        iterations: How often; a run that has had fewer can be continued with more.
        tasks_per_iteration: None takes all.
        rollouts_per_task: How often each of them runs in an iteration.
        temperature: At which rollouts are sampled.
        max_tokens: Of one answer; None leaves it to the agent.
        eval_every: Evaluate every so manieth version; in any case the first and the last.
        eval_temperature: Of evaluations; 0 takes the most probable token.
        eval_copies: How often each validation task runs.
        seed: Of tasks' order, sampling, selection and training.
        run_dir: Folder of the run; where it holds an earlier part of the run, that is continued.
            None makes one under ``agl-runs`` named after the time.
        resource_name: Name of the resource that the agent gets.
        rollout_timeout_seconds: Limit of one attempt; None has no limit.
        credit: The credit rule, which says which call gets how much of which reward: its name, or
            a dict of ``type`` and options. None leaves it to the adapter, whose default is
            ``final``.
        infrastructure_failures: What becomes of a rollout that succeeded although servers or the
            network failed a model call of it: ``exclude`` it, ``drop_group`` (all rollouts of its
            task), or ``keep`` it.
        show_progress: A bar on standard error, or log lines where that is no terminal.
    """

    default_adapter = "rows"
    needs_gateway = True
    name: ClassVar[str] = "fine-tuning"
    """Of the algorithm: in the ledger, in rollouts' metadata, in names of folders."""

    iterations: int = 2
    tasks_per_iteration: int | None = None
    rollouts_per_task: int = 4
    temperature: float = 1.0
    max_tokens: int | None = None
    eval_every: int = 1
    eval_temperature: float = 0.0
    eval_copies: int = 1
    seed: int = 0
    run_dir: str | None = None
    resource_name: str = "main_llm"
    rollout_timeout_seconds: float | None = 300.0
    credit: str | dict[str, Any] | None = None
    infrastructure_failures: InfrastructureFailures = "exclude"
    show_progress: bool = True

    def __post_init__(self) -> None:
        self.run_dir = absolute(self.run_dir)
        self.check_least(
            iterations=1,
            tasks_per_iteration=1,
            rollouts_per_task=1,
            temperature=0,
            max_tokens=1,
            eval_every=1,
            eval_temperature=0,
            eval_copies=1,
        )
        timeout = self.rollout_timeout_seconds
        check_numbers(self.name, above=0, optional=True, rollout_timeout_seconds=timeout)
        check_numbers(self.name, whole=True, seed=self.seed)
        check_name(self.name, resource_name=self.resource_name)
        check_infrastructure_failures(self.infrastructure_failures, self.name)
        check_credit(self.name, self.credit)
        if self.credit is not None:
            self.adapter_options = {"credit": self.credit}
        self.summary: dict[str, Any] | None = None
        """What ``summary.json`` holds, once ``run`` has ended."""
        self._session: Session | None = None

    # --- what a subclass says

    def identity(self) -> dict[str, Any]:
        """What must not change when a run is continued; JSON values."""
        return {"algorithm": self.name, "seed": self.seed}

    @abstractmethod
    async def prepare(self) -> Version:
        """Refuse what cannot work, before anything is started; the version that a run begins with.

        Called when a run is continued, too.

        Raises:
            ConfigError: An option, a model or a machine that will not do.
        """

    def trained_model(self) -> TrainedModel:
        """Whose calls are learned from; called once ``prepare`` is done."""
        return TrainedModel(name=MODEL_NAME)

    @abstractmethod
    def serve(self, version: Version) -> AbstractAsyncContextManager[Served]:
        """A block in which ``version`` answers requests; it may train nothing meanwhile."""

    @abstractmethod
    def select(self, collected: "Collected", iteration: int) -> list[dict[str, Any]]:
        """What is trained, as JSON objects, in order; every open call gets a bin of the ledger.

        Deterministic: after a kill it may be asked again. The calls in ``collected.ended[i].rows``
        are open, the others have their bin.

        Raises:
            AlgorithmError: There is nothing to train; it says why. The ledger is kept all the same.
        """

    @abstractmethod
    async def train(self, examples: Path, version: Version, number: int) -> Version:
        """Make version ``number`` from ``version`` and the examples; it is whole when this returns.

        After a kill it is called again with the same arguments. What it needs then, it keeps in
        files of ``self.session.folder`` or with ``self.session.journal.append``.

        Args:
            examples: JSON lines, of ``select``.
            version: The newest one.
            number: Of the version that comes.
        """

    def forced_sampling(self) -> Mapping[str, Any]:
        """Parameters of sampling, besides the temperature, that agents get whatever they ask for.

        None here: imitating answers does not hang on how they were drawn.
        """
        return {}

    async def clean_up(self) -> None:
        """Let go of what ``prepare`` and the others hold; called at the end, whatever happened."""

    # --- the loop

    @property
    def session(self) -> Session:
        """What exists while ``run`` runs."""
        return self._need("session", self._session)

    async def run(
        self,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Do all iterations that the run has not had yet.

        Raises:
            ConfigError: No tasks, no gateway, a folder of another run, or what ``prepare`` refuses.
            AlgorithmError: An iteration has nothing to train; the message says why.
        """
        if train_dataset is None or len(train_dataset) == 0:
            raise ConfigError(f"{self.name}: there are no training tasks; pass train_dataset")
        start = time.perf_counter()
        with open_session(self) as session:
            self._session = session
            try:
                session.gateway.check_free(MODEL_NAME)
                version = await self.prepare()
                session.collector.model = self.trained_model()
                session.begin(self.identity())
                trained = session.journal.last("trained")
                if trained is not None:
                    version = Version(trained["version"], trained["ref"], trained["metrics"])
                    logger.info("%s goes on after version %d", session.folder, version.number)
                    await self._keep_trained(version)  # the kill may have come before that
                while version.number < self.iterations and not self.is_budget_spent():
                    version = await self._iterate(version, train_dataset, val_dataset)
                await self._evaluate_alone(version, val_dataset)
                self._sum_up(version, time.perf_counter() - start)
            finally:
                try:
                    await self.clean_up()
                finally:
                    self._session = None

    async def _iterate(
        self, version: Version, train: Dataset[Any], val: Dataset[Any] | None
    ) -> Version:
        session, number = self.session, version.number + 1
        start = time.perf_counter()
        entry = session.journal.last("collected", iteration=number)
        if entry is None:
            is_due = version.number == 0 or version.number % self.eval_every == 0
            evaluation = self._evaluation(version, val) if is_due else None
            tasks = self._chosen(train, number)
            request = self._request("train", version, tasks, self.rollouts_per_task)
            async with self._published(version) as resources:
                if evaluation is not None:
                    await self._evaluate(evaluation, resources)
                entry = await self._collect(request, resources)
        if entry is None:
            return version
        trained_at = time.perf_counter()
        logger.info("iteration %d: training on %d examples", number, entry["examples"])
        following = await self.train(session.folder / entry["file"], version, number)
        session.journal.append(
            "trained", version=number, ref=following.ref, metrics=following.metrics
        )
        await self._keep_trained(following)
        end = time.perf_counter()
        learned = {f"train/{name}": value for name, value in following.metrics.items()}
        await self.tell("on_checkpoint_saved", step=number, path=following.ref)
        await session.report.step(
            number,
            {
                "step": number,
                "version": number,
                "examples": entry["examples"],
                **entry["metrics"],
                **learned,
                "time/train": end - trained_at,
                "time/step": end - start,
            },
        )
        return following

    @contextlib.asynccontextmanager
    async def _published(self, version: Version) -> AsyncGenerator[dict[str, str]]:
        """Serve a version behind the gateway; gives the ids of resources per mode."""
        session = self.session
        async with self.serve(version) as served:
            entry: ModelConfig = {
                "model_name": MODEL_NAME,
                "litellm_params": served.litellm_params,
                "forced_parameters": {
                    "train": {**self.forced_sampling(), "temperature": self.temperature},
                    "val": {**self.forced_sampling(), "temperature": self.eval_temperature},
                },
            }
            async with model_served(session.gateway, entry, self.get_store()):
                temperatures = {"train": self.temperature, "val": self.eval_temperature}
                yield {
                    mode: await self._publish(version, mode, temperature)
                    for mode, temperature in temperatures.items()
                }

    async def _publish(self, version: Version, mode: str, temperature: float) -> str:
        session = self.session
        sampling: dict[str, Any] = {"temperature": temperature}
        if self.max_tokens is not None:
            sampling["max_tokens"] = self.max_tokens
        llm = session.gateway.as_resource(model=MODEL_NAME, sampling_parameters=sampling)
        resources = {**(self.get_initial_resources() or {}), self.resource_name: llm}
        # One id per version: rollouts that a killed run left queued find the new address in it.
        resources_id = f"{self.name}-{session.run_id}-{version.number}-{mode}"
        return (await self.publish_resources(resources, resources_id)).resources_id

    def _chosen(self, dataset: Dataset[Any], number: int) -> list[Any]:
        """The tasks of an iteration."""
        from agl_learning.tasks import TaskOrder

        chosen: list[int] = []
        count = self.tasks_per_iteration or len(dataset)
        order = TaskOrder(len(dataset), self.seed)
        for _ in range(number):
            chosen = order.take(count)
        return [dataset[index] for index in chosen]

    def _request(
        self, mode: RolloutMode, version: Version, tasks: list[Any], copies: int
    ) -> _Request:
        """A request for these tasks, or the one that was cut off, to go on with.

        Raises:
            ConfigError: That one had other tasks or copies; its rollouts would count as theirs.
        """
        from agl_learning.tasks import digest

        session, name = self.session, f"{mode}-{version.number}"
        rounds = len(session.journal.all("given up", key=name))
        key = f"{self.name}/{session.run_id}/{name}/{rounds}"
        request = _Request(
            mode, version, tasks, copies, key, {"tasks": digest(tasks), "copies": copies}
        )
        begun = session.journal.last("collecting", key=key)
        for what, now in request.written.items():
            if begun is not None and begun.get(what) != now:
                kind = "validation" if mode == "val" else "training"
                raise ConfigError(
                    f"{self.name}: the run in {str(session.folder)!r} stopped amid {kind} rollouts "
                    f"of version {version.number} with other {what}: {begun.get(what)!r} then, "
                    f"{now!r} now. Continue it with what it had, or give another run_dir"
                )
        return request

    async def _collect(self, request: _Request, resources: dict[str, str]) -> dict[str, Any] | None:
        """The entry of what was collected; None when the budget was spent before there was any."""
        from agl_learning.accounts import collected_metrics

        session, version = self.session, request.version
        number = version.number + 1
        collected = await self._run_tasks(request, resources)
        try:
            examples = self.select(collected, number)
        except AlgorithmError as error:
            # Started again, the iteration shall draw new rollouts: these are accounted for.
            await self._keep(collected, number, version)
            session.journal.append(
                "given up", key=f"train-{version.number}", totals=dict(session.totals.counts)
            )
            if not self.is_budget_spent():
                raise
            logger.warning("the budget is spent: %s", error)
            return None
        parts = ledger_parts(
            collected.ledger,
            [one.rollout for one in collected.ended],
            **self._step_of_run(number),
        )
        session.totals.add(collected)
        file = Path("iterations") / f"{number:04d}" / "examples.jsonl"
        write_lines(session.folder / file, examples)
        write_lines(
            (session.folder / file).with_name(LEDGER),
            [part.model_dump(mode="json", exclude_defaults=True) for part in parts],
        )
        session.rewards.append(collected.mean_reward)
        return session.journal.append(
            "collected",
            iteration=number,
            file=str(file),
            examples=len(examples),
            reward=collected.mean_reward,
            metrics=collected_metrics(collected),
            totals=dict(session.totals.counts),
        )

    async def _run_tasks(self, request: _Request, resources: dict[str, str]) -> "Collected":
        session, version = self.session, request.version
        mode, tasks, key = request.mode, request.tasks, request.key
        earlier = len(session.journal.all("collecting", key=key))
        session.journal.append("collecting", key=key, **request.written)
        metadata = {
            "algorithm": self.name,
            "run": session.run_id,
            "generation": session.generation,
            "version": version.number,
            "step": version.number + (mode == "train"),
        }
        from agl_learning.collect import drop_groups

        collected = last = await session.collector.collect(
            tasks, request.copies, mode, resources[mode], metadata, key=key
        )
        # Where the run had ended in the middle of this, rollouts were cut off, or met the address
        # of a gateway that was gone: those are drawn once more.
        for number in range(1, earlier + 1):
            groups = [one.group for one in last.ended if one.rollout.status != "succeeded"]
            if not groups or self.is_budget_spent():
                break
            again = [tasks[group] for group in groups]
            last = await session.collector.collect(
                again, 1, mode, resources[mode], metadata, key=f"{key}/again-{number}"
            )
            last.ended = [replace(one, group=groups[one.group]) for one in last.ended]
            collected = joined(collected, last)
            if self.infrastructure_failures == "drop_group":
                drop_groups(collected.ended)
        return collected

    def _step_of_run(self, step: int) -> dict[str, Any]:
        session = self.session
        return {
            "step": step,
            "algorithm": self.name,
            "run": session.run_id,
            "generation": session.generation,
        }

    async def _keep(self, collected: "Collected", step: int, version: Version) -> None:
        """Keep the ledger of what trained nothing."""
        rollouts = [one.rollout for one in collected.ended]
        about = self._step_of_run(step)
        await save_ledger(
            self.get_store(), collected.ledger, rollouts, version=version.number, **about
        )
        self.session.totals.add(collected)

    async def _keep_trained(self, version: Version) -> None:
        """Keep the ledger of the iteration that made a version; again, it changes nothing."""
        path = self.session.folder / "iterations" / f"{version.number:04d}" / LEDGER
        made = {"version": str(version.number)}
        await self.get_store().add_ledger_parts(
            [
                LedgerPart.model_validate_json(line).model_copy(update=made)
                for line in path.read_text("utf-8").splitlines()
            ]
        )

    async def _evaluate_alone(self, version: Version, dataset: Dataset[Any] | None) -> None:
        evaluation = self._evaluation(version, dataset)
        if evaluation is not None:
            async with self._published(version) as resources:
                await self._evaluate(evaluation, resources)

    def _evaluation(self, version: Version, dataset: Dataset[Any] | None) -> _Request | None:
        """That of a version, unless it is done, or cannot be."""
        done = self.session.journal.last("evaluated", version=version.number) is not None
        if done or dataset is None or len(dataset) == 0 or self.is_budget_spent():
            return None
        tasks = [dataset[index] for index in range(len(dataset))]
        return self._request("val", version, tasks, self.eval_copies)

    async def _evaluate(self, request: _Request, resources: dict[str, str]) -> None:
        from agl_learning.accounts import collected_metrics

        session, version = self.session, request.version
        collected = await self._run_tasks(request, resources)
        for one in collected.ended:
            for row in one.rows:
                collected.ledger.exclude_row(row, "not_trained_mode", "its rollout is a validation")
        await self._keep(collected, version.number, version)
        reward = collected.mean_reward
        if reward is None:
            logger.warning(
                "version %d has no held-out reward: no rollout of its evaluation succeeded (%s)",
                version.number,
                ", ".join(f"{kind}: {count}" for kind, count in collected.failures().items()),
            )
        session.val_rewards.append((version.number, reward))
        metrics = {f"val/{name}": value for name, value in collected_metrics(collected).items()}
        await session.report.evaluation(version.number, {"step": version.number, **metrics})
        session.journal.append(
            "evaluated", version=version.number, reward=reward, totals=dict(session.totals.counts)
        )

    def _sum_up(self, version: Version, seconds: float) -> None:
        session = self.session
        self.summary = {
            "iterations": version.number,
            "seconds": seconds,
            "rewards": session.rewards,
            "val_rewards": session.val_rewards,
            **session.totals.summary(),
            "model": version.ref,
            "run_dir": str(session.folder),
        }
        session.report.summary(self.summary)

    # --- for constructors

    def check_least(self, **limits: float) -> None:
        """Refuse options that are no numbers of their type, or below their least value.

        Raises:
            ConfigError: It names the first of them.
        """
        types: dict[str, Any] = {field.name: field.type for field in fields(self)}
        for name, least in limits.items():
            check_numbers(
                self.name,
                whole=types[name] in (int, int | None),
                optional=types[name] in (int | None, float | None),
                least=least,
                **{name: getattr(self, name)},
            )

    def check_part(self, name: str) -> None:
        """Refuse an option that is no part of a whole.

        Raises:
            ConfigError: It is not above 0 and at most 1.
        """
        check_numbers(self.name, above=0, most=1, **{name: getattr(self, name)})


def joined(one: "Collected", other: "Collected") -> "Collected":
    """Two collections as one."""
    one.ledger.merge(other.ledger)
    return replace(one, ended=one.ended + other.ended, seconds=one.seconds + other.seconds)
