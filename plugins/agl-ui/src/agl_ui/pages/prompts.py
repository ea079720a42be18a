"""Prompt runs: the tree of candidates, what changed, and why one was accepted."""

from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl_ui.charts import chart
from agl_ui.data_sources import DataSource
from agl_ui.differences import Piece, differences
from agl_ui.pages.page import Page
from agl_ui.prompt_tree import prompt_runs
from agl_views.runs.prompt_runs import Candidate, Evaluation, PromptRun, PromptRuns

SPLITS = {"search": "in the search", "held_out": "on held-out tasks"}
MOST_SHOWN = 200
"""Evaluations of one candidate and split."""


@dataclass(frozen=True)
class Scored:
    """A task, with what two candidates got on it."""

    task: int
    position: int
    one: Evaluation | None
    other: Evaluation | None

    @property
    def gain(self) -> float | None:
        """How much more the first one got."""
        rewards = [side.reward for side in (self.one, self.other) if side is not None]
        known = [reward for reward in rewards if reward is not None]
        return known[0] - known[1] if len(known) == 2 else None


async def write(request: Request, source: DataSource) -> Page:
    """One prompt run of a store, and one candidate of it."""
    state = await source.state()
    known = await prompt_runs(source)
    given = request.query_params
    runs = list(known.runs.values())[::-1]
    values: dict[str, Any] = {"title": "Prompts", "known": known, "runs": runs, "run": None}
    if not runs and "run" in given:
        raise HTTPException(400, f"run={given['run'][:100]!r}: this store has no prompt run")
    if not runs:
        return Page("prompts.html", values, source, "prompts", state=state)
    run = known.runs.get(given["run"]) if "run" in given else runs[0]
    if run is None:
        raise HTTPException(400, f"run={given['run'][:100]!r}: this store has no such prompt run")
    candidate = _chosen(run, given.get("candidate"), run.best or run.leader)
    before = candidate.parent or PromptRuns.SEED
    against = _chosen(run, given.get("against"), before)
    split = given.get("split", "search")
    if split not in SPLITS:
        raise HTTPException(400, f"split={split[:50]!r}: expected {' or '.join(SPLITS)}")
    mine, theirs = (
        {each.position: each for each in side.ended(split)[:MOST_SHOWN]}
        for side in (candidate, against)
    )
    rounds = {n: one.get("leader_mean") for n, one in sorted(run.rounds.items())}
    values |= {
        "run": run,
        "tree": run.tree(),
        "beam": run.rounds[max(run.rounds)]["beam"] if run.rounds else [],
        "curve": chart("Mean reward of the leader per round", [("leader", "val", rounds)]),
        "candidate": candidate,
        "against": against,
        "changes": await run_in_threadpool(_changes, against, candidate),
        "split": split,
        "splits": SPLITS,
        # By position; the two ran the same beginning of one stream of tasks.
        "scores": [
            Scored((mine.get(at) or theirs[at]).task, at, mine.get(at), theirs.get(at))
            for at in sorted({*mine, *theirs})
        ],
        "most": MOST_SHOWN,
        "chosen": {"run": run.key, "candidate": candidate.name, "against": against.name},
    }
    return Page("prompts.html", values, source, "prompts", state=state)


def _chosen(run: PromptRun, name: str | None, default: str) -> Candidate:
    found = run.candidates.get(name or default)
    if found is None and name:
        raise HTTPException(400, f"{name[:100]!r} is no candidate of {run.key}")
    return found or Candidate(default)


def _changes(old: Candidate, new: Candidate) -> dict[str, list[Piece]]:
    names = dict.fromkeys([*old.texts, *new.texts])
    return {name: differences(old.texts.get(name, ""), new.texts.get(name, "")) for name in names}
