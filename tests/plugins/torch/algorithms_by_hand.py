"""The gains and losses of every algorithm, written once more, in NumPy and token by token.

Gradients are central differences in double precision; what has no gradient is taken at ``at``.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Batch:
    """Rows of rollouts, each a list of its sampled tokens."""

    rollouts: list[str]
    """Per row, whose it is."""
    old: list[np.ndarray]
    advantages: list[np.ndarray]
    reference: list[np.ndarray]

    def split(self, values):
        ends = np.cumsum([len(one) for one in self.old])[:-1]
        return np.split(np.asarray(values, dtype=np.float64), ends)


def bounded(ratio, advantage, low, high, cap, at):
    """The clipped surrogate; beyond the cap a straight line in the log-probability."""
    if advantage < 0 and at > cap:
        return cap * advantage * (1 + math.log(ratio) - math.log(at))
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def gains(name, batch, new, at, low, high, cap):
    """Per row, per token; RLOO's are shared out, GSPO's are the same for all tokens of a row."""
    found = []
    for now, then, old, advantages in zip(
        batch.split(new), batch.split(at), batch.old, batch.advantages, strict=True
    ):
        n = len(old)
        row = []
        for t in range(n):
            over = {"rloo": slice(None), "gspo": slice(None)}.get(name, slice(t, t + 1))
            size = n if name == "gspo" else 1
            ratio = math.exp((now[over] - old[over]).sum() / size)
            ratio_at = math.exp((then[over] - old[over]).sum() / size)
            if name == "cispo":
                row.append(min(ratio_at, cap) * advantages[t] * now[t])
            else:
                one = bounded(ratio, advantages[t], low, high, cap, ratio_at)
                row.append(one / n if name == "rloo" else one)
        found.append(row)
    return found


def loss(name, batch, new, at, *, mean, constant, low, high, cap, kl):
    """Of the whole batch."""
    tokens = {}
    for rollout, old in zip(batch.rollouts, batch.old, strict=True):
        tokens[rollout] = tokens.get(rollout, 0) + len(old)
    total = 0.0
    each = gains(name, batch, new, at, low, high, cap)
    for rollout, row, now, reference, old in zip(
        batch.rollouts, each, batch.split(new), batch.reference, batch.old, strict=True
    ):
        weight = {
            "grpo": 1 / (tokens[rollout] * len(tokens)),
            "dapo": 1 / sum(tokens.values()),
            "dr_grpo": 1 / ((constant or 1) * len(tokens)),
        }[mean]
        for gain, logprob, start, before in zip(row, now, reference, old, strict=True):
            gap = start - logprob
            k3 = math.exp(logprob - before) * (math.exp(gap) - gap - 1)
            total += weight * (kl * k3 - gain)
    return total


def gradient(function, at, step=1e-6):
    """Of ``function(new)`` at ``at``."""
    found = []
    for number in range(len(at)):
        shift = np.zeros(len(at))
        shift[number] = step
        found.append((function(at + shift) - function(at - shift)) / (2 * step))
    return np.array(found)
