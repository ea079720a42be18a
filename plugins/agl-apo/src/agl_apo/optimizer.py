"""``PromptOptimizer``: what ``APO`` and ``GEPA`` share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError
from agl.types import PromptTemplate
from agl_apo.options import Options

if TYPE_CHECKING:
    from agl_apo.result import Result
    from agl_apo.session import Session


@dataclass(kw_only=True, eq=False, repr=False)
class PromptOptimizer(Options, Algorithm):
    """Search for better prompts, and take one only if it is better beyond doubt."""

    default_adapter = "messages"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.result: Result | None = None
        """Set when ``run`` has ended."""
        self._session: Session | None = None

    def get_best_prompt(self, name: str | None = None) -> PromptTemplate:
        """The accepted prompt, else the first one; while ``run`` runs, the best of the search.

        Args:
            name: Which target; needed where there are several.

        Raises:
            AlgorithmError: ``run`` has not begun.
            ConfigError: No such target, or several and none named.
        """
        if self._session is None:
            raise AlgorithmError(f"{type(self).__name__} has not run yet; there is no best prompt")
        return self._session.best_prompt(name, self.result)
