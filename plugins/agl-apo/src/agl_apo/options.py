"""What a prompt optimiser is told: the options of all, and those of APO."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from annotated_types import Gt, Lt

from agl.errors import ConfigError
from agl.utils.checks import check_numbers
from agl_runs.failures import Failures
from agl_runs.options import AboveZero, Count, Named, NotNegative, absolute, check_options

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Inside = Annotated[float, Gt(0), Lt(1)]


def check_range(owner: str, /, **values: Any) -> None:
    """Refuse what are no two ends of a range."""
    for name, ends in values.items():
        if not isinstance(ends, tuple | list) or len(cast("list[Any]", ends)) != 2:
            raise ConfigError(f"{owner}: {name} must be two numbers; got {ends!r}")
        low, high = cast("list[Any]", ends)
        for end in (low, high):
            check_numbers(owner, **{name: end})
        if not low < high:
            raise ConfigError(
                f"{owner}: {name}: the first must be below the second; got {(low, high)}"
            )


@dataclass(kw_only=True, eq=False, repr=False)
class PromptOptions(Named):
    """Options of every prompt optimiser.

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
        failures: What to do with evaluations that failed, by what failed them; a reward that cannot
            be read, or is outside of ``reward_range``, is the grader's failure. One that is
            excluded is left out, with its pair (``drop_group`` is the same here). One whose model
            refuses the key, or is not there, runs once. ``stop_after`` is the part of a prompt's
            evaluations that may be left out, if more than two: of the first prompt more stop the
            run; any other prompt is taken out of it.
        smallest_gain: A gain in mean reward (scaled to 0..1) below which a change is not wanted;
            the decision ends when it is ruled out, and is planned to find it.
        confidence: Confidence of the interval of the gain; a prompt is accepted if it excludes 0.
        max_repeats: The decision makes at most so many pairs of evaluations per held-out task; the
            mean of a task's pairs counts once.
        reward_range: The lowest and the highest possible reward.
        unresponsive_seconds: An evaluation whose runner is silent for longer begins again.
        base_url: Address of the models.
        api_key: Its key.
        seed: Seed for all random choices.
        run_name: Names the run in the store.
        run_dir: Folder for the best prompts, the result and the metrics. None takes that of the run
            (``run_dir`` of the file or the trainer), and where it has none a new one under
            ``agl-runs``.
    """

    safe_options = frozenset({"unresponsive_seconds", "failures.stop_after"})

    name: ClassVar[str] = "prompts"
    """Of the algorithm."""

    async_openai_client: "AsyncOpenAI | None" = field(default=None, kw_only=False)
    targets: list[str] | dict[str, str] | None = None
    agents: dict[str, str] | None = None
    max_evaluations: Count | None = None
    rollout_batch_timeout: AboveZero | None = 3600.0
    failures: Failures = Failures(
        infrastructure="retry", timeout="retry", grader="retry", agent="retry", stop_after=0.2
    )
    smallest_gain: Inside = 0.25
    confidence: Inside = 0.95
    max_repeats: Count = 3
    reward_range: Annotated[tuple[float, float], check_range] = (0.0, 1.0)
    unresponsive_seconds: AboveZero = 60.0
    base_url: str | None = None
    api_key: str | None = None
    seed: int = 0
    run_name: str = "prompts"
    run_dir: str | None = None

    def __post_init__(self) -> None:
        check_options(self.title, self)
        (low, high), penalty = self.reward_range, self.failures.penalty
        if penalty is not None and not low <= penalty <= high:
            raise ConfigError(
                f"{self.title}: failures.penalty is {penalty:g}, outside "
                f"reward_range=({low:g}, {high:g})"
            )
        self.run_dir = absolute(self.run_dir)

    @property
    def title(self) -> str:
        """What messages begin with."""
        return type(self).__name__


@dataclass(kw_only=True, eq=False, repr=False)
class APOOptions(PromptOptions):
    """Options of ``APO``.

    Args:
        gradient_model: Writes critiques.
        apply_edit_model: Writes the edited prompts.
        diversity_temperature: Temperature of both models.
        gradient_batch_size: Evaluations that a critique sees.
        val_batch_size: Evaluations of a round's race beyond those of each new prompt, which are a
            quarter of it.
        beam_width: Prompts that are edited in each round.
        branch_factor: Edits of each.
        beam_rounds: Rounds at most; the budget may allow fewer.
        rounds: Another name of ``beam_rounds``; give one of them.
        run_initial_validation: Run the first prompt on ``val_batch_size`` held-out tasks at the
            beginning, which the decision uses again.
        critique_template: Jinja text, or a ``.j2`` file, that asks for a critique; see
            ``agl_apo/prompts/critique.j2`` for ours and its variables. Several take turns.
        edit_template: The same for the edit.
    """

    name = "apo"

    gradient_model: str = "gpt-5-mini"
    apply_edit_model: str = "gpt-4.1-mini"
    diversity_temperature: NotNegative = 1.0
    gradient_batch_size: Count = 4
    val_batch_size: Count = 16
    beam_width: Count = 4
    branch_factor: Count = 4
    beam_rounds: Count = 3
    rounds: Count | None = None
    run_initial_validation: bool = True
    critique_template: str | list[str] | None = None
    edit_template: str | list[str] | None = None
    run_name: str = "apo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds is not None:
            if self.beam_rounds not in (APOOptions.beam_rounds, self.rounds):
                raise ConfigError(
                    f"{self.title}: rounds is another name of beam_rounds; got "
                    f"rounds={self.rounds}, beam_rounds={self.beam_rounds}. Leave one of them out"
                )
            self.beam_rounds, self.rounds = self.rounds, None
