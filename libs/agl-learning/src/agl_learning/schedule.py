"""What changes from update to update: the learning rate, and the penalty on the divergence."""

import math

MOST = 0.2
"""The divergence counts as at most so much off its target, as a part of it."""
STEP = 0.1
"""By this part of that the coefficient changes."""


def learning_factor(schedule: str, warmup_steps: int, done: int, steps: int) -> float:
    """What the learning rate of the next update is multiplied by.

    Args:
        schedule: After the warm-up: ``constant``, ``linear`` or ``cosine``.
        warmup_steps: Updates in which it rises in a line.
        done: Updates before it.
        steps: Of the run; those that train nothing are no updates, so that the end may not be
            reached.

    Example:
        Two steps of warm-up and ``linear`` over 6 steps give 1/2, 1, 1, 3/4, 1/2, 1/4.
    """
    if done < warmup_steps:
        return (done + 1) / warmup_steps
    left = max(0.0, 1.0 - (done - warmup_steps) / (steps - warmup_steps))
    if schedule == "linear":
        return left
    return 1.0 if schedule == "constant" else (1.0 - math.cos(math.pi * left)) / 2


def next_coefficient(coefficient: float, kl: float, target: float | None) -> float:
    """The penalty's coefficient after an update in which the divergence was ``kl``.

    Source: Ziegler et al. (arXiv:1909.08593), 2.2, with their gain of 0.1.

    Example:
        With target 0.1 and a divergence of 0.11, 10 % too much: the coefficient grows by 1 %. At a
        divergence of 5 it grows by 2 %, and at 0 it shrinks by 2 %.
    """
    if target is None:
        return coefficient
    return coefficient * (1 + STEP * min(max(kl / target - 1, -MOST), MOST))
