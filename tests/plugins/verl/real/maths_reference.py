"""The mathematics of agl-verl once more, in NumPy and by hand: loops over rollouts and tokens.

Written from the papers' formulas, not from the code under test; float64 throughout. A batch is a
list of ``Rollout``; results are per rollout an array over its sampled tokens, in order of time.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Call:
    """One call, at sampled tokens ``start`` to ``end`` of its rollout."""

    start: int
    end: int
    reward: float
    group: str = ""
    step: tuple[str, float, float] | None = None
    """Group, reward, weight."""


@dataclass
class Rollout:
    """A rollout; ``masks`` has one list of 0 and 1 per row."""

    task: str
    reward: float
    masks: list[list[int]]
    values: Array = field(default_factory=lambda: np.zeros(0))
    penalties: Array = field(default_factory=lambda: np.zeros(0))
    old: Array = field(default_factory=lambda: np.zeros(0))
    sum_pi_squared: Array = field(default_factory=lambda: np.zeros(0))
    dimensions: dict[str, float] = field(default_factory=dict)
    calls: list[Call] | None = None

    @property
    def length(self) -> int:
        return sum(map(sum, self.masks))

    @property
    def whole(self) -> float:
        """Its reward, with what a KL penalty takes off it."""
        return self.reward + (float(self.penalties.sum()) if len(self.penalties) else 0.0)

    @property
    def in_time(self) -> Array:
        rewards = self.penalties.copy() if len(self.penalties) else np.zeros(self.length)
        if self.length:
            rewards[-1] += self.reward
        return rewards


def siblings(batch: list[Rollout], one: Rollout) -> list[Rollout]:
    return [other for other in batch if other.task == one.task]


def spread(batch: list[Rollout], per_rollout: list[float]) -> list[Array]:
    return [np.full(r.length, a) for r, a in zip(batch, per_rollout, strict=True)]


def deviation(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def grpo(batch: list[Rollout], normalise: bool = True) -> list[Array]:
    result: list[float] = []
    for one in batch:
        rewards = [r.whole for r in siblings(batch, one)]
        std = deviation(rewards)
        if std < 1e-8:
            result.append(0.0)
        else:
            result.append((one.whole - np.mean(rewards)) / (std + 1e-6 if normalise else 1.0))
    return spread(batch, result)


def rloo(batch: list[Rollout]) -> list[Array]:
    result: list[float] = []
    for one in batch:
        others = [r.whole for r in siblings(batch, one) if r is not one]
        result.append(one.whole - float(np.mean(others)) if others else 0.0)
    return spread(batch, result)


def opo(batch: list[Rollout]) -> list[Array]:
    result: list[float] = []
    for one in batch:
        group = siblings(batch, one)
        tokens = sum(r.length for r in group)
        baseline = sum(r.length * r.whole for r in group) / tokens
        result.append(one.whole - baseline if len(group) > 1 else 0.0)
    return spread(batch, result)


def gpg(batch: list[Rollout]) -> list[Array]:
    nonzero = sum(1 for r in batch if np.float32(r.whole) != 0)
    alpha = len(batch) / max(1, nonzero)
    return [alpha * a for a in grpo(batch, normalise=False)]


def grpo_passk(batch: list[Rollout]) -> list[Array]:
    result = [0.0] * len(batch)
    for task in {r.task for r in batch}:
        members = [i for i, r in enumerate(batch) if r.task == task]
        std = deviation([batch[i].whole for i in members])
        if std < 1e-8:
            continue
        first, second = sorted(members, key=lambda i: batch[i].whole, reverse=True)[:2]
        result[first] = (batch[first].whole - batch[second].whole) / (std + 1e-6)
    return spread(batch, result)


def whitened(values: list[Array]) -> list[Array]:
    """Each rollout weighs the same, its tokens alike; the variance is unbiased."""
    number = sum(1 for of_rollout in values if len(of_rollout))
    w = np.concatenate([np.full(len(v), 1.0 / max(1, number * len(v))) for v in values])
    x = np.concatenate(values)
    mean = float((w * x).sum())
    free = 1 - float((w * w).sum())
    if free < 1e-8:
        return [np.zeros_like(v) for v in values]
    variance = float((w * (x - mean) ** 2).sum()) / free
    return [(v - mean) / math.sqrt(variance + 1e-8) for v in values]


def reinforce_plus_plus_baseline(batch: list[Rollout]) -> list[Array]:
    return whitened(grpo(batch, normalise=False))


def gdpo(batch: list[Rollout], keys: list[str], weighs: list[float]) -> list[Array]:
    total = [np.zeros(r.length) for r in batch]
    for key, weight in zip(keys, weighs, strict=True):
        of_key = [Rollout(r.task, r.dimensions[key], r.masks) for r in batch]
        for sum_, part in zip(total, grpo(of_key), strict=True):
            sum_ += weight * part
    return whitened(total)


def to_go(rewards: Array, gamma: float) -> Array:
    result = np.zeros(len(rewards))
    running = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * running
        result[t] = running
    return result


def reinforce_plus_plus(batch: list[Rollout], gamma: float) -> tuple[list[Array], list[Array]]:
    returns = [to_go(r.in_time, gamma) for r in batch]
    return whitened(returns), returns


def gae(batch: list[Rollout], gamma: float, lam: float) -> tuple[list[Array], list[Array]]:
    raw: list[Array] = []
    for one in batch:
        advantages = np.zeros(one.length)
        for t in range(one.length):
            # The definition: a sum over all later errors, without the recurrence.
            for k in range(t, one.length):
                following = one.values[k + 1] if k + 1 < one.length else 0.0
                error = one.in_time[k] + gamma * following - one.values[k]
                advantages[t] += (gamma * lam) ** (k - t) * error
        raw.append(advantages)
    returns = [a + r.values for a, r in zip(raw, batch, strict=True)]
    return whitened(raw), returns


def optimal_token_baseline(batch: list[Rollout]) -> tuple[list[Array], list[Array]]:
    returns = [to_go(r.in_time, 1.0) for r in batch]
    paths = [np.cumsum(1 - 2 * np.exp(r.old) + r.sum_pi_squared) for r in batch]
    advantages: list[Array] = []
    for i, one in enumerate(batch):
        members = [j for j, r in enumerate(batch) if r.task == one.task]
        values = np.zeros(one.length)
        for t in range(one.length):
            alive = [j for j in members if batch[j].length > t]
            baseline = 0.0
            if len(alive) > 1:
                weigh = sum(paths[j][t] for j in alive) + 1e-8
                baseline = sum(returns[j][t] * paths[j][t] for j in alive) / weigh
            values[t] = returns[i][t] - baseline if len(members) > 1 else 0.0
        advantages.append(values)
    return advantages, returns


def grpo_by_calls(batch: list[Rollout], normalise: bool = True) -> list[Array]:
    """With credits: each call against the calls of its group, and of its step's."""

    def compared(reward: float, found: list[list[float]]) -> float:
        """``found``: per rollout that has calls in the group, their rewards."""
        mean = sum(sum(x) / len(x) for x in found) / len(found)
        variance = sum(sum((v - mean) ** 2 for v in x) / len(x) for x in found) / len(found)
        std = math.sqrt(variance * len(found) / (len(found) - 1)) if len(found) > 1 else 0.0
        if std < 1e-8:
            return 0.0
        return (reward - mean) / (std + 1e-6 if normalise else 1.0)

    result: list[Array] = []
    for one in batch:
        values = np.zeros(one.length)
        for call in one.calls or []:
            found = [
                [c.reward for c in r.calls or [] if c.group == call.group]
                for r in siblings(batch, one)
            ]
            value = compared(call.reward, [x for x in found if x])
            if call.step is not None:
                group, reward, weight = call.step
                found = [
                    [c.step[1] for c in r.calls or [] if c.step and c.step[0] == group]
                    for r in siblings(batch, one)
                ]
                value += weight * compared(reward, [x for x in found if x])
            values[call.start : call.end] = value
        result.append(values)
    return result


