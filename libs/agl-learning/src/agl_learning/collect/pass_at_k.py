"""What several rollouts of each task say of a model: ``mean@n`` and ``pass@k``.

With n rollouts of a task that have a reward, c of them with one of 1 or more (``PASSED``),

    pass@k = 1 - binomial(n - c, k) / binomial(n, k)        k <= n
    mean@n = their mean reward

each averaged over the tasks: pass@k is the probability that the best of k is good, without the bias
that 1 - (1 - c / n)^k has. Source: Chen et al., arXiv:2107.03374.

Where we differ: a rollout that failed, or has no reward, is none of n; a task with fewer than k
others is left out of pass@k, and with none of mean@n.
"""

import math
from collections.abc import Iterable, Sequence

PASSED = 1.0 - 1e-6
"""Rewards from here on count as a pass: 1, and what ten times 0.1 come to."""


def pass_at_k(number: int, passed: int, k: int) -> float:
    """Whether one of ``k`` rollouts is good, when of ``number``, at least k, ``passed`` were.

    Example:
        One of four was good: of two, one was good in 1 - (3 * 2) / (4 * 3) = 0.5 of all pairs.
    """
    return 1.0 - math.comb(number - passed, k) / math.comb(number, k)


def over_copies(groups: Iterable[Sequence[float]], copies: int) -> dict[str, float]:
    """``mean@n`` and ``pass@k``, for k = 1, 2, 4 and so on up to n, which is ``copies``.

    A group has the rewards of one task's rollouts, of those that have one. Nothing comes of tasks
    that run once, or of which none has a reward.
    """
    known = [rewards for rewards in groups if rewards]
    if copies < 2 or not known:
        return {}
    found = {f"mean@{copies}": math.fsum(sum(r) / len(r) for r in known) / len(known)}
    sizes = [*(2**n for n in range(copies.bit_length()) if 2**n < copies), copies]
    for k in sizes:
        passes = [
            pass_at_k(len(rewards), sum(reward >= PASSED for reward in rewards), k)
            for rewards in known
            if len(rewards) >= k
        ]
        if passes:
            found[f"pass@{k}"] = math.fsum(passes) / len(passes)
    return found
