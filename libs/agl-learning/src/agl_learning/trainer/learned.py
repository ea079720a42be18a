"""What comes of a step."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any, cast

from agl.errors import AlgorithmError
from agl_learning.advantages.weighing import Weighed
from agl_learning.reports.json_lines import is_number
from agl_records.ledger.ledger import Ledger
from agl_records.types import CallKey, ExclusionReason

logger = logging.getLogger("agl.learning")

OF_THE_LOOP = {"step", "generation", "time/step", "time/idle", "time/sampling"}
"""Metrics that the loop adds to those of a step's training."""


@dataclass
class Learned:
    """What a step has learned."""

    metrics: dict[str, Any]
    trained: bool = True
    """Whether anything was."""
    rows: list[str] = field(default_factory=list[str])
    """Digests of the rows, or examples, that were trained, in their order."""
    rollout_ids: list[str] = field(default_factory=list[str])
    """Of which rollout each is, if that is known."""


def read_update(
    owner: str, updated: Any, rows: list[Weighed]
) -> tuple[dict[str, Any], list[Weighed]]:
    """The metrics that an update returned, None for NaN and infinity, and the rows that it used.

    Raises:
        AlgorithmError: It returned something else, or a metric that is no number.
    """
    pair = cast("tuple[Any, ...]", updated if isinstance(updated, tuple) else (updated, rows))
    learned, used = pair if len(pair) == 2 else (None, None)
    if not isinstance(learned, Mapping) or not isinstance(used, Iterable):
        raise AlgorithmError(
            f"update of {owner}: expected a dict of metrics, or that and the rows used; got "
            f"{short(cast('object', updated))}"
        )
    metrics: dict[str, Any] = {}
    for name, value in cast("Mapping[Any, Any]", learned).items():
        with suppress(AttributeError, TypeError, ValueError, RuntimeError):
            value = value.item()  # of numpy or torch
        is_finite = not isinstance(value, int) or is_number(value)  # as readers have it
        of_kind = isinstance(value, int | float | None) and isinstance(name, str)
        if not of_kind or not is_finite:
            raise AlgorithmError(
                f"update of {owner}: metric {name!r} is {short(value)} ({type(value).__name__}); "
                "expected a name and a number"
            )
        metrics[name] = value
    return only_finite(f"update of {owner}", metrics), list(cast("Iterable[Weighed]", used))


def only_finite(whose: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with None for NaN and infinity, which a warning names."""
    kept = {**metrics}
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            logger.warning("%s: metric %r is %s; it is left out", whose, name, value)
            kept[name] = None
    return kept


def check_names(owner: str, learned: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a metric of an update that has the name of one of the loop's ``own``."""
    for name in learned:
        if name in own or name in OF_THE_LOOP or name.startswith("val/"):
            raise AlgorithmError(
                f"update of {owner}: the loop has a metric {name!r} of its own. Give this one "
                "another name"
            )


def leave_out(
    ledger: Ledger,
    rows: Sequence[Weighed],
    used: Sequence[Weighed],
    why: Callable[[str], tuple[ExclusionReason, str]],
) -> None:
    """Say of the rows that an update did not use that they were not trained, and by model why.

    Raises:
        AlgorithmError: It says that it used others than it was given.
    """
    taken = {id(one) for one in used}
    if unknown := taken - {id(one) for one in rows}:
        raise AlgorithmError(
            f"update returned {len(unknown)} rows that it was not given. Return some of those that "
            "it was"
        )
    left = [one for one in rows if id(one) not in taken]
    ledger.exclude_trained({key: why(one.row.model or "") for one in left for key in _calls([one])})


def read_weighed(owner: str, weighed: Any, ledger: Ledger) -> list[Weighed]:
    """The rows that ``weigh`` returned; calls booked as trained that are in none are left out.

    Raises:
        AlgorithmError: It returned something else, or calls twice, or ones that it did not book.
    """
    if not isinstance(weighed, Iterable):
        raise AlgorithmError(f"weigh of {owner}: expected a list of rows; got {short(weighed)}")
    rows = list(cast("Iterable[Weighed]", weighed))
    calls, booked = _calls(rows), {item.key for item in ledger.trained}
    if len(twice := {*calls}) < len(calls):
        raise AlgorithmError(f"weigh of {owner}: {len(calls) - len(twice)} calls are in two rows")
    if unknown := twice - booked:
        raise AlgorithmError(
            f"weigh of {owner}: {len(unknown)} calls, {min(unknown)[2]!r} among them, are in its "
            "rows and not among those that the ledger has as trained"
        )
    left_out: tuple[ExclusionReason, str] = ("not_selected", "weigh left its row out")
    ledger.exclude_trained(dict.fromkeys(booked - twice, left_out))
    return rows


def _calls(rows: Iterable[Weighed]) -> list[CallKey]:
    each = (one.row for one in rows)
    return [(row.rollout_id, row.attempt_id, one) for row in each for one in row.call_ids]
