"""The reward of a rollout, and whether it counts: the one rule of all that shows rewards.

The final reward of a rollout counts where the rollout succeeded, as training has it. What was given
to one that failed, was cancelled or has not ended was given on the way: it is shown as that, and is
in no mean, spread, curve or order of rewards.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from agl.emitter import find_final_reward, is_reward_span, reward_problem
from agl.errors import DamagedRecordError
from agl.runs.finding import open_to_read
from agl.semconv import AGL_ANNOTATION, AGL_REWARD, LightningSpanAttributes as Key
from agl.store.base import LightningStore
from agl.store.detached import json_of
from agl.store.packed import span_of
from agl.store.queries import Filter, make_query
from agl.store.sqlite.ids import number_of
from agl.store.sqlite.lookups import SqliteLookups
from agl.store.sqlite.rows import SPAN_PLACE, damage, is_damaged
from agl.types import PaginatedResult, Rollout, Span
from agl_learning.file_store import file_of

LAST_SPANS: Final = 8
"""The last spans of a rollout, among which its reward is as a rule."""
SPANS_LOOKED_AT: Final = 50
"""Else among so many of the last ones of each name of ours, and of all."""

_Looks = Generator[dict[str, Any], PaginatedResult[Span], float | None]
"""Asks for spans of an attempt, gets them, and gives the reward in the end."""


@dataclass(frozen=True)
class FinalReward:
    """What a rollout, or an attempt, was given in the end."""

    reward: float | None = None
    """What counts; None where nothing does."""
    on_the_way: float | None = None
    """The last that was given to one that did not succeed."""
    problem: str = ""
    """Why nobody can say it: a record is damaged."""

    @classmethod
    def of(cls, status: str, given: float | None) -> "FinalReward":
        """By the status of the rollout or attempt, and the final reward in its spans."""
        return cls(given) if status == "succeeded" else cls(on_the_way=given)

    def __str__(self) -> str:
        """For a cell of a table."""
        return reward_text(self.reward, self.on_the_way)


def reward_text(reward: float | None, on_the_way: float | None, none: str = "") -> str:
    """A reward for people; ``none`` is said where there is none of both."""
    if reward is not None:
        return f"{reward:.4g}"
    return none if on_the_way is None else f"{on_the_way:.4g} on the way"


async def final_rewards(
    store: LightningStore, rollouts: Sequence[Rollout]
) -> dict[str, FinalReward]:
    """Rollout id -> what it was given; a damaged record is noted there, and spares the others."""
    if (path := file_of(store)) is not None:
        with closing(open_to_read(path)) as connection:
            given = rewards_in(connection, [one.rollout_id for one in rollouts])
    else:
        given = {one.rollout_id: await _noted(store, one.rollout_id) for one in rollouts}
    found: dict[str, FinalReward] = {}
    for one in rollouts:
        value = given[one.rollout_id]
        is_unread = isinstance(value, DamagedRecordError)
        found[one.rollout_id] = (
            FinalReward(problem=str(value)) if is_unread else FinalReward.of(one.status, value)
        )
    return found


async def _noted(store: LightningStore, rollout_id: str) -> float | None | DamagedRecordError:
    try:
        return await find_reward(store, rollout_id)
    except DamagedRecordError as error:
        return error


async def find_reward(
    store: LightningStore, rollout_id: str, attempt_id: str = "latest"
) -> float | None:
    """What ``find_final_reward`` says of an attempt, from as few of its spans as have it.

    Of a long trace a reward under a name that is none of ours is found among the last
    ``SPANS_LOOKED_AT`` spans only.

    Raises:
        DamagedRecordError: One of the spans looked at is; an earlier reward would count.
    """
    looks = _looks()
    try:
        asked = next(looks)
        while True:
            asked = looks.send(await store.query_spans(rollout_id, attempt_id, **asked))
    except StopIteration as end:
        return end.value


def rewards_in(
    connection: sqlite3.Connection, rollout_ids: Sequence[str]
) -> dict[str, float | None | DamagedRecordError]:
    """The same of the last attempts of many rollouts in a store's file; damage is noted."""
    found: dict[str, float | None | DamagedRecordError] = {}
    ends: dict[str, list[Span]] = {}
    numbers = json_of([number_of(one) for one in rollout_ids], "numbers")
    sql = files("agl_learning").joinpath("final_rewards.sql").read_text("utf-8")
    values = {"numbers": numbers, "most": LAST_SPANS}
    for rollout_id, body, sequence_id, crc, a, span_id, name in connection.execute(sql, values):
        if is_damaged(body, crc, a * SPAN_PLACE + sequence_id):
            what = f"span {name!r} ({span_id!r}) of rollout {rollout_id!r}"
            found[rollout_id] = DamagedRecordError(damage(what))
        else:
            ends.setdefault(rollout_id, []).append(span_of(body, sequence_id))
    lookups = SqliteLookups(connection)
    for rollout_id in rollout_ids:
        if rollout_id not in found:
            end = ends.get(rollout_id, [])
            found[rollout_id] = (
                find_final_reward(end) if _is_decided(end) else _looked_up(lookups, rollout_id)
            )
    return found


def _looked_up(lookups: SqliteLookups, rollout_id: str) -> float | None | DamagedRecordError:
    looks = _looks()
    try:
        asked = next(looks)
        while True:
            named = [Filter("name", "exact", asked.pop("name"))] if "name" in asked else []
            query = make_query("spans", named, **asked)
            asked = looks.send(lookups.query_spans(rollout_id, "latest", query))
    except StopIteration as end:
        return end.value
    except DamagedRecordError as error:
        return error


def _looks() -> _Looks:
    last = yield {"sort_order": "desc", "limit": LAST_SPANS}
    # The runner speaks last; behind its grade there may be an agent that goes on beside it.
    is_runners = any(one.writer != "agent" and _holds_reward(one) for one in last)
    if last.total <= len(last) or (is_runners and _is_decided(last)):
        return find_final_reward(last[::-1])
    found = {span.span_id: span for span in last}
    for name in (AGL_ANNOTATION, AGL_REWARD, None):
        named = {} if name is None else {"name": name}
        page = yield {**named, "sort_order": "desc", "limit": SPANS_LOOKED_AT}
        found |= {span.span_id: span for span in page}
    return find_final_reward(list(found.values()))


def _is_decided(last: Sequence[Span]) -> bool:
    """Whether the reward that counts is among the last spans of an attempt, whatever is before.

    Of grades, which count before rewards, none may be before these alone.
    """
    if any(one.late or (one.attributes.get(Key.GRADED) and one.writer != "runner") for one in last):
        return False
    return any(map(_holds_reward, last))


def _holds_reward(span: Span) -> bool:
    return is_reward_span(span) or reward_problem(span) is not None
