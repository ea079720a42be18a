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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agl.types import Dataset
from agl.utils.checks import check_numbers
from agl_apo.optimizer import PromptOptimizer

if TYPE_CHECKING:
    from agl_apo.race import Sizes
    from agl_apo.session import Session

logger = logging.getLogger("agl.apo")


@dataclass(kw_only=True, eq=False, repr=False)
class APO(PromptOptimizer):
    """Improve prompts by critiques and edits that models write, with beam search.

    The tasks of ``train_dataset`` are for the search, those of ``val_dataset`` are held out for the
    decision. Every evaluation, critique and edit is in the store; a run with the same ``run_name``
    there continues. The best prompts become the latest resources of the store, and files.

    Args:
        gradient_model: Writes critiques.
        apply_edit_model: Writes the edited prompts.
        diversity_temperature: Of both models.
        gradient_batch_size: Evaluations that a critique sees.
        val_batch_size: Evaluations of a round's race beyond those of each new prompt, which are a
            quarter of it.
        beam_width: Prompts that are edited in each round.
        branch_factor: Edits of each.
        beam_rounds: Rounds at most; the budget may allow fewer.
        run_initial_validation: Run the first prompt on ``val_batch_size`` held-out tasks at the
            beginning, which the decision uses again.
        critique_template: Jinja text, or a ``.j2`` file, that asks for a critique; see
            ``agl_apo/prompts/critique.j2`` for ours and its variables. Several take turns.
        edit_template: The same for the edit.

    Raises:
        ConfigError: An option is wrong.
    """

    name = "apo"

    gradient_model: str = "gpt-5-mini"
    apply_edit_model: str = "gpt-4.1-mini"
    diversity_temperature: float = 1.0
    gradient_batch_size: int = 4
    val_batch_size: int = 16
    beam_width: int = 4
    branch_factor: int = 4
    beam_rounds: int = 3
    run_initial_validation: bool = True
    critique_template: str | list[str] | None = None
    edit_template: str | list[str] | None = None
    run_name: str = "apo"

    def __post_init__(self) -> None:
        from agl_apo.models import Models, read_template

        super().__post_init__()
        sizes = ("gradient_batch_size", "val_batch_size", "beam_width")
        names = (*sizes, "branch_factor", "beam_rounds")
        check_numbers("APO", whole=True, least=1, **{name: getattr(self, name) for name in names})
        check_numbers("APO", least=0, diversity_temperature=self.diversity_temperature)
        self.critique_templates = [
            read_template(text, "critique") for text in _as_list(self.critique_template)
        ]
        self.edit_templates = [read_template(text, "edit") for text in _as_list(self.edit_template)]
        self.models = Models(
            self.async_openai_client, self.base_url, self.api_key, self.diversity_temperature
        )

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
            await session.require_success("held_out")
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
            await session.require_success()
            new = await proposer.propose(number, beam, candidates)
            candidates = [*candidates, *new]
            alive = [one for one in candidates if not evaluator.is_broken(one, "search")]
            beam = await race(evaluator, alive, beam, self._sizes())
            await session.require_success()
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
