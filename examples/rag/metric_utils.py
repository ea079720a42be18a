"""Scores of answers to questions: exact match and F1 over words, after the same clean-up.

Both are those of SQuAD (arXiv:1606.05250, section 6.1), with the best of several right answers.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence


def find_answer(text: str) -> str | None:
    """What stands in the last ``<answer>...</answer>``; None where there is none."""
    found = re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL | re.IGNORECASE)
    return found[-1].strip() if found else None


def clean(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles."""
    kept = text.lower().translate(str.maketrans("", "", string.punctuation))
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 when the answer has just the words of one of the right ones, else 0."""
    return float(any(clean(answer) == clean(one) for one in right))


def f1_score(answer: str, right: Sequence[str]) -> float:
    """The best harmonic mean of precision and recall of words, from 0 to 1."""
    return max((_f1(clean(answer), clean(one)) for one in right), default=0.0)


def _f1(said: list[str], wanted: list[str]) -> float:
    if not said or not wanted:
        return float(said == wanted)
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted))


def score(text: str, right: Sequence[str]) -> float:
    """The reward of what the agent said at last: F1 of its answer, 0 without one.

    Raises:
        ValueError: There is no right answer: the data is wrong, and not the agent.
    """
    if not right:
        raise ValueError("a question must have at least one right answer; got none")
    answer = find_answer(text)
    return 0.0 if answer is None else f1_score(answer, right)
