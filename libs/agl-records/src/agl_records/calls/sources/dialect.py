"""``Dialect``: how a library writes model calls into spans."""

from abc import ABC, abstractmethod
from typing import ClassVar

from agl.types import Span
from agl_records.training_data import ModelCall


class Dialect(ABC):
    """Reads the model calls that one library writes; a component of the group ``agl.dialects``."""

    is_standard: ClassVar[bool] = False
    """Whether several libraries write it; such dialects are asked after all others."""

    @abstractmethod
    def read(self, span: Span) -> ModelCall | None:
        """The call that a span records, made by ``make_call``; None for a span of another kind.

        Raises:
            ValueError: It is a call of this dialect, and cannot be read.
        """
