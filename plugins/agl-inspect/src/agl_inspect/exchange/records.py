"""The forms of an export: rows, triplets, messages, fine-tuning samples, preference pairs.

Every record says where it comes from: ``provenance`` has the rollout, the attempt and the spans.
"""

import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from agl.algorithm.adapter import TraceToTripletBase
from agl.errors import DamagedRecordError
from agl.plugins.build import build_component
from agl.store.base import LightningStore
from agl.store.queries import each_record
from agl.types import Rollout
from agl_inspect.exchange.conversations import trajectories
from agl_inspect.exchange.reading import (
    CANARY,
    JUDGES,
    ReadRollout,
    Said,
    read_rollout,
    threads,
    tools_of,
)
from agl_learning.collect.task_order import digest
from agl_learning.pairs import preference_pairs
from agl_records.credit import CreditRule
from agl_records.row_builder import RowsAdapter, rows_adapter
from agl_records.training_data import TrainingRow
from agl_records.types import ExclusionReason

Format = Literal["rows", "triplets", "sft", "dpo", "messages", "atif"]
Pairing = Literal["best", "all"]
Record = dict[str, Any]

_COLUMNS = {
    "rows": "token_ids:ids loss_mask:ids logprobs:numbers reward:number rewards:numbers "
    "agent_name:text model_versions:texts provenance:origin",
    "triplets": "prompt:json response:json reward:number metadata:json provenance:origin",
    "messages": "messages:messages tools:json reward:number metadata:json provenance:origin",
    "sft": "prompt:messages completion:messages tools:json reward:number provenance:origin",
    "dpo": "prompt:messages chosen:messages rejected:messages tools:json chosen_reward:number "
    "rejected_reward:number provenance:origins",
}
COLUMNS: dict[str, dict[str, str]] = {
    form: dict(column.split(":") for column in columns.split())
    for form, columns in _COLUMNS.items()
}
"""Format -> column -> kind; see ``writers``."""


Made = Iterator[tuple[Record, int]]
"""Records, each with the number of its calls."""


