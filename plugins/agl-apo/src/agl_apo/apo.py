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
from dataclasses import dataclass
from typing import Any

from agl_apo.models import Models, read_templates
from agl_apo.optimizer import PromptOptimizer
from agl_apo.options import APOOptions
from agl_apo.proposals import Proposer
from agl_apo.race import Sizes, race
from agl_apo.session import SearchSession

logger = logging.getLogger("agl.apo")


@dataclass(kw_only=True, eq=False, repr=False)
class APO(APOOptions, PromptOptimizer):
    """Improve prompts by critiques and edits that models write, with beam search.

    The tasks of ``train_dataset`` are for the search, those of ``val_dataset`` are held out for the
    decision. Every evaluation, critique and edit is in the store; a run with the same ``run_name``
    there continues. The best prompts become the latest resources of the store, and files.

    Raises:
        ConfigError: An option is wrong.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.templates = {
            "critique": read_templates(self.critique_template, "critique"),
            "edit": read_templates(self.edit_template, "edit"),
        }
        self.models = Models(self, self.diversity_temperature)

    def identity(self) -> dict[str, Any]:
        return {
            "beam": [self.beam_width, self.branch_factor, self.beam_rounds],
            "batches": [self.gradient_batch_size, self.val_batch_size],
            "templates": list(self.templates.values()),
            "models": [self.gradient_model, self.apply_edit_model, self.diversity_temperature],
        }

    def smallest_search(self, num_tasks: int) -> int:
        return self._round_cost(1)

    async def search(self, session: SearchSession) -> None:
        proposer = Proposer(self, self.models, self.templates, session)
        evaluator, candidates, beam = session.evaluator, [session.seed], [session.seed]
        if self.run_initial_validation:
            count = min(self.val_batch_size, session.pairs)
            await evaluator.extend([session.seed], "held_out", range(count))
            await session.require_success("held_out")
        for number in range(1, self.beam_rounds + 1):
            if session.left < self._round_cost(len(beam)):
                logger.info("max_evaluations allows no further round; %d were made", number - 1)
                break
            await evaluator.extend(beam, "search", range(self.gradient_batch_size))
            await session.require_success()
            candidates += await proposer.propose(number, beam, candidates)
            alive = [one for one in candidates if not evaluator.is_broken(one, "search")]
            beam = await race(evaluator, alive, beam, self._sizes())
            await session.require_success()
            await session.note_round(number, beam, candidates)

    def _sizes(self) -> Sizes:
        step = max(1, self.val_batch_size // 4)
        return Sizes(width=self.beam_width, step=step, share=self.val_batch_size)

    def _round_cost(self, num_parents: int) -> int:
        gradient = num_parents * self.gradient_batch_size
        return gradient + self._sizes().cost(num_parents * (1 + self.branch_factor))
