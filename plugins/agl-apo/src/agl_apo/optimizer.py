"""``PromptOptimizer``: what ``APO`` and ``GEPA`` share, options and result."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from agl.algorithm.base import Algorithm
from agl.algorithm.infrastructure import InfrastructureFailures, check_infrastructure_failures
from agl.errors import AlgorithmError
from agl.types import PromptTemplate
from agl.utils.checks import absolute, check_numbers

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
        max_evaluations: Evaluations at most, those of the decision among them, each counted once;
            refused when too few to conclude.
        rollout_batch_timeout: After so many seconds, what has not ended of evaluations that were
            queued together is cancelled and left out.
        evaluation_tries: How often an evaluation that fails is run, at most; then it is left out.
        max_failed: Part of a prompt's evaluations that may be left out, if more than two. Of the
            first prompt more stop the run; any other prompt is taken out of it.
        infrastructure_failures: What an evaluation is that succeeded although servers or the
            network failed a model call of it: with ``exclude`` it failed, and its pair is left out
            (``drop_group`` is the same here); with ``keep`` it counts as any other.
        smallest_gain: A gain in mean reward (scaled to 0..1) below which a change is not wanted;
            the decision ends when it is ruled out, and is planned to find it.
        confidence: Of the interval of the gain; a prompt is accepted when it excludes zero.
        max_repeats: The decision makes at most so many pairs of evaluations per held-out task; the
            mean of a task's pairs counts once.
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
    evaluation_tries: int = 3
    max_failed: float = 0.2
    infrastructure_failures: InfrastructureFailures = "exclude"
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

        check_infrastructure_failures(self.infrastructure_failures, self.name)
        check_numbers(
            self.name, whole=True, optional=True, least=1, max_evaluations=self.max_evaluations
        )
        check_numbers(
            self.name,
            whole=True,
            least=1,
            evaluation_tries=self.evaluation_tries,
            max_repeats=self.max_repeats,
        )
        check_numbers(self.name, whole=True, seed=self.seed)
        check_numbers(
            self.name, above=0, optional=True, rollout_batch_timeout=self.rollout_batch_timeout
        )
        check_numbers(self.name, above=0, unresponsive_seconds=self.unresponsive_seconds)
        check_numbers(
            self.name,
            max_failed=self.max_failed,
            smallest_gain=self.smallest_gain,
            confidence=self.confidence,
        )
        for end in self.reward_range:
            check_numbers(self.name, reward_range=end)
        self.setup = Setup(
            algorithm=self.name,
            targets=self.targets,
            rule=Rule(self.confidence, self.smallest_gain, self.max_repeats),
            limits=Limits(
                reward_range=self.reward_range,
                timeout_seconds=self.rollout_batch_timeout,
                unresponsive_seconds=self.unresponsive_seconds,
                tries=self.evaluation_tries,
                max_failed=self.max_failed,
                infrastructure_failures=self.infrastructure_failures,
            ),
            max_evaluations=self.max_evaluations,
            seed=self.seed,
            run_name=self.run_name,
            run_dir=absolute(self.run_dir),
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
