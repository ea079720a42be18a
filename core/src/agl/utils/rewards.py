"""What spans say of rewards, and which reward of an attempt is its final one."""

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from agl.semconv import AGL_ANNOTATION, LightningSpanAttributes as Key
from agl.types import UNASSIGNED, RewardDimension, SpanLike
from agl.utils.json_values import parse_json
from agl.utils.otel import extract_links_from_attributes

AttemptKey = TypeVar("AttemptKey")

PRIMARY_REWARD = "primary"
"""Name of a reward that was given as a single number."""
MAX_REWARD = 1e12
"""A larger one cannot be read: the squares of gradients, which grow with it, must fit 32 bits."""
_LAST, GRADES = (1 << 54) - 1, 2 << 54  # a reward without a number; where grades begin


_AGENTOPS = ("agentops.task.output", "agentops.entity.output")
_MARKS = frozenset((f"{Key.REWARD}.0.value", str(Key.GRADED), *_AGENTOPS))
"""A span without any of these attributes has no reward, unless it is an annotation of 0.3."""


def get_rewards_from_span(span: SpanLike) -> list[RewardDimension]:
    """All rewards of a span, the primary one first; empty when it has none that can be read.

    Besides agl's own attributes it reads the output of AgentOps' reward operations and the
    attribute ``reward`` of older annotation spans.
    """
    with suppress(ValueError):
        return _read_rewards(span)
    return []


def reward_problem(span: SpanLike) -> str | None:
    """Why the reward of a span cannot be read; None if it can, or if there is none."""
    try:
        _read_rewards(span)
        return None
    except ValueError as error:
        return str(error)


def _read_rewards(span: SpanLike) -> list[RewardDimension]:
    attributes: Mapping[str, Any] = (not getattr(span, "late", False) and span.attributes) or {}
    if span.name != AGL_ANNOTATION and attributes.keys().isdisjoint(_MARKS):
        return []
    values: list[tuple[str, Any]] = []
    while (value := attributes.get(f"{Key.REWARD}.{len(values)}.value")) is not None:
        name = attributes.get(f"{Key.REWARD}.{len(values)}.name", PRIMARY_REWARD)
        values.append((str(name), value))
    if not values:
        value = _agentops_reward(attributes)
        if value is None and span.name == AGL_ANNOTATION:
            value = attributes.get("reward")
        values = [] if value is None else [(PRIMARY_REWARD, value)]
    rewards = [
        RewardDimension(name=name, value=_checked_reward(name, value)) for name, value in values
    ]
    if rewards:
        extract_links_from_attributes(attributes)  # raises where nobody can say what it is about
    return rewards


def _checked_reward(name: str, value: Any) -> float:
    if isinstance(value, bool | int | float) and abs(value) <= MAX_REWARD:  # no for NaN, too
        return float(value)
    raise ValueError(
        f"reward {name!r} is {str(value)[:80]!r} ({type(value).__name__}); expected a number from "
        f"-{MAX_REWARD:g} to {MAX_REWARD:g}"
    )


def _agentops_reward(attributes: Mapping[str, Any]) -> Any:
    for key in _AGENTOPS:
        with suppress(ValueError):
            output = parse_json(attributes.get(key))
            if isinstance(output, dict) and cast(dict[str, Any], output).get("type") == "reward":
                return cast(dict[str, Any], output).get("value")
    return None


def get_reward_value(span: SpanLike) -> float | None:
    """The primary reward of a span, or None."""
    rewards = get_rewards_from_span(span)
    return rewards[0].value if rewards else None


def is_reward_span(span: SpanLike) -> bool:
    """Whether the span holds a reward."""
    return bool(get_rewards_from_span(span))


def find_reward_spans(spans: Sequence[SpanLike]) -> list[SpanLike]:
    """The spans that hold a reward, in the order given."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[SpanLike]) -> float | None:
    """The primary reward of the last reward span, or None.

    Last means the highest sequence id; spans without one count as newer than those with one, in
    the order given. When the spans belong to several attempts, only the attempt that began last
    counts. If the last reward cannot be read, there is no final reward. If a grader spoke, only its
    reward counts.
    """
    rewards = find_final_rewards(spans)
    return rewards[0].value if rewards else None


def find_final_rewards(spans: Sequence[SpanLike]) -> list[RewardDimension]:
    """The dimensions of ``find_final_reward``, the primary one first."""
    attempts: dict[str | None, list[SpanLike]] = {}
    for span in spans:
        if not getattr(span, "late", False):
            attempts.setdefault(getattr(span, "attempt_id", None), []).append(span)
    newest = attempts[newest_attempt(attempts)] if attempts else []
    best = max(reversed(newest), key=place_of_reward, default=None)
    return [] if best is None else get_rewards_from_span(best)


def place_of_reward(span: SpanLike) -> int:
    """Where a span's reward stands among those of its attempt: the highest place counts.

    The runner's grades are above all others, a reward that cannot be read has a place, none has 0.
    """
    attributes: Mapping[str, Any] = span.attributes or {}
    # Nearly every span has none, and stores ask it of each that they add.
    if span.name != AGL_ANNOTATION and attributes.keys().isdisjoint(_MARKS):
        return 0
    late, writer = getattr(span, "late", False), getattr(span, "writer", None)
    is_grade = bool(attributes.get(Key.GRADED)) and not late and writer in (None, "runner")
    try:
        if not (is_grade or _read_rewards(span)):
            return 0
    except ValueError:  # it cannot be read
        pass
    return ((1 + is_grade) << 54) + (getattr(span, "sequence_id", UNASSIGNED) or _LAST)


def newest_attempt(attempts: Mapping[AttemptKey, Sequence[SpanLike]]) -> AttemptKey:
    """The attempt that began last by its spans' numbers; by times if each attempt begins at 1."""
    first = {key: min(map(_sequence, spans), default=0.0) for key, spans in attempts.items()}
    last = {key: max(map(_sequence, spans), default=0.0) for key, spans in attempts.items()}
    in_order = sorted(attempts, key=lambda key: first[key])
    if all(last[one] < first[other] for one, other in itertools.pairwise(in_order)):
        return in_order[-1]
    began = {
        key: min((span.start_time or math.inf for span in spans), default=0.0)
        for key, spans in attempts.items()
    }
    return max(began, key=lambda key: began[key])


def _sequence(span: SpanLike) -> float:
    return getattr(span, "sequence_id", UNASSIGNED) or math.inf
