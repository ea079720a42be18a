"""Which rewards of an attempt count."""

from collections.abc import Sequence
from typing import TypeVar

from agl.types import SpanLike
from agl.utils.rewards import GRADES, place_of_reward

Span_ = TypeVar("Span_", bound=SpanLike)


def graded_only(spans: Sequence[Span_]) -> Sequence[Span_]:
    """Those of an attempt's spans whose rewards count: all, or the grade, the runner's last."""
    grades = [one for one in spans if place_of_reward(one) > GRADES]
    return sorted(grades, key=place_of_reward)[-1:] or spans
