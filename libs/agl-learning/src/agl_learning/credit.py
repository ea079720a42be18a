"""The contract of credit rules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from agl.types import Credit, Span
from agl_learning.records import ModelCall


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
