"""Prompt runs: the tree of candidates, what changed, and why one was accepted."""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl.errors import DamagedRecordError
from agl_learning.final_rewards import FinalReward, find_reward
from agl_learning.prompt_runs import SEED, Candidate, Evaluation, PromptRun
from agl_ui.charts import chart
from agl_ui.differences import Piece, differences
from agl_ui.pages.page import Page
from agl_ui.places import Place, Places
from agl_ui.prompt_tree import prompt_runs

SPLITS = {"search": "in the search", "held_out": "on held-out tasks"}
MOST_SHOWN = 200
"""Evaluations of one candidate and split."""


@dataclass(frozen=True)
class Scored:
    """A task, with what two candidates got on it."""

    task: int
    position: int
    one: tuple[Evaluation, float | None] | None
    other: tuple[Evaluation, float | None] | None

    @property
    def gain(self) -> float | None:
        """How much more the first one got."""
        sides = [side[1] for side in (self.one, self.other) if side is not None]
        known = [reward for reward in sides if reward is not None]
        return known[0] - known[1] if len(known) == 2 else None


async def write(request: Request, places: Places) -> Page:
    """One prompt run of a store, and one candidate of it."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    known = await prompt_runs(place)
    given = request.query_params
    runs = list(known.runs.values())[::-1]
    values: dict[str, Any] = {"title": "Prompts", "known": known, "runs": runs, "run": None}
    if not runs and "run" in given:
        raise HTTPException(400, f"run={given['run'][:100]!r}: this store has no prompt run")
    if not runs:
        return Page("prompts.html", values, place, "prompts", state=state)
    run = known.runs.get(given["run"]) if "run" in given else runs[0]
    if run is None:
        raise HTTPException(400, f"run={given['run'][:100]!r}: this store has no such prompt run")
    candidate = _chosen(run, given.get("candidate"), run.best or run.leader)
    before = candidate.parent or SEED
    against = _chosen(run, given.get("against"), before)
    split = given.get("split", "search")
    if split not in SPLITS:
        raise HTTPException(400, f"split={split[:50]!r}: expected {' or '.join(SPLITS)}")
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
        "scores": await _scores(place, candidate, against, split),
        "most": MOST_SHOWN,
        "chosen": {"run": run.key, "candidate": candidate.name, "against": against.name},
    }
    return Page("prompts.html", values, place, "prompts", state=state)


def _chosen(run: PromptRun, name: str | None, default: str) -> Candidate:
    found = run.candidates.get(name or default)
    if found is None and name:
        raise HTTPException(400, f"{name[:100]!r} is no candidate of {run.key}")
    return found or Candidate(default)


def _changes(old: Candidate, new: Candidate) -> dict[str, list[Piece]]:
    names = dict.fromkeys([*old.texts, *new.texts])
    return {name: differences(old.texts.get(name, ""), new.texts.get(name, "")) for name in names}


async def _scores(place: Place, one: Candidate, other: Candidate, split: str) -> list[Scored]:
    """By position, what both got; the two ran the same beginning of one stream of tasks."""
    first, second = one.ended(split)[:MOST_SHOWN], other.ended(split)[:MOST_SHOWN]
    rewards = dict(
        zip(
            [each.rollout_id for each in (*first, *second)],
            await asyncio.gather(*(_reward(place, each) for each in (*first, *second))),
            strict=True,
        )
    )
    mine, theirs = ({each.position: each for each in side} for side in (first, second))
    return [
        Scored(
            (mine.get(at) or theirs[at]).task,
            at,
            (mine[at], rewards[mine[at].rollout_id]) if at in mine else None,
            (theirs[at], rewards[theirs[at].rollout_id]) if at in theirs else None,
        )
        for at in sorted({*mine, *theirs})
    ]


async def _reward(place: Place, one: Evaluation) -> float | None:
    if one.attempt_id is None:
        return None
    try:
        given = await find_reward(place.store, one.rollout_id, one.attempt_id)
        return FinalReward.of(one.status, given).reward
    except DamagedRecordError:
        return None
