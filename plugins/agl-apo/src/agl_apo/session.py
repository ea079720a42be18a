"""What APO and GEPA share while they run: candidates, their record in the store, the end."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from agl.algorithm.adapter import TraceAdapter
from agl.types import NamedResources, PromptTemplate
from agl_apo.copying import copied_tasks
from agl_apo.decision import Decision, Rule, decide
from agl_apo.evaluate import Candidate, Evaluator, Split
from agl_apo.options import PromptOptions
from agl_apo.templates import BrokenTemplateError, check_edit, placeholders
from agl_learning.reports.report import Report

logger = logging.getLogger("agl.apo")


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    decision: Decision | None
    """None where no candidate was better than the seed even in the search."""
    prompts: dict[str, str]
    """The accepted texts, else the seed's."""
    best: str
    """Id of the candidate that they are of."""
    leader: str
    """Id of the candidate that was best in the search, accepted or not."""
    evaluations: int
    """In all."""
    evaluations_held_out: int
    """For the decision."""
    failed_evaluations: int
    """Left out, because they failed as often as they were run."""
    evaluations_again: int
    """Run again because they had failed; not among ``evaluations``."""
    model_calls: int
    tokens: int
    """Of those calls, as the endpoint counts them."""
    copies: tuple[int, ...]
    """Train tasks that the best prompt copies from."""
    resources_id: str
    """The snapshot that holds it, the store's latest."""
    run_dir: str
    """Where the best prompts are files."""

    @property
    def accepted(self) -> bool:
        """Whether the seed was replaced."""
        return self.decision is not None and self.decision.accepted

    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


