"""How sure a gain is: confidence bounds on a mean of differences that hold whenever one looks.

The differences d of a candidate and the prompt that it would replace, on the same tasks, lie in
[-1, 1]. For a mean m, every bet 0 < b < 1 has the capital

    K(b) = product over the differences of  1 + b (d - m) / (1 + m)

which is expected not to grow where the true mean is at most m. The average of K over a grid of bets
is such a capital too, and by Ville's inequality it ever reaches 1/alpha with a chance of at most
alpha, however often one looks and whatever one stops for. The lower bound is the smallest m for
which it has not. The upper bound is the lower bound of the negated differences, negated.

Source: I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting",
JRSS-B 86 (2024), arXiv:2010.09686; the average over bets is their hedged grid without a predictable
plug-in, so the order of the differences does not matter.

Where we differ: nothing but bounded differences of tasks drawn independently is assumed. A
t-interval or a paired bootstrap would be a little narrower at one look, and is not valid at many.
"""

import math
from collections import Counter
from collections.abc import Sequence

BETS = (*(step / 20 for step in range(1, 20)), 0.98)
PRECISION = 1e-3
"""Bounds are found to so much."""
DEVIATION = 0.6
"""Standard deviation of a paired difference that plans assume: two coins of 0.77 and 0.23, say."""


def log_capital(differences: Sequence[float], mean: float) -> float:
    """Logarithm of the capital that bets against "the true mean is at most ``mean``" have made."""
    # Differences of rewards have few values, often only three.
    returns = [((value - mean) / (1.0 + mean), n) for value, n in Counter(differences).items()]
    logs = [sum(n * math.log1p(bet * value) for value, n in returns) for bet in BETS]
    top = max(logs)
    return top + math.log(sum(math.exp(value - top) for value in logs) / len(logs))


def lower_bound(differences: Sequence[float], alpha: float, known: float = -1.0) -> float:
    """What the true mean is above, but for a chance of ``alpha`` over all looks together.

    Args:
        differences: Each in [-1, 1].
        alpha: Chance of being wrong.
        known: The bound of an earlier look; every look holds at once, so it is not undercut.
    """
    needed = -math.log(alpha)
    low, high = max(known, -1.0 + 1e-9), 1.0
    if not differences or log_capital(differences, low) < needed:
        return known
    while high - low > PRECISION:
        middle = (low + high) / 2
        if log_capital(differences, middle) >= needed:
            low = middle
        else:
            high = middle
    return low


def bounds(
    differences: Sequence[float], alpha: float, known: tuple[float, float] = (-1.0, 1.0)
) -> tuple[float, float]:
    """Lower and upper bound, each wrong with a chance of at most half of ``alpha``.

    Args:
        differences: Each in [-1, 1].
        alpha: Chance that the true mean is outside at any look.
        known: The bounds of an earlier look.
    """
    upper = -lower_bound([-difference for difference in differences], alpha / 2, -known[1])
    return lower_bound(differences, alpha / 2, known[0]), upper


def fewest_tasks(alpha: float) -> int:
    """How many perfect outcomes are needed to exclude zero."""
    needed = math.log(2 / alpha)
    number = 1
    while log_capital([1.0] * number, 0.0) < needed:
        number += 1
    return number


def pairs_needed(gain: float, alpha: float) -> int:
    """About how many pairs show a true gain four times in five.

    The capital's logarithm grows by about gain^2 / (2 (deviation^2 + gain^2)) a pair, and has to
    pay for the grid of bets (about 1.5) and for bad luck besides.
    """
    growth = gain**2 / (2 * (DEVIATION**2 + gain**2))
    return max(fewest_tasks(alpha), math.ceil((math.log(2 / alpha) + 1.5) / growth))
