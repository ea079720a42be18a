"""What can be said of every training: what it evaluates, its folder, its limits."""

import logging
from collections.abc import Sized
from dataclasses import dataclass, fields
from typing import Annotated, Any

from agl.errors import ConfigError
from agl_records.options import AboveZero, Count, Name, NotNegative, check_credit
from agl_runs.infrastructure import InfrastructureFailures

logger = logging.getLogger("agl.learning")

Credit = Annotated[str | dict[str, Any] | None, check_credit]


@dataclass(kw_only=True, eq=False, repr=False)
class LoopOptions:
    """What can be said of every training.

    Args:
        temperature: At which rollouts are sampled; the gateway has the agent use it.
        max_tokens: Of one answer, where the agent sets no limit.
        eval_every: Evaluate on the validation tasks after so many steps; in any case before the
            first and after the last. Without such tasks it is refused, like the next two.
        eval_temperature: Of evaluations; 0 takes the most probable token.
        eval_copies: How often each validation task runs, as for ``val/pass@k``.
        seed: Of tasks' order, sampling, selection and training.
        deterministic: Runs with one seed are equal bit for bit, where our own server answers (agl
            serve) and our own code trains; it costs time. See docs/explanation/reproducibility.md.
        run_dir: Folder for what the training writes; None takes that of the run (``run_dir`` of the
            file or the trainer), and where it has none a new one under ``agl-runs``.
        resource_name: Name of the resource that the agent gets.
        rollout_timeout_seconds: Limit of one attempt; None has no limit.
        unresponsive_seconds: A rollout whose runner is silent for longer is tried once more, by
            whichever runner is there; None waits for the limit above.
        credit: The credit rule, which says which call gets how much of which reward: its name, or
            a dict of ``type`` and options. None leaves it to the adapter, whose default is
            ``final``.
        infrastructure_failures: What becomes of a rollout that succeeded although servers or the
            network failed a model call of it: ``exclude`` it, ``drop_group`` (all rollouts of its
            task), or ``keep`` it.
        show_progress: A bar on standard error, or log lines where that is no terminal.
    """

    safe_options = frozenset({"eval_every", "eval_copies", "show_progress", "unresponsive_seconds"})

    temperature: NotNegative = 1.0
    max_tokens: Count | None = None
    eval_every: Count | None = None
    eval_temperature: NotNegative = 0.0
    eval_copies: Count = 1
    seed: int = 0
    deterministic: bool = False
    run_dir: str | None = None
    resource_name: Name = "main_llm"
    rollout_timeout_seconds: AboveZero | None = 300.0
    unresponsive_seconds: AboveZero | None = 60.0
    credit: Credit = None
    infrastructure_failures: InfrastructureFailures = "exclude"
    show_progress: bool = True


def check_evaluation(owner: str, options: Any, val: Sized | None) -> None:
    """Refuse options of evaluations where there are none.

    Args:
        owner: Whose options they are.
        options: ``LoopOptions``.
        val: The tasks of evaluations.

    Raises:
        ConfigError: It names the first of them that is not its default.
    """
    if val is not None and len(val) > 0:
        return
    for name, value in _set(options, "eval_every", "eval_copies", "eval_temperature"):
        raise ConfigError(
            f"{owner}: {name} is {value}, and there are no validation tasks to evaluate on. Give "
            f"some (val in a file, val_dataset in Python), or leave {name} out"
        )


def warn_of_intervals(owner: str, options: Any, steps: int) -> None:
    """Say what comes of an interval that no step ends: somebody tries a file with fewer steps."""
    for name, value in _set(options, "eval_every", "checkpoint_every"):
        if value > steps:
            logger.warning(
                "%s: %s is %d, and the run has %d steps: it does nothing, beside what is done at "
                "the end in any case",
                *(owner, name, value, steps),
            )


def _set(options: Any, *names: str) -> list[tuple[str, Any]]:
    """Those that are there, and have another value than their default."""
    found = ((one, getattr(options, one.name)) for one in fields(options) if one.name in names)
    return [(one.name, value) for one, value in found if value != one.default]
