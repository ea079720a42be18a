"""The reward of a problem: 1 when the answer is the right number, else 0."""

import math
import re

NUMBER = r"-?\d[\d,]*\.?\d*(?:\s*/\s*\d+)?|-?\.\d+"


def find_answer(text: str) -> float | None:
    """The number in the last ``### ANSWER: ... ###``; None where there is no such thing."""
    marked = re.findall(r"###\s*ANSWER:\s*(.*?)\s*###", text, flags=re.DOTALL | re.IGNORECASE)
    return to_number(marked[-1]) if marked else None


def to_number(text: str) -> float | None:
    """The first number in a text: ``1,250.5``, ``3/4``, ``$12`` and ``40 km`` are taken."""
    found = re.search(NUMBER, text)
    if found is None:
        return None
    numerator, _, denominator = found.group().replace(",", "").replace(" ", "").partition("/")
    if denominator and float(denominator) == 0:
        return None
    return float(numerator) / (float(denominator) if denominator else 1.0)


def grade(text: str, result: str) -> float:
    """1 when the answer in ``text`` is ``result`` to a hundredth of a percent, else 0.

    Args:
        text: What the agent said at last.
        result: The number of the data set, as text.

    Raises:
        ValueError: ``result`` is no number: the data is wrong, and not the agent.
    """
    expected = to_number(result)
    if expected is None:
        raise ValueError(f"the result of the data set must be a number; got {result!r}")
    answer = find_answer(text)
    if answer is None:
        return 0.0
    return float(math.isclose(answer, expected, rel_tol=1e-4, abs_tol=1e-9))
