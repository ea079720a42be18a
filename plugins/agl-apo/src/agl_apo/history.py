"""A prompt run as the store has it: candidates and their parents, scores, the curve, the result."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agl.store.base import LightningStore
from agl_apo.decision import Decision
from agl_apo.journal import EVALUATION, FIELD, SEED
from agl_learning.collected import COUNTED


@dataclass
class Node:
    """One candidate."""

    candidate_id: str
    parent: str | None = None
    texts: dict[str, str] = field(default_factory=dict[str, str])
    dropped: str | None = None
    """Why it was never tried."""
    copies: list[int] = field(default_factory=list[int])
    critique: str | None = None
    """What led to it."""
    mean: float | None = None
    """Over its evaluations in the search, at the last round that saw it."""
    evaluations: int = 0


@dataclass
class History:
    """One run."""

    run: str
    algorithm: str
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
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
        plain = asdict(self)
        return {**plain, "nodes": list(plain["nodes"].values()), "best": self.best}


async def read_histories(store: LightningStore) -> list[History]:
    """The prompt runs of a store, in the order in which they began."""
    from agl_learning.stores import each_rollout

    runs: dict[tuple[str, str], History] = {}
    async for rollout in each_rollout(store):
        values: dict[str, Any] | None = (rollout.metadata or {}).get(FIELD)
        if values is None:
            continue
        key = (values["algorithm"], values["run"])
        history = runs.setdefault(key, History(run=values["run"], algorithm=values["algorithm"]))
        if values["kind"] == EVALUATION:
            # One that failed and was not counted was lost with its start.
            is_counted = COUNTED in (rollout.metadata or {})
            history.evaluations += rollout.status == "succeeded" or is_counted
        elif "answer" in values:
            _read(history, values["kind"], values["name"], values["answer"])
    return list(runs.values())


def _read(history: History, kind: str, name: str, answer: Mapping[str, Any]) -> None:
    nodes = history.nodes
    if kind == "start":
        nodes[SEED] = Node(SEED, texts=dict(answer["seed prompts"]))
    elif kind == "critique":
        nodes[name] = Node(name, critique=answer["text"])
    elif kind == "candidate":
        node = nodes.setdefault(name, Node(name))
        node.parent, node.dropped = answer["parent"], answer["dropped"]
        node.copies = list(answer["copies"])
        node.texts = {**nodes[answer["parent"]].texts, **answer["edits"]}
    elif kind == "round":
        row = {"leader": answer["beam"][0]}
        history.rounds.append({**row, **{k: answer[k] for k in ("leader_mean", "evaluations")}})
        for one, score in answer["scores"].items():
            nodes[one].mean, nodes[one].evaluations = score["mean"], score["evaluations"]
    elif kind == "decision":
        history.decision = Decision(**answer)
    elif kind == "result":
        history.result = dict(answer)
