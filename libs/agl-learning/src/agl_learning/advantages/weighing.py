"""How much each call of a collection counts: an estimator, by name, over its usable rows.

The default, ``grpo``, is ``group_advantages`` and needs no torch. The others are those of
``estimators``: siblings are the rollouts of one task, and a call has the advantage of its tokens,
or the mean of theirs where they differ, as by a critic; a row has each of them then.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from importlib.util import find_spec
from operator import itemgetter
from typing import Any, Literal, cast

from agl.errors import ConfigError
from agl.utils.checks import check_numbers
from agl_learning.advantages.estimator_option import (
    ACROSS_TASKS,
    DEFAULT,
    Estimated,
    Estimator,
    Foresee,
    check_estimator,
)
from agl_learning.advantages.group_advantages import moments, sibling_advantages
from agl_learning.advantages.overlong_penalty import Overlong, check_overlong, punished
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import Usable, usable_rows
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import TrainingRow
from agl_records.types import Advantage
from agl_runs.options import check_options

IdleReason = Literal["solved", "draw", ""]


@dataclass(kw_only=True, eq=False, repr=False)
class WeighingOptions:
    """How rewards become advantages.

    Args:
        estimator: How advantages are computed.
        overlong: What long answers cost. To train no answer that was cut off, give the adapter:
            ``{type: rows, truncated: mask}``.
        max_tokens: Of one answer.
    """

    estimator: Estimator = Estimator()
    overlong: Overlong = Overlong()
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        check_options("WeighingOptions", self)

    def check_copies(self, owner: str, **copies: Any) -> None:
        """Refuse a single rollout per task, by its option, where siblings are compared.

        Raises:
            ConfigError: It names the option and the estimator.
        """
        name = self.estimator.type
        if name not in ACROSS_TASKS and ":" not in name:  # one's own may look at the whole step
            try:
                check_numbers(owner, least=2, **copies)
            except ConfigError as error:
                raise ConfigError(
                    f"{error}: estimator {name!r} compares rollouts of one task"
                ) from None

    def idle_reason(self, collected: Collected) -> IdleReason:
        """Why nothing was trained although at least two rollouts were compared; "" is no such case.

        ``solved``: equal rewards are all that kept usable rows from being trained. What the
        collection has besides, such as a judge's calls, does not matter; but most rollouts must not
        have failed, and none lack what is compared.

        ``draw``: rewards differ, and still no rollout has an advantage. With ``grpo_passk`` it
        happens often: where two siblings are the best. It is no sign that something is wrong, and
        none that there is nothing left to learn.
        """
        groups = {one.rollout.rollout_id: one.group for one in collected.ended}
        compared: dict[int, set[str]] = {}
        rewards: dict[tuple[int, str], list[list[float]]] = {}
        for one in collected.ledger.exclusions:
            if one.reason == "zero_advantage":
                across = self.estimator.type in ACROSS_TASKS
                group = 0 if across else groups[one.rollout_id]
                compared.setdefault(group, set()).add(one.rollout_id)
                if one.credit is not None:
                    key = (group, one.credit.group)
                    rewards.setdefault(key, []).append([one.credit.reward or 0.0])
        if collected.ledger.trained or max(map(len, compared.values()), default=0) < 2:
            return ""
        # As coarse as the estimators, which keep seven digits.
        if any(moments(each, 1e-6).std > 0 for each in rewards.values()):
            return "draw"
        lacks = self.estimator.rewards and "no_reward" in collected.ledger.reasons()
        return "" if lacks or collected.num_failed * 2 >= len(collected.ended) else "solved"


def check_weighing(owner: str, options: Any) -> None:
    """Refuse options, as ``WeighingOptions`` has them, that do not fit each other or this machine.

    Raises:
        ConfigError: It names the options.
    """
    name: str = options.estimator.type
    default: Estimator = cast("Any", type(options)).estimator
    if options.estimator != default:
        check_estimator(owner, name)
    check_overlong(owner, options)
    if name != DEFAULT and find_spec("torch") is None:
        raise ConfigError(
            f"{owner}: estimator {name!r} needs torch, which is not installed. Run: pip install "
            f"torch, or take {DEFAULT!r}"
        )


@dataclass(frozen=True, eq=False)
class Weighed:
    """A row that is trained, and how much."""

    row: TrainingRow
    """Only the calls with an advantage."""
    advantages: list[Advantage]
    """One per call."""
    tokens: list[float] = field(default_factory=list[float])
    """Advantages of the sampled tokens, where those of a call differ; else empty."""
    returns: list[float] = field(default_factory=list[float])
    """What a critic is to expect before each of them; empty where there is none."""
    values: list[float] = field(default_factory=list[float])
    """What it expected."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rollout -> its sampled tokens without an advantage; of all that the row was compared with.

    They are not trained, and count in means. Without them a call would weigh more exactly where
    later calls came out as their siblings' did, and its gradient would not be that of the reward.
    """

    def copy(self) -> "Weighed":
        """One with lists of its own, for somebody who may change them."""
        own = {name: copy(value) for name, value in vars(self).items()}
        own["row"] = self.row.model_copy(update={name: copy(value) for name, value in self.row})
        return Weighed(**own)

    @property
    def of_tokens(self) -> list[float]:
        """The advantage of each sampled token."""
        if self.tokens:
            return self.tokens
        pairs = zip(self.row.call_ranges, self.advantages, strict=True)
        return [one.value for (start, end), one in pairs for _ in range(start, end)]


def weigh(
    collected: Collected,
    options: WeighingOptions,
    foresee: Foresee | None = None,
    *,
    is_whole: bool = False,
) -> list[Weighed]:
    """Rows with their advantages; every call goes into one bin of the ledger.

    Calls of failed rollouts and without reward are excluded, and those without advantage where the
    loss has no other term. A failed rollout does not count in the mean of its group either.

    Args:
        collected: What was collected.
        options: How rewards become advantages.
        foresee: What a model has to say of the rows that are weighed, before they are.
        is_whole: Whether the loss has terms beside the gain, which calls without advantage have.

    Raises:
        ConfigError: There is no such estimator; or it takes rewards of whole rollouts, and the
            credit rule tells calls apart; or no rollout has one of ``rewards``.
    """
    groups: dict[int, list[Usable]] = {}
    cut_off = {one.rollout_id for one in collected.ledger.exclusions if one.reason == "truncated"}
    usable = punished(usable_rows(collected), options, cut_off)
    for one, numbered in _with_dimensions(usable, options, collected.ledger):
        if options.estimator.type != DEFAULT:
            numbered = sorted(numbered, key=itemgetter(0))  # some need them in time
        groups.setdefault(one.group, []).append((one, numbered))
    members = [one for siblings in groups.values() for one in siblings]
    rows = [row for _, numbered in members for _, row in numbered]
    foreseen = foresee(rows) if foresee is not None and rows else None
    if rows and (foreseen is not None or options.estimator.type != DEFAULT):
        from agl_learning.advantages.estimation import estimate
        from agl_learning.advantages.estimators import find_estimator

        estimator = find_estimator(options.estimator.type)
        estimated_N = estimate(estimator, members, options, foreseen)
        equal = "its advantage is zero"
    else:
        estimated_N = list[list[Estimated]]()
        for siblings in groups.values():
            rows_G = [[row for _, row in numbered] for _, numbered in siblings]
            compared_G = sibling_advantages(rows_G, options.estimator.normalise_std)
            estimated_N += [[Estimated(of_row) for of_row in of_rows] for of_rows in compared_G]
        equal = "its reward equals the mean of its group"
    weighed: list[Weighed] = []
    kept_N, left_out = _trained(members, estimated_N, options, is_whole)
    for (_, numbered), of_rows, kept_D in zip(members, estimated_N, kept_N, strict=True):
        for (number, row), found, kept in zip(numbered, of_rows, kept_D, strict=True):
            _book(row, found.advantages, kept, number, collected.ledger, equal)
            if kept:
                given = [found.advantages[n] for n in kept]
                parts = (found.tokens, found.returns, found.values)
                of_tokens = [[x for n in kept for x in part[n]] if part else [] for part in parts]
                weighed.append(Weighed(row.only(kept), given, *of_tokens, left_out=left_out))
    return weighed


def _trained(
    members: Sequence[Usable],
    estimated_N: Sequence[list[Estimated]],
    options: WeighingOptions,
    is_whole: bool,
) -> tuple[list[list[list[int]]], dict[str, int]]:
    """Per rollout and row the calls that are trained, and ``Weighed.left_out``.

    A task of which no call has an advantage does not count, and so makes no step smaller. Of others
    it is the calls with an advantage, and where the loss has terms besides, all of them.
    """
    kept_N = [[_taught(found) for found in of_rows] for of_rows in estimated_N]
    taught = {one.group for (one, _), kept in zip(members, kept_N, strict=True) if any(kept)}
    across = taught and options.estimator.type in ACROSS_TASKS
    left_out = Counter[str]()
    for (one, numbered), kept_D in zip(members, kept_N, strict=True):
        if not (across or one.group in taught):
            continue
        for (_, row), kept in zip(numbered, kept_D, strict=True):
            if is_whole:
                kept[:] = range(len(row.call_ids))
            left_out[row.rollout_id] += row.num_sampled - row.only(kept).num_sampled
    return kept_N, dict(+left_out)


def _taught(found: Estimated) -> list[int]:
    """The calls whose tokens have an advantage, or teach a critic."""
    tokens = found.tokens or [[advantage.value] for advantage in found.advantages]
    return [n for n, of_call in enumerate(tokens) if found.returns or any(of_call)]


def _with_dimensions(
    usable: Iterable[Usable], options: WeighingOptions, ledger: Ledger
) -> Iterable[Usable]:
    """Those whose reward has the dimensions that are compared; the others are excluded.

    Raises:
        ConfigError: None of them has one of the dimensions.
    """
    usable = list(usable)
    has = {key for one, _ in usable for key in one.rewards}
    for key in options.estimator.rewards or ():
        if usable and key not in has:
            raise ConfigError(
                f"rewards: no rollout of this step has a reward {key!r}; they have "
                f"{', '.join(sorted(has)) or 'none'}. Emit it, or correct rewards"
            )
    for one, numbered in usable:
        missing = [key for key in options.estimator.rewards or () if key not in one.rewards]
        if not missing:
            yield one, numbered
            continue
        why = f"its reward has no {missing[0]!r}, which rewards names; it has "
        for _, row in numbered:
            ledger.exclude_row(row, "no_reward", why + (", ".join(one.rewards) or "none"))


def _book(
    row: TrainingRow,
    advantages: Sequence[Advantage],
    kept: list[int],
    number: int,
    ledger: Ledger,
    equal: str,
) -> None:
    """Calls that are kept are trained, and the others are excluded."""
    for n, advantage in enumerate(advantages):
        if n not in kept:
            detail = f"{equal}: {advantage.because}"
            ledger.exclude_row(row.only([n]), "zero_advantage", detail, [advantage])
    if kept:
        ledger.train(row.only(kept), [advantages[n] for n in kept], number)
