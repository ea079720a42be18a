"""Prompt runs as a store has them: candidates, their parents and scores, and the decision.

Algorithms that optimise prompts keep what they did as rollouts whose metadata has ``prompts``: the
run and the algorithm, a ``kind``, a ``name``, and the ``answer`` that was given or decided.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from agl.store.base import LightningStore
from agl.types import AttemptedRollout, Rollout
from agl_learning.collected import COUNTED
from agl_runs.result import NOTE, with_reward

FIELD: Final = "prompts"
"""Key in the metadata of every rollout of a run."""
EVALUATION: Final = "evaluation"
"""Kind of the rollouts that runners claim."""
SEED: Final = "seed"
"""Id of the candidate that a run begins with."""
ENDED: Final = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Evaluation:
    """One use of a candidate."""

    rollout_id: str
    attempt_id: str | None
    status: str
    split: str
    """``search`` or ``held_out``."""
    position: int
    task: int
    """In its dataset."""
    is_counted: bool
    """Whether it stands, as a result or as a failure; one that was lost with its start does not."""
    reward: float | None = None
    """That counts."""


@dataclass
class Candidate:
    """Texts that were tried in the place of the first ones."""

    name: str
    parent: str | None = None
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Resource -> its template."""
    dropped: str | None = None
    """Why it was never tried."""
    copies: list[int] = field(default_factory=list[int])
    """Train tasks that it copies from."""
    critique: str | None = None
    """What led to it."""
    mean: float | None = None
    """Of its rewards in the search, from 0 to 1, at the last round that saw it."""
    num_evaluations: int = 0
    """That are in the mean."""
    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where its mean over all such tasks is with 95 % confidence, by Hoeffding's bound."""
        if self.mean is None or not self.num_evaluations:
            return None
        half = math.sqrt(math.log(2 / 0.05) / (2 * self.num_evaluations))
        return max(0.0, self.mean - half), min(1.0, self.mean + half)

    def ended(self, split: str) -> list[Evaluation]:
        """Its evaluations that are over, by position."""
        of_it = [e for e in self.evaluations.values() if e.split == split and e.status in ENDED]
        return sorted(of_it, key=lambda one: one.position)


@dataclass
class PromptRun:
    """One run of an algorithm that optimises prompts."""

    name: str
    algorithm: str
    run_id: str | None = None
    """Of the trainer's run."""
    candidates: dict[str, Candidate] = field(default_factory=dict[str, Candidate])
    """In the order in which they were made."""
    rounds: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    """Number -> ``beam`` (the leader first), ``leader_mean``, ``evaluations``, ``tokens``."""
    decision: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    """None while it goes on, and where it ended early."""

    @property
    def key(self) -> str:
        """What it is called in addresses."""
        return f"{self.algorithm}/{self.name}"

    @property
    def leader(self) -> str:
        """The best in the search so far."""
        return self.rounds[max(self.rounds)]["beam"][0] if self.rounds else SEED

    @property
    def best(self) -> str | None:
        """What was accepted, or the first one; None before the end."""
        return None if self.result is None else str(self.result["best"])

    def tree(self) -> list[tuple[Candidate, int]]:
        """Candidates, each below its parent, with their depths."""
        children: dict[str | None, list[Candidate]] = {}
        for one in self.candidates.values():
            known = one.parent if one.parent in self.candidates else None
            children.setdefault(known, []).append(one)
        found: list[tuple[Candidate, int]] = []
        waiting = [(one, 0) for one in reversed(children.get(None, []))]
        seen: set[str] = set()
        while waiting:
            one, depth = waiting.pop()
            if one.name in seen:
                continue
            seen.add(one.name)
            found.append((one, depth))
            waiting += [(child, depth + 1) for child in reversed(children.get(one.name, []))]
        return found

    def candidate(self, name: str) -> Candidate:
        """The one of this name, made if it is new."""
        return self.candidates.setdefault(name, Candidate(name))

    def read(self, rollout: Rollout, values: Mapping[str, Any]) -> None:
        """Take in one record."""
        kind, name = values.get("kind"), str(values.get("name", ""))
        self.run_id = (rollout.metadata or {}).get("run", self.run_id)
        if kind == EVALUATION:
            attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
            self.candidate(str(values["candidate"])).evaluations[rollout.rollout_id] = Evaluation(
                rollout.rollout_id,
                None if attempt is None else attempt.attempt_id,
                rollout.status,
                str(values["split"]),
                int(values["position"]),
                int(values["task"]),
                rollout.status == "succeeded" or COUNTED in (rollout.metadata or {}),
                rollout.reward,
            )
        given: Any = values.get("answer")
        if not isinstance(given, dict):
            return
        answer = cast("dict[str, Any]", given)
        if kind == "start":
            self.candidate(SEED).texts = dict(answer.get("seed prompts", {}))
        elif kind == "critique":
            self.candidate(name).critique = str(answer.get("text", ""))
        elif kind == "candidate":
            one, parent = self.candidate(name), str(answer["parent"])
            one.parent, one.dropped = parent, answer["dropped"]
            one.copies = list(answer["copies"])
            one.texts = {**self.candidate(parent).texts, **answer["edits"]}
        elif kind == "round":
            self.rounds[int(name)] = dict(answer)
            for scored, score in answer["scores"].items():
                one = self.candidate(scored)
                one.mean, one.num_evaluations = score["mean"], score["evaluations"]
        elif kind == "decision":
            self.decision = dict(answer)
        elif kind == "result":
            self.result = dict(answer)


@dataclass
class PromptRuns:
    """The prompt runs of one store, as far as it was read."""

    runs: dict[str, PromptRun] = field(default_factory=dict[str, PromptRun])
    """By ``PromptRun.key``, in the order in which they began."""
    open: set[str] = field(default_factory=set[str])
    """Records that had not ended when they were read."""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    """Id of a rollout that is none, but a record of a search -> its status."""
    unreadable: int = 0
    """Records of another form than ours."""

    async def take(self, store: LightningStore, rollouts: Iterable[Rollout]) -> None:
        """Read records of a store; rollouts that are none are passed over."""
        for rollout in rollouts:
            given: Any = (rollout.metadata or {}).get(FIELD)
            if not isinstance(given, dict):
                continue
            values = cast("dict[str, Any]", given)
            if NOTE in (rollout.metadata or {}):
                self.notes[rollout.rollout_id] = rollout.status
            (self.open.discard if rollout.status in ENDED else self.open.add)(rollout.rollout_id)
            rollout = await with_reward(store, rollout)
            try:
                run = PromptRun(str(values["run"]), str(values["algorithm"]))
                self.runs.setdefault(run.key, run).read(rollout, values)
            except (KeyError, TypeError, ValueError):
                self.unreadable += 1
