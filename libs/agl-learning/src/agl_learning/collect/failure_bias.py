"""The bias meter: how far the rollouts that failures left out move what is learned.

Of the rollouts of a step, ``n_g`` of task g were to count, ``k_g`` of them were kept, ``m_g`` is
the mean of their rewards r, and ``s`` the deviation of all of these. Both parts are in units of
``s``, as advantages are, and a positive number says that rewards look better than they are:

    by task     (sum k_g m_g / sum k_g - sum n_g m_g / sum n_g) / s
    by length   -b sum (x_i - 1) / (s sum n_g), i over those left out

The first is how far the mean reward of what is kept is from that of what was asked for, if each
rollout left out had had the mean of its task: the covariance, over the rollouts asked for, of
``k_g / n_g`` and ``m_g``, over the mean of ``k_g / n_g``. The second is what comes to it if reward
goes with length within a task: x is a rollout's sampled tokens over the mean of those kept of its
task, ``b`` the slope of ``r - m_g`` over x, and ``x_i`` the length that one left out would have
had. An agent or a grader failed after its last answer: its own. A server broke it off: the mean x
of those kept that came as far. It ran out of time: the greatest x kept.

What servers break off is taken to be hit at random in time, so that long rollouts are hit more
often than short ones. Where the length has no say in it, as where each call fails alike, the second
part is too high: 0.03 where a fifth is lost and wrong answers are 1.7 times as long as right ones.

Where failures hit at random both are 0 but for chance, whose standard error is, with K kept of N,
``sqrt(var(m_g) (N - K) / (K (N - 1)) + b^2 var(x) (N - K) / N^2) / s``. Of a task of which nothing
was kept no reward is known: it is counted, and is in neither part.

Source: the bias of nonresponse as a covariance (J. Bethlehem, "Reduction of nonresponse bias
through regression estimation", Journal of Official Statistics 4, 1988); what was broken off has the
lengths of those that came as far (B. Efron, "The two sample problem with censored data", 1967).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, linear_regression, pstdev, pvariance

from agl_learning.collect.results import Ended


def failure_metrics(ended: Sequence[Ended]) -> dict[str, float]:
    """What failures left out of a step, and the bias of that.

    Returns:
        ``failures/excluded``, rollouts; ``failures/tasks_lost``, those tasks of which nothing was
        kept; ``failures/bias``, the sum of ``failures/bias_task`` and ``failures/bias_length``,
        with its standard error ``failures/bias_error``. No bias where rewards do not differ, and
        nothing where no failure left anything out.
    """
    asked = [one for one in ended if _is_kept(one) or _is_left_out(one)]
    number = sum(not _is_kept(one) for one in asked)
    if not number:
        return {}
    groups, rewards = defaultdict[int, list[Ended]](list), defaultdict[int, list[float]](list)
    for one in asked:
        groups[one.group].append(one)
        # A sibling that is left out with its group has one, too.
        if (reward := _reward(one)) is not None:
            rewards[one.group].append(reward)
    lost = len(groups) - len(rewards)
    found = {"failures/excluded": float(number), "failures/tasks_lost": float(lost)}
    of_kept, of_asked = list[float](), list[float]()
    lengths, gains, left_out = list[float](), list[float](), list[tuple[Ended, float]]()
    for task, known in rewards.items():
        mean = fmean(known)
        length = fmean(_tokens(one) for one in groups[task] if _reward(one) is not None) or 1.0
        for one in groups[task]:
            of_asked.append(mean)
            of_kept += [mean] * _is_kept(one)
            if (reward := _reward(one)) is None:
                left_out.append((one, _tokens(one) / length))
            else:
                lengths.append(_tokens(one) / length)
                gains.append(reward - mean)
    deviation = pstdev([reward for known in rewards.values() for reward in known] or [0.0])
    if not of_kept or not deviation:
        return found
    slope = linear_regression(lengths, gains).slope if len({*lengths}) > 1 else 0.0
    missing = math.fsum(_length(one, x, lengths) - 1 for one, x in left_out)
    kept, whole = len(of_kept), len(of_asked)
    by_task, by_length = fmean(of_kept) - fmean(of_asked), -slope * missing / whole
    variance = pvariance(of_asked) * (whole - kept) / (kept * max(1, whole - 1))
    variance += slope**2 * pvariance(lengths) * (whole - kept) / whole**2
    return found | {
        "failures/bias": (by_task + by_length) / deviation,
        "failures/bias_task": by_task / deviation,
        "failures/bias_length": by_length / deviation,
        "failures/bias_error": math.sqrt(variance) / deviation,
    }


def _reward(one: Ended) -> float | None:
    """The reward that it is trained with; none of one that failed before any call could be."""
    return one.reward if one.rows or one.failed is None else None


def _is_kept(one: Ended) -> bool:
    return one.unusable is None and _reward(one) is not None


def _is_left_out(one: Ended) -> bool:
    return one.failed is not None or (
        one.unusable is not None and one.unusable[0] == "unused_group"
    )


def _tokens(one: Ended) -> int:
    return sum(row.num_sampled for row in one.rows) + one.tokens_left_out[0]


def _length(one: Ended, reached: float, lengths: Sequence[float]) -> float:
    """How long it would have become, relative to those kept of its task."""
    kind = one.failed.kind if one.failed else ""
    if kind == "timeout":
        return max(lengths)
    if kind in ("agent", "grader"):
        return min(max(reached, min(lengths)), max(lengths)) if reached else 1.0
    return fmean([x for x in lengths if x >= reached] or [reached])
