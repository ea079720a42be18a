"""The learning rate, which changes from update to update."""

import math

from agl_torch.options import Schedule


def learning_factor(schedule: Schedule, done: int, steps: int) -> float:
    """What the learning rate of the next update is multiplied by.

    Args:
        schedule: How it changes.
        done: Updates before it.
        steps: Of the run; those that train nothing are no updates, so that the end may not be
            reached.

    Example:
        Two steps of warm-up and ``linear`` over 6 steps give 1/2, 1, 1, 3/4, 1/2, 1/4.
    """
    warmup_steps = schedule.warmup_steps
    if done < warmup_steps:
        return (done + 1) / warmup_steps
    left = max(0.0, 1.0 - (done - warmup_steps) / (steps - warmup_steps))
    if schedule.type == "linear":
        return left
    return 1.0 if schedule.type == "constant" else (1.0 - math.cos(math.pi * left)) / 2