@dataclass
class Export:
    """Makes records of the rollouts of a store, and accounts for all that it read."""

    form: Format
    store: LightningStore
    credit: CreditRule
    agent_match: re.Pattern[str] | None = None
    mode: str | None = None
    """Only rollouts of this mode."""
    min_reward: float | None = None
    """Leave out what got less, or nothing."""
    pairing: Pairing = "best"
    min_gap: float = 0.0
    """Rewards of a pair differ by more than this."""
    num_rollouts: int = 0
    num_records: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Reason -> calls; for pairs, reason -> tasks."""
    num_others: int = 0
    """Rollouts of judges and canaries, which are left out."""

    async def records(self) -> AsyncGenerator[Iterator[Record]]:
        """Those of each rollout, or pairs of each task; the store is read page by page."""
        if self.form != "dpo":
            async for rollout in self._wanted():
                yield self._records(await self._read(rollout))
            return
        # The ids of siblings first, then the data of one task at a time.
        tasks: defaultdict[str, list[str]] = defaultdict(list)
        async for rollout in self._wanted():
            if rollout.status == "succeeded":
                tasks[digest([rollout.input])].append(rollout.rollout_id)
        for ids in tasks.values():
            siblings = await self.store.query_rollouts(rollout_id_in=ids)
            yield self._pairs([await self._read(rollout) for rollout in siblings])

    async def _wanted(self) -> AsyncGenerator[Rollout]:
        """Those of the mode; what was no answer of the agent's model is never one."""
        async for rollout in each_record(self.store.query_rollouts):
            is_other = not {CANARY, JUDGES}.isdisjoint(rollout.metadata or {})
            self.num_others += is_other
            if not is_other and self.mode in (None, rollout.mode):
                yield rollout

    async def _read(self, rollout: Rollout) -> ReadRollout:
        self.num_rollouts += 1
        try:
            return await read_rollout(self.store, rollout, self.credit, self.agent_match)
        except DamagedRecordError:  # of a span; nobody can say what it was about
            self.left_out["malformed"] += 1
            return ReadRollout(rollout, [], [])

    def _records(self, read: ReadRollout) -> Iterator[Record]:
        if self.form in ("messages", "sft", "atif"):
            self.left_out.update(reason for _, reason in read.exclusions)
        makers = {
            "rows": self._rows,
            "triplets": self._triplets,
            "messages": self._messages,
            "sft": self._sft,
            "atif": self._atif,
        }
        for record, calls in makers[self.form](read):
            reward = (record["extra"] if self.form == "atif" else record)["reward"]
            least = self.min_reward
            if least is not None and (reward is None or reward < least):
                self.left_out["no_reward" if reward is None else "reward_too_low"] += calls
                continue
            self.num_records += 1
            yield record

    @cached_property
    def _row_adapter(self) -> RowsAdapter:
        return rows_adapter(agent_match=self._pattern, credit=self.credit)

    @cached_property
    def _triplet_adapter(self) -> TraceToTripletBase:
        return build_component(
            {"type": "triplet", "agent_match": self._pattern},
            group="agl.adapters",
            expected_type=TraceToTripletBase,
        )

    @property
    def _pattern(self) -> str | None:
        return None if self.agent_match is None else self.agent_match.pattern

    def _rows(self, read: ReadRollout) -> Made:
        made = self._row_adapter.adapt(read.spans, attempts=read.attempts)
        self.left_out.update(made.ledger.reasons())
        for row in made.rows:
            yield row_record(row), len(row.call_ids)

    def _triplets(self, read: ReadRollout) -> Made:
        spans = read.used_spans
        taken: set[str] = set()
        for triplet in self._triplet_adapter.adapt(spans) if spans else ():
            call_id = triplet.metadata.pop("call_id")
            taken.add(call_id)
            provenance = _origin(read.rollout.rollout_id, spans[0].attempt_id, call_id)
            yield {**triplet.model_dump(mode="json"), "provenance": provenance}, 1
        others = [reason for call_id, reason in read.exclusions if call_id not in taken]
        self.left_out.update(others)
        self.left_out["not_a_turn"] += sum(said.call.call_id not in taken for said in read.said)

    def _messages(self, read: ReadRollout) -> Made:
        for messages, said in threads(read.said):
            about = said[-1].chat["metadata"]
            names = ("agent_name", "model", "response_id", "finish_reason")
            record = {
                "messages": messages,
                "tools": tools_of(said),
                "reward": said[-1].reward,
                "metadata": {name: about[name] for name in names},
                "provenance": _origin_of(*said),
            }
            yield record, len(said)

    def _atif(self, read: ReadRollout) -> Made:
        try:
            made = list(trajectories(read.said))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            reason = f"malformed_message (rollout {read.rollout.rollout_id}: {why})"
            self.left_out[reason] += len(read.said)
            return
        for trajectory, said in made:
            extra = {"reward": said[-1].reward, "provenance": _origin_of(*said)}
            yield {**trajectory, "extra": extra}, len(said)

    def _sft(self, read: ReadRollout) -> Made:
        for said in read.said:
            if (wrong := said.call.tool_problem) is not None:
                self.left_out[wrong[0]] += 1
                continue
            record = {
                "prompt": said.prompt,
                "completion": [said.answer],
                "tools": said.chat["tools"],
                "reward": said.reward,
                "provenance": _origin_of(said),
            }
            yield record, 1

    def _pairs(self, siblings: Sequence[ReadRollout]) -> Iterator[Record]:
        """Preference pairs among rollouts of a task: the same prompt, other answers and rewards.

        In rollouts of several calls these are the calls at which the ways part, as later prompts
        differ.
        """
        same_prompt: defaultdict[str, list[Said]] = defaultdict(list)
        for read in siblings:
            for said in read.said:
                prompt = [said.prompt, said.chat["tools"], said.call.agent_name]
                same_prompt[digest(prompt)].append(said)
        # Each stage is what is left of the one before it: the last one that is empty says why.
        several = [
            group for group in same_prompt.values() if len({s.rollout_id for s in group}) > 1
        ]
        rewarded = [[said for said in group if said.reward is not None] for group in several]
        pairs = [
            pair
            for group in rewarded
            for pair in preference_pairs(group, self.pairing, self.min_gap)
        ]
        reason: ExclusionReason | str | None = None
        if not any(read.said for read in siblings):
            reason = "no_usable_call"
        elif not several:
            reason = "no_sibling_with_the_same_prompt"
        elif not any(len(group) > 1 for group in rewarded):
            reason = "no_reward"
        elif not pairs:
            reason = "same_reward_or_same_answer"
        if reason is not None:
            self.left_out[reason] += 1
        for chosen, rejected in pairs:
            self.num_records += 1
            yield {
                "prompt": chosen.prompt,
                "chosen": [chosen.answer],
                "rejected": [rejected.answer],
                "tools": chosen.chat["tools"],
                "chosen_reward": chosen.reward,
                "rejected_reward": rejected.reward,
                "provenance": {"chosen": _origin_of(chosen), "rejected": _origin_of(rejected)},
            }


def row_record(row: TrainingRow) -> Record:
    """A training row, with where it comes from."""
    return {
        **row.model_dump(include={"token_ids", "loss_mask", "logprobs", "model_versions"}),
        "reward": row.reward,
        "rewards": [credit.reward for credit in row.credits],
        "agent_name": row.agent_name,
        "provenance": _origin(
            row.rollout_id,
            row.attempt_id,
            # Of a choice, the span of its call.
            *(call_id.partition("#")[0] for call_id in row.call_ids),
        ),
    }


def _origin_of(*said: Said) -> dict[str, Any]:
    first = said[0].call
    return _origin(first.rollout_id, first.attempt_id, *(one.call.call_id for one in said))


def _origin(rollout_id: str, attempt_id: str, *span_ids: str) -> dict[str, Any]:
    return {"rollout_id": rollout_id, "attempt_id": attempt_id, "span_ids": list(span_ids)}
