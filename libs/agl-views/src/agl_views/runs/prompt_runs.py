"""Prompt runs as a store has them: candidates, their parents and scores, and the decision.

Algorithms that optimise prompts keep what they did as documents: the run and the algorithm, a
``kind``, a ``name``, and the ``answer`` that was given or decided. The rollouts with which they try
a candidate have such an object as ``prompts`` in their metadata.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from agl.errors import NotSupportedError
from agl.store.base import LightningStore
from agl.store.rules import ENDED
from agl.types import Rollout
from agl_learning.collect.results import COUNTED
from agl_runs.store import RUN_ID


@dataclass(frozen=True)
class Evaluation:
    """One use of a candidate."""

    rollout_id: str
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
        return self.rounds[max(self.rounds)]["beam"][0] if self.rounds else PromptRuns.SEED

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
        while waiting:
            one, depth = waiting.pop()
            found.append((one, depth))
            waiting += [(child, depth + 1) for child in reversed(children.get(one.name, []))]
        return found

    def candidate(self, name: str) -> Candidate:
        """The one of this name, made if it is new."""
        return self.candidates.setdefault(name, Candidate(name))

    def read_evaluation(self, rollout: Rollout, values: Mapping[str, Any]) -> None:
        """Take in a rollout that tries a candidate."""
        self.run_id = (rollout.metadata or {}).get("run", self.run_id)
        self.candidate(str(values["candidate"])).evaluations[rollout.rollout_id] = Evaluation(
            rollout.rollout_id,
            rollout.status,
            str(values["split"]),
            int(values["position"]),
            int(values["task"]),
            rollout.status == "succeeded" or COUNTED in (rollout.metadata or {}),
            rollout.reward,
        )

    def read_entry(self, entry: Mapping[str, Any]) -> None:
        """Take in what was asked or decided."""
        kind, name = entry["kind"], str(entry["name"])
        answer = cast("dict[str, Any]", entry["answer"])
        self.run_id = entry.get(RUN_ID) or self.run_id
        if kind == "start":
            self.candidate(PromptRuns.SEED).texts = dict(answer.get("seed prompts", {}))
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

    FIELD: ClassVar[str] = "prompts"
    """Key in the metadata of every rollout of a run."""
    ENTRIES: ClassVar[str] = "prompts"
    """Kind of the documents of all runs."""
    EVALUATION: ClassVar[str] = "evaluation"
    """Kind of the rollouts that runners claim."""
    SEED: ClassVar[str] = "seed"
    """Id of the candidate that a run begins with."""

    runs: dict[str, PromptRun] = field(default_factory=dict[str, PromptRun])
    """By ``PromptRun.key``, in the order in which they began."""
    open: set[str] = field(default_factory=set[str])
    """Rollouts that had not ended when they were read."""
    unreadable: int = 0
    """Records of another form than ours."""

    async def take_entries(self, store: LightningStore) -> None:
        """Read the entries of a store, in the order in which they were made."""
        try:
            found = [one.body for one in await store.query_documents(self.ENTRIES)]
        except NotSupportedError:  # a store of 0.3
            return
        for entry in sorted(found, key=lambda entry: entry.get("time", 0.0)):
            self._read(entry, lambda run, entry=entry: run.read_entry(entry))

    def take(self, rollouts: Iterable[Rollout]) -> None:
        """Read rollouts of a store; those of no search are passed over."""
        for rollout in rollouts:
            given: Any = (rollout.metadata or {}).get(self.FIELD)
            values = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
            if values.get("kind") != self.EVALUATION:
                continue
            (self.open.discard if rollout.status in ENDED else self.open.add)(rollout.rollout_id)
            self._read(values, lambda run, o=rollout, v=values: run.read_evaluation(o, v))

    def _read(self, about: Mapping[str, Any], read: Callable[[PromptRun], None]) -> None:
        try:
            run = PromptRun(str(about["run"]), str(about["algorithm"]))
            read(self.runs.setdefault(run.key, run))
        except (KeyError, TypeError, ValueError):
            self.unreadable += 1
