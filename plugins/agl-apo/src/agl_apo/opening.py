"""How a run begins: the request is checked as a whole, and a run of the store is found again."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from agl.algorithm.base import Algorithm
from agl.errors import ConfigError
from agl.types import Dataset, NamedResources, PromptTemplate
from agl_apo.decision import Rule
from agl_apo.evaluate import Candidate, Evaluator
from agl_apo.journal import SEED, Journal
from agl_apo.options import Options
from agl_apo.session import Session
from agl_apo.templates import BrokenTemplateError, placeholders
from agl_learning.generations import (
    begin_generation,
    check_algorithm,
    hold_run,
    read_generation,
)
from agl_learning.report import Report
from agl_learning.start import run_folder
from agl_learning.tasks import digest

logger = logging.getLogger("agl.apo")


@asynccontextmanager
async def open_session(
    algorithm: Algorithm,
    options: Options,
    written: Mapping[str, Any],
    train_dataset: Dataset[Any] | None,
    val_dataset: Dataset[Any] | None,
    round_cost: int,
    shuffled: bool,
) -> AsyncGenerator[Session]:
    """A block that has the folder of the run, which was checked, and begun or found in the store.

    Args:
        algorithm: Has store and resources.
        options: Those that all prompt optimisers have.
        written: Options of this one; a run is continued only with the same.
        train_dataset: For the search.
        val_dataset: For the decision.
        round_cost: Evaluations that the smallest search takes.
        shuffled: See ``Evaluator``.

    Raises:
        ConfigError: Something is wrong or too small; nothing was spent.
    """
    train, held_out = _datasets(options.title, train_dataset, val_dataset)
    rule = Rule(options.confidence, options.smallest_gain, options.max_repeats)
    rule.check(len(held_out))
    _check_budget(options, rule, len(held_out), round_cost)
    resources = dict(algorithm.get_initial_resources() or {})
    templates = _targets(options, resources)
    folder = run_folder(algorithm, options.run_dir, options.name)
    check_algorithm(folder, options.name)
    with hold_run(folder):
        if read_generation(folder) is None and (folder / "metrics.jsonl").exists():
            raise ConfigError(
                f"{options.name}: {str(folder)!r} has a metrics.jsonl of somebody else. Give "
                "another run_dir"
            )
        journal = Journal(algorithm.get_store(), options.run_name, options.name)
        seed = Candidate(SEED, {name: template.template for name, template in templates.items()})
        await journal.begin(
            {
                **written,
                "seed prompts": dict(seed.texts),
                "engines": {name: template.engine for name, template in templates.items()},
                "train_dataset": digest(train),
                "val_dataset": digest(held_out),
                "seed": options.seed,
                "rule": asdict(rule),
                "max_evaluations": options.max_evaluations,
                "reward_range": list(options.reward_range),
            }
        )
        others = {name: value for name, value in resources.items() if name not in templates}
        proxy = algorithm.get_llm_proxy()
        if proxy is not None and not any(
            r.resource_type != "prompt_template" for r in others.values()
        ):
            others["llm"] = proxy.as_resource()
        evaluator = Evaluator(
            journal=journal,
            tasks={"search": train, "held_out": held_out},
            options=options,
            is_budget_spent=algorithm.is_budget_spent,
            gateway=proxy,
            shuffled=shuffled,
        )
        begin_generation(folder, algorithm=options.name)
        report = Report(algorithm, options.name, folder, 0, 0, show_progress=False)
        report.go_back(0, False, ())  # a run that goes on plays its rounds again
        session = Session(
            algorithm, options, rule, journal, evaluator, templates, others, seed, seed, report
        )
        await session.publish(seed)
        await session.renew()
        yield session


def _datasets(
    owner: str, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
) -> tuple[list[Any], list[Any]]:
    train, val = (
        [] if dataset is None else [dataset[index] for index in range(len(dataset))]
        for dataset in (train_dataset, val_dataset)
    )
    for given, what in ((train, "train_dataset"), (val, "val_dataset")):
        if not given:
            raise ConfigError(
                f"{owner}: there is no {what}. It searches with train_dataset and decides with "
                "val_dataset; give both to fit()"
            )
    # A copy is no further witness: the decision takes tasks for drawn independently.
    different = {digest([task]): task for task in val}
    seen = {digest([task]) for task in train}
    held_out = [task for one, task in different.items() if one not in seen]
    if len(held_out) < len(val):
        logger.warning(
            "%d of %d tasks of val_dataset have no part in the decision: %d are in train_dataset "
            "too, and so not held out, and %d are copies of others",
            len(val) - len(held_out),
            len(val),
            len(different) - len(held_out),
            len(val) - len(different),
        )
    return train, held_out


def _check_budget(options: Options, rule: Rule, num_held_out: int, round_cost: int) -> None:
    most = options.max_evaluations
    pairs = rule.pairs(num_held_out)
    needed = 2 * pairs + round_cost
    if most is not None and most < needed:
        raise ConfigError(
            f"{options.title}: max_evaluations={most} is too small to conclude: the decision "
            f"plans {pairs} pairs of evaluations to find a gain of {rule.smallest_gain:g}, "
            f"and the smallest search takes {round_cost}. Give max_evaluations={needed} or more, "
            "or a larger smallest_gain"
        )


def _targets(options: Options, resources: NamedResources) -> dict[str, PromptTemplate]:
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
