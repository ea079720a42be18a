"""``PromptOptimizer``: what ``APO`` and ``GEPA`` share, options and result."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from agl.algorithm import Algorithm
from agl.errors import AlgorithmError
from agl.types import PromptTemplate

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from agl_apo.result import Result
    from agl_apo.session import Session


@dataclass(kw_only=True, eq=False, repr=False)
class PromptOptimizer(Algorithm):
    """Search for better prompts, and take one only if it is better beyond doubt.

    Args:
        async_openai_client: An ``openai.AsyncOpenAI`` for the models; if left out, one is made of
            ``base_url`` and ``api_key``, or of ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``.
        targets: Names of the prompts to optimise, or name -> what it is, which the models are told
            ("the description of the tool get_rooms"). All prompt templates if left out.
        agents: Name of a prompt -> the agent whose model calls the models see; else all calls.
        max_evaluations: Evaluations at most, those of the decision among them; refused when too few
            to conclude.
        rollout_batch_timeout: After so many seconds, what has not ended of evaluations that were
            queued together counts as failed.
        smallest_gain: A gain in mean reward (scaled to 0..1) below which a change is not wanted;
            the decision ends when it is ruled out, and is planned to find it.
        confidence: Of the interval of the gain; a prompt is accepted when it excludes zero.
        max_repeats: The decision makes at most so many pairs of evaluations per held-out task.
        reward_range: The lowest and the highest possible reward.
        unresponsive_seconds: An evaluation whose runner is silent for longer begins again.
        base_url: Address of the models.
        api_key: Its key.
        seed: Of all random choices.
        run_name: Names the run in the store.
        run_dir: Folder for the best prompts and the result; by default one under ``agl-runs`` named
            after algorithm and time.
    """

    default_adapter = "messages"
    name: ClassVar[str]

    async_openai_client: "AsyncOpenAI | None" = field(default=None, kw_only=False)
    targets: list[str] | dict[str, str] | None = None
    agents: dict[str, str] | None = None
    max_evaluations: int | None = None
    rollout_batch_timeout: float | None = 3600.0
    smallest_gain: float = 0.25
    confidence: float = 0.95
    max_repeats: int = 3
    reward_range: tuple[float, float] = (0.0, 1.0)
    unresponsive_seconds: float = 60.0
    base_url: str | None = None
    api_key: str | None = None
    seed: int = 0
    run_name: str
    run_dir: str | None = None

    def __post_init__(self) -> None:
        from agl_apo.decision import Rule
        from agl_apo.evaluate import Limits
        from agl_apo.session import Setup

        self.setup = Setup(
            algorithm=self.name,
            targets=self.targets,
            rule=Rule(self.confidence, self.smallest_gain, self.max_repeats),
            limits=Limits(self.reward_range, self.rollout_batch_timeout, self.unresponsive_seconds),
            max_evaluations=self.max_evaluations,
            seed=self.seed,
            run_name=self.run_name,
            run_dir=self.run_dir,
        )
        self.setup.check()
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
