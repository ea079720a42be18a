"""Exact match: 1 when an answer has just the words of a right one, articles and punctuation aside.

As in SQuAD (arXiv:1606.05250, section 6.1), with several right answers to a question.
"""

import re
import string
from collections.abc import Sequence


def find_answer(text: str) -> str | None:
    """What stands in the last ``<answer>...</answer>``; None where there is none."""
    found = re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL)
    return found[-1].strip() if found else None


def normalize_answer(text: str) -> str:
    """In lower case, without punctuation, articles and spare spaces."""
    kept = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(word for word in kept.split() if word not in ("a", "an", "the"))


def compute_score_em(text: str, golden_answers: Sequence[str]) -> float:
    """The reward of what the agent said at last: 1 for a right answer, else 0.

    Raises:
        ValueError: There is no right answer: the data is wrong, and not the agent.
    """
    if not golden_answers:
        raise ValueError("a question must have at least one right answer; got none")
    answer = find_answer(text)
    if answer is None:
        return 0.0
    said = normalize_answer(answer)
    return float(any(said == normalize_answer(one) for one in golden_answers))
