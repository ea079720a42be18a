"""APO: automatic prompt optimisation with textual gradients and beam search.

Each round, every prompt of the beam is criticised several times by a model that sees some tasks in
which it was used, and a second model edits it by each critique. The new prompts race against all
earlier ones, and the best make the next beam. At the end the best of all is compared with the first
prompt on held-out tasks, and takes its place only if it is better beyond doubt.

Source: R. Pryzant et al., "Automatic Prompt Optimization with 'Gradient Descent' and Beam Search"
(arXiv:2305.03495). Where we differ:

1. The search is a race over tasks of the train dataset (``agl_apo.race``), and the validation
   dataset is held out for one decision with a confidence bound (``agl_apo.decision``).
2. A critique is about evaluations that were made for the race, half of them the worst ones, so that
   it costs none of its own.
3. An edit that breaks the template, repeats a known prompt or is empty is dropped before it runs.
4. All is in the store, and a run that was killed continues (``agl_apo.journal``).
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agl.algorithm import Algorithm
from agl.errors import AlgorithmError, ConfigError
from agl.types import Dataset, PromptTemplate

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from agl_apo.race import Sizes
    from agl_apo.result import Result
    from agl_apo.session import Session

logger = logging.getLogger("agl_apo")


class APO(Algorithm):
    """Improve prompts by critiques and edits that models write, with beam search.

    The tasks of ``train_dataset`` are for the search, those of ``val_dataset`` are held out for the
    decision. Every evaluation, critique and edit is in the store; a run with the same ``run_name``
    there continues. The best prompts become the latest resources of the store, and files.

    Args:
        async_openai_client: An ``openai.AsyncOpenAI`` for the two models; if left out, one is made
            of ``base_url`` and ``api_key``, or of ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``.
        gradient_model: Writes critiques.
        apply_edit_model: Writes the edited prompts.
        diversity_temperature: Of both models.
        gradient_batch_size: Evaluations that a critique sees.
        val_batch_size: Evaluations of a round's race beyond those of each new prompt, which are a
            quarter of it.
        beam_width: Prompts that are edited in each round.
        branch_factor: Edits of each.
        beam_rounds: Rounds at most; the budget may allow fewer.
        rollout_batch_timeout: After so many seconds, what has not ended of evaluations that were
            queued together counts as failed.
        run_initial_validation: Run the first prompt on ``val_batch_size`` held-out tasks at the
            beginning, which the decision uses again.
        targets: Names of the prompts to optimise, or name -> what it is, which the models are told
            ("the description of the tool get_rooms"). All prompt templates if left out.
        agents: Name of a prompt -> the agent whose model calls its critiques see; else all calls.
        critique_template: Jinja text, or a ``.j2`` file, that asks for a critique; see
            ``agl_apo/prompts/critique.j2`` for ours and its variables. Several take turns.
        edit_template: The same for the edit.
        max_evaluations: Evaluations at most; refused when too few to conclude.
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
        run_dir: Folder for the best prompts and the result; by default ``agl-runs/apo-<time>``.

    Raises:
        ConfigError: An option is wrong.
    """

    default_adapter = "messages"

    def __init__(
        self,
        async_openai_client: "AsyncOpenAI | None" = None,
        *,
        gradient_model: str = "gpt-5-mini",
        apply_edit_model: str = "gpt-4.1-mini",
        diversity_temperature: float = 1.0,
        gradient_batch_size: int = 4,
        val_batch_size: int = 16,
        beam_width: int = 4,
        branch_factor: int = 4,
        beam_rounds: int = 3,
        rollout_batch_timeout: float | None = 3600.0,
        run_initial_validation: bool = True,
        targets: list[str] | dict[str, str] | None = None,
        agents: dict[str, str] | None = None,
        critique_template: str | list[str] | None = None,
        edit_template: str | list[str] | None = None,
        max_evaluations: int | None = None,
        smallest_gain: float = 0.25,
        confidence: float = 0.95,
        max_repeats: int = 3,
        reward_range: tuple[float, float] = (0.0, 1.0),
        unresponsive_seconds: float = 60.0,
        base_url: str | None = None,
        api_key: str | None = None,
        seed: int = 0,
        run_name: str = "apo",
        run_dir: str | None = None,
    ) -> None:
        from agl_apo.decision import Rule
        from agl_apo.evaluate import Limits
        from agl_apo.models import Models, read_template
        from agl_apo.session import Setup

        sizes = {
            "gradient_batch_size": gradient_batch_size,
            "val_batch_size": val_batch_size,
            "beam_width": beam_width,
            "branch_factor": branch_factor,
            "beam_rounds": beam_rounds,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ConfigError(f"APO: {name} must be at least 1; got {value}")
        self.setup = Setup(
            algorithm="apo",
            targets=targets,
            rule=Rule(confidence, smallest_gain, max_repeats),
            limits=Limits(reward_range, rollout_batch_timeout, unresponsive_seconds),
            max_evaluations=max_evaluations,
            seed=seed,
            run_name=run_name,
            run_dir=run_dir,
        )
        self.setup.check()
        self.gradient_model = gradient_model
        self.apply_edit_model = apply_edit_model
        self.gradient_batch_size = gradient_batch_size
        self.val_batch_size = val_batch_size
        self.beam_width = beam_width
        self.branch_factor = branch_factor
        self.beam_rounds = beam_rounds
        self.run_initial_validation = run_initial_validation
        self.agents = agents or {}
        self.critique_templates = [
            read_template(text, "critique") for text in _as_list(critique_template)
        ]
        self.edit_templates = [read_template(text, "edit") for text in _as_list(edit_template)]
        self.models = Models(async_openai_client, base_url, api_key, diversity_temperature)
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
        session = self._session
        if session is None:
            raise AlgorithmError("APO has not run yet; there is no best prompt")
        return session.best_prompt(name, self.result)

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
        from agl_apo.opening import open_session

        self.result = None
        options = {
            "beam": [self.beam_width, self.branch_factor, self.beam_rounds],
            "batches": [self.gradient_batch_size, self.val_batch_size],
            "templates": [self.critique_templates, self.edit_templates],
            "models": [self.gradient_model, self.apply_edit_model, self.models.temperature],
        }
        cost = self._round_cost(1)
        session = await open_session(self, self.setup, options, train_dataset, val_dataset, cost)
        self._session = session
        if self.run_initial_validation:
            count = min(self.val_batch_size, self.setup.rule.pairs(len(session.held_out)))
            await session.evaluator.extend([session.seed], "held_out", range(count))
        async with self.models:
            await self._search(session)
        self.result = await session.finish()

    async def _search(self, session: "Session") -> None:
        from agl_apo.proposals import Proposer
        from agl_apo.race import race

        proposer = Proposer(self, session)
        evaluator, candidates, beam = session.evaluator, [session.seed], [session.seed]
        for number in range(1, self.beam_rounds + 1):
            if session.left < self._round_cost(len(beam)):
                logger.info("max_evaluations allows no further round; %d were made", number - 1)
                break
            await evaluator.extend(beam, "search", range(self.gradient_batch_size))
            session.require_success()
            new = await proposer.propose(number, beam, candidates)
            candidates = [*candidates, *new]
            beam = await race(evaluator, candidates, beam, self._sizes())
            await session.note_round(number, beam, candidates)

    def _sizes(self) -> "Sizes":
        from agl_apo.race import Sizes

        step = max(1, self.val_batch_size // 4)
        return Sizes(width=self.beam_width, step=step, share=self.val_batch_size)

    def _round_cost(self, num_parents: int) -> int:
        gradient = num_parents * self.gradient_batch_size
        return gradient + self._sizes().cost(num_parents * (1 + self.branch_factor))


def _as_list(given: str | Sequence[str] | None) -> Sequence[str | None]:
    return [given] if given is None or isinstance(given, str) else given
