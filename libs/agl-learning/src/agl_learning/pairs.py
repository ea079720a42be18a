"""Preference pairs: two answers to one prompt, of which one got more."""

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Literal, Protocol, TypeVar

Pairing = Literal["matched", "best", "all"]


class Answer(Protocol):
    """What may be one side of a pair; without a reward it is in none."""

    @property
    def reward(self) -> float | None: ...
    @property
    def said(self) -> Hashable: ...
    @property
    def rollout_id(self) -> str: ...


Some = TypeVar("Some", bound=Answer)


def preference_pairs(
    answers: Sequence[Some], pairing: Pairing, min_gap: float
) -> list[tuple[Some, Some]]:
    """Pairs of a better and a worse answer of different rollouts.

    Args:
        answers: To one prompt; of equal rewards the first counts as the better one.
        pairing: ``matched`` pairs the best with the worst, the second best with the second worst
            and so on; ``best`` makes one pair, of the greatest difference; ``all`` makes all.
        min_gap: The rewards of a pair differ by more than this.
    """
    ranked = sorted((one for one in answers if one.reward is not None), key=_reward, reverse=True)
    half = len(ranked) // 2
    tried = zip(ranked[:half], reversed(ranked), strict=False)
    pairs = [
        (better, worse)
        for better, worse in (tried if pairing == "matched" else combinations(ranked, 2))
        if _reward(better) - _reward(worse) > min_gap
        and better.said != worse.said
        and better.rollout_id != worse.rollout_id
    ]
    if pairing == "best" and pairs:
        return [max(pairs, key=lambda pair: _reward(pair[0]) - _reward(pair[1]))]
    return pairs


def _reward(answer: Answer) -> float:
    return answer.reward or 0.0