@dataclass
class SearchSession:
    """One run, begun or continued."""

    options: PromptOptions
    rule: Rule
    evaluator: Evaluator
    templates: dict[str, PromptTemplate]
    """Of the targets, as they were at first."""
    others: NamedResources
    """Resources that are not optimised."""
    seed: Candidate
    report: Report
    """Of the rounds, in the folder of the run."""
    adapter: TraceAdapter[Any]
    """Gives the conversations that models are shown."""
    publish_resources: Callable[[NamedResources, str], Awaitable[object]]
    rounds: int = 0
    """Those that are over."""
    tokens: int = 0
    model_calls: int = 0

    def __post_init__(self) -> None:
        self.journal = self.evaluator.journal
        self.leader = self.seed
        """Best in the search so far."""
        self.rewards: list[float] = []
        """Mean of the leader, per round."""
        self.val_rewards: list[tuple[int, float]] = []
        """(round, mean) of the first prompt and of what the run ends with, where it was decided."""

    @property
    def left(self) -> float:
        """Evaluations that the search may still spend."""
        most = self.options.max_evaluations
        return float("inf") if most is None else most - self.evaluator.total - self.reserve

    @property
    def pairs(self) -> int:
        """Pairs of evaluations that are planned for the decision."""
        return self.rule.pairs(len(self.evaluator.tasks["held_out"]))

    @property
    def reserve(self) -> int:
        """Evaluations that are kept for the decision."""
        return 2 * self.pairs - self.evaluator.spent["held_out"]

    async def publish(self, candidate: Candidate) -> None:
        """Store a candidate as a snapshot."""
        resources_id = self.journal.resources_id(candidate.candidate_id)
        resources = self.as_resources(candidate)
        stored = await self.journal.store.get_resources_by_id(resources_id)
        if stored is None or stored.resources != resources:
            await self.publish_resources(resources, resources_id)
        self.evaluator.resources_ids[candidate.candidate_id] = resources_id

    def as_resources(self, candidate: Candidate) -> NamedResources:
        """The snapshot of a candidate."""
        edited = {
            name: template.model_copy(update={"template": candidate.texts[name]})
            for name, template in self.templates.items()
        }
        return {**self.others, **edited}

    async def ask(self, kind: str, name: str, ask: Callable[[], Awaitable[dict[str, Any]]]) -> str:
        """The text of a model's answer, asked for once, and counted."""
        answer = await self.journal.once(kind, name, ask)
        self.model_calls += 1
        self.tokens += answer["tokens"]
        return answer["text"]

    async def admit(
        self,
        candidate_id: str,
        parent: Candidate,
        edits: Mapping[str, str],
        known: Sequence[Candidate],
        why_none: str,
    ) -> Candidate | None:
        """A candidate made of edits, recorded and published; None when it cannot be tried.

        Args:
            edits: Target -> its new text; none when no model gave one.
            known: All candidates so far; a repetition is dropped.
            why_none: The reason for none.
        """
        texts = {**parent.texts, **edits}
        dropped = None if edits else why_none
        for target, text in edits.items():
            try:
                check_edit(self.templates[target], text)
            except BrokenTemplateError as error:
                dropped = f"the edit breaks {target!r}: {error}"
        twin = next((one for one in known if one.texts == texts), None)
        if dropped is None and twin is not None:
            dropped = f"the same as {twin.candidate_id!r}"
        copies = () if dropped else self.copies_of(texts)
        recorded = await self.journal.note(
            "candidate",
            candidate_id,
            {
                "parent": parent.candidate_id,
                "edits": dict(edits),
                "dropped": dropped,
                "copies": list(copies),
            },
        )
        if recorded["dropped"] is not None:
            logger.info("candidate %s dropped: %s", candidate_id, recorded["dropped"])
            return None
        texts = {**parent.texts, **recorded["edits"]}
        candidate = Candidate(candidate_id, texts, tuple(recorded["copies"]))
        await self.publish(candidate)
        return candidate

    async def note_round(
        self, number: int, beam: Sequence[Candidate], candidates: Sequence[Candidate]
    ) -> None:
        """Record where the search stands after a round."""
        self.leader, self.rounds = beam[0], number
        scores: dict[str, dict[str, Any]] = {}
        for candidate in candidates:
            if rewards := [score.reward for score in self.evaluator.known(candidate, "search")]:
                mean, evaluations = sum(rewards) / len(rewards), len(rewards)
                scores[candidate.candidate_id] = {"mean": mean, "evaluations": evaluations}
        leader = scores[self.leader.candidate_id]
        spent = {"evaluations": self.evaluator.total, "tokens": self.tokens}
        logger.info(
            "round %d: candidate %s leads with a mean reward of %.3f over %d evaluations (the "
            "search's own view); %d evaluations so far",
            number,
            self.leader.candidate_id,
            leader["mean"],
            leader["evaluations"],
            self.evaluator.total,
        )
        await self.journal.note(
            "round",
            str(number),
            {
                "beam": [candidate.candidate_id for candidate in beam],
                "leader_mean": leader["mean"],
                "scores": scores,
                **spent,
            },
        )
        self.rewards.append(leader["mean"])
        about = {"step": number, "reward/mean": leader["mean"], "candidates": len(candidates)}
        await self.report.step(number, {**about, **spent})

    def copies_of(self, texts: Mapping[str, str]) -> tuple[int, ...]:
        """Train tasks that any text copies from."""
        tasks = self.evaluator.tasks["search"]
        found = {
            number
            for name, text in texts.items()
            for number in copied_tasks(text, self.seed.texts[name], tasks)
        }
        return tuple(sorted(found))

    async def require_success(self, split: Split = "search") -> None:
        """Stop when the seed cannot be judged; the next run tries what failed again.

        Raises:
            AlgorithmError: Too many of its evaluations failed; says why, and about placeholders.
        """
        failed = self.evaluator.failed(self.seed, split)
        hint = self._missing(failed[0].task, split) if failed else ""
        await self.evaluator.require_success(self.seed, split, hint)

    def _missing(self, number: int, split: Split) -> str:
        task = self.evaluator.tasks[split][number]
        has = sorted(map(str, task)) if isinstance(task, Mapping) else None
        for name, template in self.templates.items():
            lacking = sorted(placeholders(template) - set(has or ()))
            if lacking:
                what = f"keys {', '.join(map(repr, has))}" if has else f"{task!r}, without keys"
                return (
                    f" Prompt {name!r} asks for {', '.join(map(repr, lacking))}; the task has "
                    f"{what}"
                )
        return ""

    def summary(self) -> dict[str, Any]:
        """What the run's result says of the rounds and the decision."""
        return {"rewards": self.rewards, "val_rewards": self.val_rewards, **self.report.of_run()}

    async def finish(self) -> Result:
        """Decide about the leader, publish the better of the two, write the files."""
        decision: Decision | None = None
        if self.leader.texts != self.seed.texts:
            most = self.options.max_evaluations
            spent = self.evaluator.spent["search"]
            pairs = None if most is None else (most - spent) // 2
            found = await decide(self.evaluator, self.seed, self.leader, self.rule, pairs)
            # Recorded, so that the same is said however often the run is continued.
            decision = Decision(**await self.journal.note("decision", "final", asdict(found)))
            metrics = decision.metrics(self.rounds)
            self.val_rewards = [(0, decision.seed_mean), (self.rounds, metrics["val/reward/mean"])]
            await self.report.evaluation(self.rounds, metrics)
        accepted = decision is not None and decision.accepted
        best = self.leader if accepted else self.seed
        resources_id = self.journal.resources_id("best")
        await self.publish_resources(self.as_resources(best), resources_id)
        result = Result(
            decision=decision,
            prompts=dict(best.texts),
            best=best.candidate_id,
            leader=self.leader.candidate_id,
            evaluations=self.evaluator.total,
            evaluations_held_out=self.evaluator.spent["held_out"],
            failed_evaluations=self.evaluator.num_failed,
            evaluations_again=self.evaluator.again,
            model_calls=self.model_calls,
            tokens=self.tokens,
            copies=best.copies,
            resources_id=resources_id,
            run_dir=str(self.report.folder),
        )
        written = result.as_json()
        await self.journal.note("result", "final", written)
        for name, text in result.prompts.items():
            file = f"best_prompt.{quote(name, safe='')}.txt"  # a name may have a slash
            (self.report.folder / file).write_text(text, encoding="utf-8")
        text = json.dumps(written, indent=2, ensure_ascii=False)
        (self.report.folder / "result.json").write_text(text + "\n", encoding="utf-8")
        self._say(result)
        return result

    def _say(self, result: Result) -> None:
        if result.failed_evaluations:
            logger.warning(
                "%d evaluations failed as often as they were run, and were left out; see: agl "
                "rollouts --status failed",
                result.failed_evaluations,
            )
        logger.info(
            "the rollouts of this search are %d evaluations, %d of them for the decision, and %d "
            "that were run again because they had failed; it asked models in %d calls, %d tokens",
            result.evaluations,
            result.evaluations_held_out,
            result.evaluations_again,
            result.model_calls,
            result.tokens,
        )
        if result.decision is None:
            logger.info("no candidate was better than the seed in the search; the seed stays")
            return
        logger.info("candidate %s", result.decision.verdict)
        if result.copies:
            logger.warning("the best prompt copies from the train tasks %s", list(result.copies))
