"""How a run begins: the request is checked as a whole, and a run of the store is found again."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agl.errors import ConfigError
from agl.types import Dataset, NamedResources, PromptTemplate
from agl_apo.evaluate import Candidate, Evaluator
from agl_apo.journal import SEED, Journal
from agl_apo.session import Session, Setup
from agl_apo.templates import BrokenTemplateError, placeholders

if TYPE_CHECKING:
    from agl.algorithm.base import Algorithm

logger = logging.getLogger("agl.apo")


async def open_session(
    algorithm: "Algorithm",
    setup: Setup,
    options: Mapping[str, Any],
    train_dataset: Dataset[Any] | None,
    val_dataset: Dataset[Any] | None,
    round_cost: int,
    shuffled: bool = True,
) -> Session:
    """Check the request, and begin or find the run in the store.

    Args:
        algorithm: Has store and resources.
        setup: Options of both algorithms.
        options: Options of this one; a run is continued only with the same.
        train_dataset: For the search.
        val_dataset: For the decision.
        round_cost: Evaluations that the smallest search takes.
        shuffled: See ``Evaluator``.

    Raises:
        ConfigError: Something is wrong or too small; nothing was spent.
    """
    train, held_out = _datasets(setup.algorithm, train_dataset, val_dataset)
    setup.rule.check(len(held_out))
    _check_budget(setup, len(held_out), round_cost)
    resources = dict(algorithm.get_initial_resources() or {})
    templates = _targets(setup, resources)
    journal = Journal(algorithm.get_store(), setup.run_name, setup.algorithm)
    seed = Candidate(SEED, {name: template.template for name, template in templates.items()})
    await journal.begin(
        {
            **options,
            "seed prompts": dict(seed.texts),
            "engines": {name: template.engine for name, template in templates.items()},
            "train_dataset": _digest(train),
            "val_dataset": _digest(held_out),
            "seed": setup.seed,
            "rule": asdict(setup.rule),
            "max_evaluations": setup.max_evaluations,
            "reward_range": list(setup.limits.reward_range),
        }
    )
    others = {name: value for name, value in resources.items() if name not in templates}
    proxy = algorithm.get_llm_proxy()
    if proxy is not None and not any(r.resource_type != "prompt_template" for r in others.values()):
        others["llm"] = proxy.as_resource()
    evaluator = Evaluator(
        journal=journal,
        tasks={"search": train, "held_out": held_out},
        seed=setup.seed,
        limits=setup.limits,
        is_budget_spent=algorithm.is_budget_spent,
        gateway=proxy,
        shuffled=shuffled,
    )
    session = Session(algorithm, setup, journal, evaluator, templates, others, seed, seed)
    await session.publish(seed)
    await session.renew()
    return session


def _datasets(
    name: str, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
) -> tuple[list[Any], list[Any]]:
    train, val = (
        [] if dataset is None else [dataset[index] for index in range(len(dataset))]
        for dataset in (train_dataset, val_dataset)
    )
    for given, what in ((train, "train_dataset"), (val, "val_dataset")):
        if not given:
            raise ConfigError(
                f"{name}: there is no {what}. It searches with train_dataset and decides with "
                "val_dataset; give both to fit()"
            )
    # A copy is no further witness: the decision takes tasks for drawn independently.
    different = {_digest(task): task for task in val}
    seen = {_digest(task) for task in train}
    held_out = [task for digest, task in different.items() if digest not in seen]
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


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_budget(setup: Setup, num_held_out: int, round_cost: int) -> None:
    most = setup.max_evaluations
    pairs = setup.rule.pairs(num_held_out)
    needed = 2 * pairs + round_cost
    if most is not None and most < needed:
        raise ConfigError(
            f"{setup.algorithm}: max_evaluations={most} is too small to conclude: the decision "
            f"plans {pairs} pairs of evaluations to find a gain of {setup.rule.smallest_gain:g}, "
            f"and the smallest search takes {round_cost}. Give max_evaluations={needed} or more, "
            "or a larger smallest_gain"
        )


def _targets(setup: Setup, resources: NamedResources) -> dict[str, PromptTemplate]:
    prompts = {
        name: resource for name, resource in resources.items()
        if isinstance(resource, PromptTemplate)
    }  # fmt: skip
    if not prompts:
        raise ConfigError(
            f"{setup.algorithm}: there is no PromptTemplate to improve. Give one: "
            "Trainer(initial_resources={'prompt_template': agl.PromptTemplate(template=...)}), or "
            "the key resources in agl.yaml"
        )
    names = list(prompts) if setup.targets is None else list(setup.targets)
    for name in names:
        if name not in prompts:
            raise ConfigError(
                f"{setup.algorithm}: targets: there is no PromptTemplate {name!r}; there is "
                f"{', '.join(map(repr, prompts))}"
            )
        try:
            placeholders(prompts[name])
        except BrokenTemplateError as error:
            raise ConfigError(
                f"prompt {name!r} is no {prompts[name].engine} template: {error}"
            ) from None
    return {name: prompts[name] for name in names}
