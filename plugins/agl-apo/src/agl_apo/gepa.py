"""GEPA: reflective prompt evolution, by the package ``gepa``, over the same store and decision.

GEPA's engine is synchronous and runs in a thread; what it wants evaluated or reflected on comes
back to the event loop and goes through the store, with durable keys. A run that was killed is
played again from there, by the same seed and the same answers, and pays for nothing twice.

Source: L. Agrawal et al., "GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning"
(arXiv:2507.19457), package ``gepa``. Where we differ: the train dataset is its training and its
validation set, and our validation dataset is held out for the decision (``agl_apo.decision``).
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from agl.errors import AlgorithmError, ConfigError
from agl_apo.evaluate import Candidate, NoScore, Score
from agl_apo.models import Models
from agl_apo.optimizer import PromptOptimizer
from agl_apo.proposals import experiment
from agl_apo.session import SearchSession
from agl_learning.collect.task_order import digest
from agl_runs.options import Count, NotNegative

logger = logging.getLogger("agl.apo")

T = TypeVar("T")


@dataclass(kw_only=True, eq=False, repr=False)
class GEPA(PromptOptimizer):
    """Improve prompts by reflective evolution over a Pareto front (the package ``gepa``).

    The tasks of ``train_dataset`` are for the search, those of ``val_dataset`` are held out for the
    decision, which is the same as that of ``apo``. Needs the extra ``agl-apo[gepa]``.

    Args:
        reflection_model: Writes the new prompts.
        temperature: Temperature of that model.
        reflection_minibatch_size: Evaluations that a reflection sees.
        candidate_selection: Which candidate is evolved next.
        use_merge: Whether candidates are merged, too.

    Raises:
        ConfigError: An option is wrong.
    """

    name = "gepa"
    is_shuffled = False

    reflection_model: str = "gpt-5-mini"
    temperature: NotNegative = 1.0
    reflection_minibatch_size: Count = 3
    candidate_selection: str = "pareto"
    use_merge: bool = False
    max_evaluations: Count | None = 1000
    run_name: str = "gepa"

    def __post_init__(self) -> None:
        # That it is missing is said now, with the extra that brings it.
        import gepa  # noqa: F401  # pyright: ignore[reportMissingImports]

        super().__post_init__()
        if self.max_evaluations is None:
            raise ConfigError("GEPA: max_evaluations must be a number; GEPA ends only by it")
        self.models = Models(self, self.temperature)

    def identity(self) -> dict[str, Any]:
        return {
            "reflection": [self.reflection_model, self.temperature, self.reflection_minibatch_size],
            "search": [self.candidate_selection, self.use_merge],
        }

    def smallest_search(self, num_tasks: int) -> int:
        # The first prompt on all tasks, then one step: both on a minibatch, the new one on all.
        return 2 * num_tasks + 2 * self.reflection_minibatch_size

    async def search(self, session: SearchSession) -> None:
        bridge = Bridge(self, session, asyncio.get_running_loop())
        await asyncio.to_thread(bridge.optimize)


@dataclass(eq=False)
class Bridge:
    """GEPA's adapter: what it asks for in its thread is done on the event loop."""

    options: GEPA
    session: SearchSession
    loop: asyncio.AbstractEventLoop
    # GEPA looks whether its adapter has a proposer of its own.
    propose_new_texts = None

    def __post_init__(self) -> None:
        seed = self.session.seed
        self._admitted: dict[str, Candidate | None] = {_key(seed.texts): seed}
        self._parent = seed
        self._times: Counter[tuple[str, int]] = Counter()
        self._questions: Counter[str] = Counter()
        self._best: tuple[float, Candidate] | None = None
        self._failure: Exception | None = None

    def optimize(self) -> None:
        """Run the engine; in a thread of its own."""
        from gepa.api import optimize  # pyright: ignore[reportMissingImports]

        session, options = self.session, self.options
        most, num_tasks = options.max_evaluations, len(session.evaluator.tasks["search"])
        assert most is not None
        # It looks at the budget between steps, and a step may take so many more.
        step = num_tasks + 2 * options.reflection_minibatch_size
        optimize(
            seed_candidate=dict(session.seed.texts),
            trainset=list(range(num_tasks)),
            adapter=self,  # pyright: ignore[reportArgumentType]
            reflection_lm=self.reflect,  # pyright: ignore[reportArgumentType]
            reflection_minibatch_size=options.reflection_minibatch_size,
            candidate_selection_strategy=options.candidate_selection,  # pyright: ignore[reportArgumentType]
            use_merge=options.use_merge,
            max_metric_calls=most - session.reserve - step,
            stop_callbacks=lambda gepa_state: (
                self._failure is not None or options.is_budget_spent()
            ),
            logger=SimpleNamespace(log=partial(logger.debug, "gepa: %s")),  # pyright: ignore[reportArgumentType]
            seed=options.seed,
        )
        if self._failure is not None:  # the engine only logs it
            raise AlgorithmError(
                f"GEPA: a reflection failed with {type(self._failure).__name__}: {self._failure}. "
                f"Is the model {options.reflection_model!r} there? Running again continues here"
            ) from self._failure

    def evaluate(
        self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        """Scores of a candidate on tasks; zeros at no cost for one that cannot be tried."""
        from gepa.core.adapter import EvaluationBatch  # pyright: ignore[reportMissingImports]

        admitted = self._await(self._admit(candidate))
        if admitted is None:
            return EvaluationBatch(
                outputs=[None] * len(batch),
                scores=[0.0] * len(batch),
                trajectories=[] if capture_traces else None,
                num_metric_calls=0,
            )
        if capture_traces:
            self._parent = admitted
        outcomes = self._await(self._run(admitted, batch))
        return EvaluationBatch(
            outputs=[one.rollout_id for one in outcomes],
            scores=self._rewards(admitted, outcomes),
            trajectories=outcomes if capture_traces else None,
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What reflections are shown: task, conversation and reward."""

        async def shown(target: str) -> list[dict[str, Any]]:
            experiments = [
                await experiment(self.session, score, target) for score in eval_batch.trajectories
            ]
            return [
                {
                    "Inputs": one["task"],
                    "Generated Outputs": "\n".join(
                        f"{message['role']}: {message['content']}" for message in one["messages"]
                    ),
                    "Feedback": f"it failed: {one['failure']}"
                    if one["failure"]
                    else f"reward {one['reward']}",
                }
                for one in experiments
            ]

        return {target: self._await(shown(target)) for target in components_to_update}

    def reflect(self, prompt: Any) -> str:
        """The model's answer, recorded."""
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        question = digest([text])
        self._questions[question] += 1
        name = f"{question}.{self._questions[question]}"

        async def ask() -> dict[str, Any]:
            return await self.options.models.ask(self.options.reflection_model, text)

        try:
            return self._await(self.session.ask("reflection", name, ask))
        except Exception as error:
            self._failure = error
            raise

    async def _admit(self, texts: dict[str, str]) -> Candidate | None:
        """A candidate; its parent is the one that differs in fewest texts.

        GEPA does not name the parent. A merged candidate is not one of that traced last.
        """

        def edits(one: Candidate) -> dict[str, str]:
            return {name: text for name, text in texts.items() if text != one.texts[name]}

        key = _key(texts)
        if key not in self._admitted:
            known = [self._parent, *filter(None, self._admitted.values())]
            parent = min(known, key=lambda one: len(edits(one)))
            self._admitted[key] = await self.session.admit(
                f"g{len(self._admitted)}", parent, edits(parent), [], "no prompt was changed"
            )
        return self._admitted[key]

    async def _run(self, candidate: Candidate, tasks: Sequence[int]) -> list[Score | NoScore]:
        evaluator, num_tasks = self.session.evaluator, len(self.session.evaluator.tasks["search"])
        positions: list[int] = []
        for task in tasks:
            positions.append(self._times[candidate.candidate_id, task] * num_tasks + task)
            self._times[candidate.candidate_id, task] += 1
        await evaluator.extend([candidate], "search", positions)
        await self.session.require_success()
        known = evaluator.outcomes[candidate.candidate_id, "search"]
        outcomes = [known[position] for position in positions]
        if len(tasks) == num_tasks:
            await self._note(candidate, sum(self._rewards(candidate, outcomes)) / num_tasks)
        return outcomes

    def _rewards(self, candidate: Candidate, outcomes: Sequence[Score | NoScore]) -> list[float]:
        """GEPA wants a number of each: one that failed gets the mean of the others.

        So it moves no mean. A candidate that cannot be judged gets zeros, and is not taken up.
        """
        rewards = [one.reward for one in outcomes if isinstance(one, Score)]
        if self.session.evaluator.is_broken(candidate, "search") or not rewards:
            logger.warning(
                "candidate %s cannot be judged: %s; it is not taken up",
                candidate.candidate_id,
                self.session.evaluator.why_broken(candidate, "search"),
            )
            return [0.0] * len(outcomes)
        mean = sum(rewards) / len(rewards)
        return [one.reward if isinstance(one, Score) else mean for one in outcomes]

    async def _note(self, candidate: Candidate, mean: float) -> None:
        """GEPA has taken a candidate up, and run it on all tasks."""
        if self._best is None or mean > self._best[0]:
            self._best = (mean, candidate)
        tried = [one for one in self._admitted.values() if one is not None]
        await self.session.note_round(self.session.rounds + 1, [self._best[1]], tried)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


def _key(texts: Mapping[str, str]) -> str:
    return json.dumps(texts, sort_keys=True)
