"""A prompt run as the store has it: candidates and their parents, scores, the curve, the result."""

from dataclasses import asdict, dataclass, field
from typing import Any

from agl.store.base import LightningStore
from agl_apo.decision import Decision
from agl_views.runs.prompt_runs import SEED, Candidate, PromptRun, PromptRuns

TOLD = ("parent", "texts", "dropped", "copies", "critique", "mean")
"""What is told of a candidate, by the names that it has there."""


@dataclass
class History:
    """One run."""

    run: str
    algorithm: str
    nodes: dict[str, Candidate] = field(default_factory=dict[str, Candidate])
    rounds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Per round: ``leader``, ``leader_mean`` and ``evaluations`` so far."""
    evaluations: int = 0
    """Stored, those of the decision among them."""
    decision: Decision | None = None
    result: dict[str, Any] | None = None
    """None while the run goes on, or where it ended early."""

    @property
    def best(self) -> str:
        """Id of the accepted candidate, or of the seed."""
        return SEED if self.result is None else self.result["best"]

    def as_json(self) -> dict[str, Any]:
        """Everything, in plain values."""
        nodes = [
            {
                "candidate_id": one.name,
                **{name: getattr(one, name) for name in TOLD},
                "evaluations": one.num_evaluations,
            }
            for one in self.nodes.values()
        ]
        return {**asdict(self), "nodes": nodes, "best": self.best}


async def read_histories(store: LightningStore) -> list[History]:
    """The prompt runs of a store, in the order in which they began."""
    from agl.store.queries import each_record

    found = PromptRuns()
    await found.take_entries(store)
    async for rollout in each_record(store.query_rollouts):
        await found.take(store, [rollout])
    return [_history(run) for run in found.runs.values()]


def _history(run: PromptRun) -> History:
    # A candidate of which there is only an evaluation is none yet.
    made = [one for one in run.candidates.values() if one.texts or one.critique or one.dropped]
    return History(
        run.name,
        run.algorithm,
        {one.name: one for one in made},
        [
            {
                "leader": one["beam"][0],
                "leader_mean": one["leader_mean"],
                "evaluations": one["evaluations"],
            }
            for _, one in sorted(run.rounds.items())
        ],
        sum(e.is_counted for one in run.candidates.values() for e in one.evaluations.values()),
        None if run.decision is None else Decision(**run.decision),
        run.result,
    )