Rows = dict[str, dict[str, Any]]


def sampled(rows: Rows, keys: list[str], name: str) -> Array:
    """A field at the sampled tokens of a rollout's rows."""
    pairs = [(rows[key].get(name, []), rows[key]["response_mask"]) for key in keys]
    each = (pair for values, mask in pairs for pair in zip(values, mask, strict=False))
    return np.array([value for value, bit in each if bit])


def recorded(rows: Rows, kl_penalty: float = 0.0) -> tuple[list[Rollout], list[list[str]]]:
    """The rollouts of one of verl's steps, and the keys of their rows in time."""
    keys: dict[tuple[str, str], list[str]] = {}
    for key, row in rows.items():
        if not row["padding"]:
            task, session, _ = key.split("_")
            keys.setdefault((task, session), []).append(key)
    batch: list[Rollout] = []
    for (task, _), own in keys.items():
        own.sort(key=lambda key: int(key.split("_")[2]))
        masks = [rows[key]["response_mask"] for key in own]
        one = Rollout(task, sum(rows[own[-1]]["rm_scores"]), masks)
        for name in ("values", "sum_pi_squared"):
            setattr(one, name, sampled(rows, own, name))
        one.old = sampled(rows, own, "old_log_probs")
        if kl_penalty:
            one.penalties = kl_penalty * (sampled(rows, own, "ref_log_prob") - one.old)
        batch.append(one)
    return batch, list(keys.values())


def check_step(
    rows: Rows, reference: Any, constant: float | None = None, kl_penalty: float = 0.0
) -> tuple[list[Rollout], list[list[str]]]:
    """That a step wrote the advantages, returns and weights that the reference has; gives
    ``recorded``. ``constant`` is dr_grpo's."""
    batch, keys = recorded(rows, kl_penalty)
    expected = reference(batch)
    named = {"advantages": expected}
    if isinstance(expected, tuple):
        named = dict(zip(("advantages", "returns"), expected, strict=True))
    weights = [len(rows) / (len(batch) * (constant or one.length)) for one in batch]
    named["agl_weights"] = [np.full(r.length, w) for r, w in zip(batch, weights, strict=True)]
    for name, per_rollout in named.items():
        for own, values in zip(keys, per_rollout, strict=True):
            np.testing.assert_allclose(sampled(rows, own, name), values, rtol=1e-5, atol=1e-5)
        for row in rows.values():
            bits = zip(row[name], row["response_mask"], strict=True)
            assert not any(value for value, bit in bits if row["padding"] or not bit), name
    return batch, keys
