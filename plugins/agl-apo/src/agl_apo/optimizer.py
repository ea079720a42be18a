"""``PromptOptimizer``: what ``APO`` and ``GEPA`` share, from the first check to the result."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError, ConfigError
from agl.types import Dataset, PromptTemplate
from agl_apo.opening import open_session
from agl_apo.options import Options

if TYPE_CHECKING:
    from agl_apo.models import Models
    from agl_apo.result import Result
    from agl_apo.session import Session


@dataclass(kw_only=True, eq=False, repr=False)
class PromptOptimizer(Options, Algorithm):
    """Search for better prompts, and take one only if it is better beyond doubt."""

    default_adapter = "messages"
    is_shuffled: ClassVar[bool] = True
    """Whether the search has its tasks in random order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.result: Result | None = None
        """Set when ``run`` has ended."""
        self._session: Session | None = None
        self.models: Models
        """Those that write prompts; each kind makes its own."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What of its own options must not change when a run is continued; JSON values."""

    @abstractmethod
    def smallest_search(self, num_tasks: int) -> int:
        """Evaluations that it takes, with so many train tasks."""

    @abstractmethod
    async def search(self, session: "Session") -> None:
        """Find the candidate that the decision is about, ``session.leader``."""

    async def run(
        self,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Search, decide, publish.

        Raises:
            ConfigError: The request is wrong or too small; nothing was spent.
            AlgorithmError: The first prompt cannot be run, or no model answers.
        """
        self.result = None
        cost = self.smallest_search(0 if train_dataset is None else len(train_dataset))
        async with open_session(
            self, self, self.identity(), train_dataset, val_dataset, cost, self.is_shuffled
        ) as session:
            self._session = session
            async with self.models:
                await self.search(session)
            self.result = await session.finish()

    def get_best_prompt(self, name: str | None = None) -> PromptTemplate:
        """The accepted prompt, else the first one; while ``run`` runs, the best of the search.

        Args:
            name: Which target; needed where there are several.

        Raises:
            AlgorithmError: ``run`` has not begun.
            ConfigError: No such target, or several and none named.
        """
        session = self._session
        if session is None:
            raise AlgorithmError(f"{type(self).__name__} has not run yet; there is no best prompt")
        templates = session.templates
        if name is None and len(templates) == 1:
            name = next(iter(templates))
        if name not in templates:
            raise ConfigError(
                f"get_best_prompt: {'which prompt' if name is None else f'no prompt {name!r}'}? "
                f"Optimised are {', '.join(map(repr, templates))}"
            )
        text = (session.leader.texts if self.result is None else self.result.prompts)[name]
        return templates[name].model_copy(update={"template": text})
