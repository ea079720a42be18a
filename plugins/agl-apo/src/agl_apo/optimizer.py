"""``PromptOptimizer``: what ``APO`` and ``GEPA`` share, from the first check to the result."""

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError, ConfigError
from agl.types import LLM, Dataset, NamedResources, PromptTemplate
from agl_apo.decision import Rule
from agl_apo.evaluate import Candidate, Evaluator
from agl_apo.journal import StoreJournal
from agl_apo.options import PromptOptions
from agl_apo.session import Result, SearchSession
from agl_apo.templates import BrokenTemplateError, placeholders
from agl_learning.collect.task_order import digest
from agl_learning.reports.progress_bar import Bar
from agl_learning.reports.report import Report
from agl_learning.run.folder import begin_generation, check_own, hold_run
from agl_learning.run.start import run_folder
from agl_views.runs.prompt_runs import PromptRuns

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_apo.models import Models

logger = logging.getLogger("agl.apo")


@dataclass(kw_only=True, eq=False, repr=False)
class PromptOptimizer(PromptOptions, Algorithm):
    """Search for better prompts, and take one only if it is better beyond doubt."""

    default_adapter = "messages"
    publishes = (PromptTemplate, LLM)  # that of the gateway, where there is one
    is_shuffled: ClassVar[bool] = True
    """Whether the search has its tasks in random order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.result: Result | None = None
        """Set when ``run`` has ended."""
        self._session: SearchSession | None = None
        self.models: Models
        """Those that write prompts; each kind makes its own."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What of its own options must not change when a run is continued; JSON values."""

    @abstractmethod
    def smallest_search(self, num_tasks: int) -> int:
        """Evaluations that it takes, with so many train tasks."""

    @abstractmethod
    async def search(self, session: SearchSession) -> None:
        """Find the candidate that the decision is about, ``session.leader``."""

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse tasks and a budget with which nothing can be concluded."""
        self._checked(train_dataset, val_dataset)

    def _checked(
        self, train: Dataset[Any] | None, val: Dataset[Any] | None, *, tells: bool = False
    ) -> tuple[list[Any], list[Any], Rule]:
        """Tasks of the search, those held out, and when a prompt is accepted.

        Held out are those of ``val`` that are no copies, and not in ``train``.
        """
        searched, given = (
            [] if dataset is None else [dataset[index] for index in range(len(dataset))]
            for dataset in (train, val)
        )
        for tasks, what in ((searched, "train_dataset"), (given, "val_dataset")):
            if not tasks:
                raise ConfigError(
                    f"{self.title}: there is no {what}. It searches with train_dataset and decides "
                    "with val_dataset; give both to fit()"
                )
        # A copy is no further witness: the decision takes tasks for drawn independently.
        different = {digest([task]): task for task in given}
        seen = {digest([task]) for task in searched}
        held_out = [task for one, task in different.items() if one not in seen]
        if tells and len(held_out) < len(given):
            logger.warning(
                "%d of %d tasks of val_dataset have no part in the decision: %d are in "
                "train_dataset too, and so not held out, and %d are copies of others",
                len(given) - len(held_out),
                len(given),
                len(different) - len(held_out),
                len(given) - len(different),
            )
        rule = Rule(self.confidence, self.smallest_gain, self.max_repeats)
        rule.check(len(held_out))
        most, pairs = self.max_evaluations, rule.pairs(len(held_out))
        round_cost = self.smallest_search(len(searched))
        needed = 2 * pairs + round_cost
        if most is not None and most < needed:
            raise ConfigError(
                f"{self.title}: max_evaluations={most} is too small to conclude: the decision "
                f"plans {pairs} pairs of evaluations to find a gain of {rule.smallest_gain:g}, "
                f"and the smallest search takes {round_cost}. Give max_evaluations={needed} or "
                "more, or a larger smallest_gain"
            )
        return searched, held_out, rule

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Cancel the evaluations that a dead start left queued or under way.

        Raises:
            ConfigError: That start is not dead; or there is no prompt to improve.
        """
        find_targets(self, dict(self.get_initial_resources() or {}))
        run = self.get_run()
        await StoreJournal(store, self.run_name, self.name).cancel_leftovers(run and run[0])

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        """Search, decide, publish.

        Raises:
            ConfigError: The request is wrong or too small; nothing was spent.
            AlgorithmError: The first prompt cannot be run, or no model answers.
        """
        self.result = None
        train, held_out, rule = self._checked(train_dataset, val_dataset, tells=True)
        resources = dict(self.get_initial_resources() or {})
        templates = find_targets(self, resources)
        folder = run_folder(self, self.run_dir)
        with hold_run(folder):
            check_own(folder, self.name)
            run = self.get_run()
            journal = StoreJournal(self.get_store(), self.run_name, self.name, run and run[0])
            texts = {name: template.template for name, template in templates.items()}
            await journal.begin(
                {
                    **self.identity(),
                    "seed prompts": texts,
                    "engines": {name: template.engine for name, template in templates.items()},
                    "train_dataset": digest(train),
                    "val_dataset": digest(held_out),
                    "seed": self.seed,
                    "rule": asdict(rule),
                    "max_evaluations": self.max_evaluations,
                    "reward_range": list(self.reward_range),
                }
            )
            start = begin_generation(folder, self, algorithm=self.name)
            report = Report(self, self.name, folder, 0, 0, show_progress=False)
            report.go_back(0, False)  # a run that goes on plays its rounds again
            evaluator = Evaluator(
                journal=journal,
                tasks={"search": train, "held_out": held_out},
                options=self,
                is_budget_spent=self.is_budget_spent,
                gateway=self.get_llm_proxy(),
                shuffled=self.is_shuffled,
                start=start.metadata,
            )
            session = self._session = SearchSession(
                options=self,
                rule=rule,
                evaluator=evaluator,
                templates=templates,
                others=self._others(resources, templates),
                seed=Candidate(PromptRuns.SEED, texts),
                report=report,
                adapter=self.get_adapter(),
                publish_resources=self.publish_resources,
            )
            await session.publish(session.seed)
            # It may end earlier: the time left is what is left at most.
            with Bar(f"{self.name}, evaluations", self.max_evaluations) as bar:
                evaluator.show = bar.update
                async with self.models:
                    await self.search(session)
                self.result = await session.finish()
            report.summary(session.summary(), start.number)

    def _others(
        self, resources: NamedResources, templates: Mapping[str, PromptTemplate]
    ) -> NamedResources:
        """What agents get beside the prompts: the gateway too, where there is no other resource."""
        others = {name: value for name, value in resources.items() if name not in templates}
        proxy = self.get_llm_proxy()
        if proxy is not None and all(r.resource_type == "prompt_template" for r in others.values()):
            others["llm"] = proxy.as_resource()
        return others

    def get_best_prompt(self, name: str | None = None) -> PromptTemplate:
        """The accepted prompt, else the first one; while ``run`` runs, the best of the search.

        Args:
            name: Which target; needed where there are several.

        Raises:
            AlgorithmError: ``run`` has not begun.
            ConfigError: No such target, or several and none named.
        """
        session = self._session
        if session is None:
            raise AlgorithmError(f"{type(self).__name__} has not run yet; there is no best prompt")
        templates = session.templates
        if name is None and len(templates) == 1:
            name = next(iter(templates))
        if name not in templates:
            raise ConfigError(
                f"get_best_prompt: {'which prompt' if name is None else f'no prompt {name!r}'}? "
                f"Optimised are {', '.join(map(repr, templates))}"
            )
        text = (session.leader.texts if self.result is None else self.result.prompts)[name]
        return templates[name].model_copy(update={"template": text})


def find_targets(options: PromptOptions, resources: NamedResources) -> dict[str, PromptTemplate]:
    """The prompts to improve.

    Raises:
        ConfigError: There is none, none of a name, or one that its engine cannot read.
    """
    prompts = {
        name: resource for name, resource in resources.items()
        if isinstance(resource, PromptTemplate)
    }  # fmt: skip
    if not prompts:
        raise ConfigError(
            f"{options.title}: there is no PromptTemplate to improve. Give one: "
            "Trainer(initial_resources={'prompt_template': agl.PromptTemplate(template=...)}), or "
            "the key resources in agl.yaml"
        )
    names = list(prompts) if options.targets is None else list(options.targets)
    for name in names:
        if name not in prompts:
            raise ConfigError(
                f"{options.title}: targets: there is no PromptTemplate {name!r}; there is "
                f"{', '.join(map(repr, prompts))}"
            )
        try:
            placeholders(prompts[name])
        except BrokenTemplateError as error:
            raise ConfigError(
                f"prompt {name!r} is no {prompts[name].engine} template: {error}"
            ) from None
    return {name: prompts[name] for name in names}
