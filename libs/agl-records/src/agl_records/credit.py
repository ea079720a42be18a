"""The contract of credit rules."""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agl.algorithm.gateway import ModelConfig
from agl.errors import AdapterError, ConfigError
from agl.plugins.build import plan_component
from agl.types import Span
from agl.utils.text import describe, full_name_of
from agl_records.training_data import ModelCall
from agl_records.types import Credit

Ask = Callable[[list[dict[str, str]], Mapping[str, Any]], Awaitable[str]]
"""Sends messages and further fields of a request to the judge's model, and gives the answer."""
Conversation = list[dict[str, Any]]
"""OpenAI chat messages."""


class CreditRule(ABC):
    """Decides which call gets how much of which reward, and with what it is compared."""

    uses_intermediate: ClassVar[bool] = True
    """Whether rewards before the last one count; without it automatic ones (AIR) are refused."""

    @abstractmethod
    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """Credit per call.

        Args:
            calls: The model calls of one attempt, in order of ``sequence_id``; also those that
                cannot be trained, so that a reward does not slip on to another call.
            spans: All spans of that attempt, rewards among them, in the same order.

        Returns:
            One ``Credit`` per call; its ``reward`` is None where no reward reaches the call.
        """


def credits_of(
    rule: CreditRule, name: str, calls: Sequence[ModelCall], spans: Sequence[Span], rollout_id: str
) -> list[Credit]:
    """What a rule gives to the calls of an attempt.

    Raises:
        AdapterError: It raised an error, or ``check_credits`` does.
    """
    try:
        given = rule.assign(calls, spans)
    except (ConfigError, AdapterError):
        raise
    except Exception as error:  # of code that anybody may have written
        raise AdapterError(
            f"credit rule {name!r} ({full_name_of(type(rule))}) raised {type(error).__name__}: "
            f"{describe(error)} on the {len(calls)} calls of rollout {rollout_id!r}"
        ) from error
    check_credits(name, given, len(calls), rollout_id)
    return given


def check_credits(rule: str, given: Sequence[Credit], number: int, rollout_id: str) -> None:
    """Refuse what a rule gave to the calls of an attempt, if it is not one finite credit each.

    Raises:
        AdapterError: Too few or too many, no ``Credit``, or a number that is not finite.
    """
    if len(given) != number:
        raise AdapterError(
            f"credit rule {rule!r} gave {len(given)} credits for {number} calls of rollout "
            f"{rollout_id!r}"
        )
    for n, one in enumerate(given, 1):
        numbers: list[Any] = [one]
        if isinstance(one, Credit):  # pyright: ignore[reportUnnecessaryIsInstance]
            numbers = [one.reward or 0.0, *([one.step.reward, one.step.weight] if one.step else [])]
            if all(map(math.isfinite, numbers)):
                continue
        raise AdapterError(
            f"credit rule {rule!r} gave {', '.join(map(repr, numbers))} to call {n} of {number} of "
            f"rollout {rollout_id!r}; expected agl.Credit(reward=...) with finite numbers"
        )


@dataclass(frozen=True)
class Score:
    """What a judge gave."""

    value: float
    because: str


class GroupRule(CreditRule):
    """A rule that compares the rollouts of a task, by a model, once all of them have ended.

    Who collects rollouts asks it, as agl-learning does; an attempt by itself has no reward.
    """

    uses_intermediate = False
    is_awaited = False
    """Whether somebody collects groups, and will ask for their scores."""

    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """Nothing yet; where groups are collected, zeros that their scores replace."""
        because = "its judge compares rollouts of one task while a run collects them"
        return [Credit(reward=0.0 if self.is_awaited else None, because=because)] * len(calls)

    @property
    @abstractmethod
    def judge(self) -> str | ModelConfig:
        """The model: one that the gateway serves, or the entry with which it can."""

    @abstractmethod
    async def score(
        self, task: Any, attempts: Sequence[list[Conversation]], ask: Ask
    ) -> list[Score]:
        """Scores of attempts at one task, each against the others.

        Args:
            task: The input of the rollouts.
            attempts: At least two, all different: what each said, and was told.
            ask: Asks the model; what fails there passes through.

        Raises:
            AdapterError: What the judge answers cannot be read.
        """


def check_credit(owner: str, credit: str | Mapping[str, Any] | None) -> None:
    """Refuse a credit rule that is not installed, or options that it does not take.

    ``credit`` is its name, or ``type`` and options; None leaves it to the adapter.

    Raises:
        ConfigError: Its options are wrong.
        PluginError: There is no such rule, or it does not load.
    """
    if credit is not None:
        plan_component(
            credit,
            group="agl.credits",
            expected_type=CreditRule,
            default="final",
            where=f"{owner}: credit",
        )
