"""What a run checks before it begins: its tasks, its budget, and what it is to improve."""

import logging
from typing import Any

from agl.errors import ConfigError
from agl.types import Dataset, NamedResources, PromptTemplate
from agl_apo.decision import Rule
from agl_apo.options import PromptOptions
from agl_apo.templates import BrokenTemplateError, placeholders
from agl_learning.collect.task_order import digest

logger = logging.getLogger("agl.apo")


def split_datasets(
    owner: str,
    train_dataset: Dataset[Any] | None,
    val_dataset: Dataset[Any] | None,
    *,
    tells: bool = False,
) -> tuple[list[Any], list[Any]]:
    """Tasks of the search, and those that are held out for the decision.

    Args:
        owner: What messages begin with.
        val_dataset: Those of it that are no copies, and not in the other, are held out.
        tells: Whether the log says how many are not.

    Raises:
        ConfigError: One of the datasets is missing or empty.
    """
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
    if tells and len(held_out) < len(val):
        logger.warning(
            "%d of %d tasks of val_dataset have no part in the decision: %d are in train_dataset "
            "too, and so not held out, and %d are copies of others",
            len(val) - len(held_out),
            len(val),
            len(different) - len(held_out),
            len(val) - len(different),
        )
    return train, held_out


def check_budget(options: PromptOptions, rule: Rule, num_held_out: int, round_cost: int) -> None:
    """Refuse a budget that cannot conclude.

    Raises:
        ConfigError: It is too small; says what would do.
    """
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
