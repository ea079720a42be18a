"""The chain behind a token: reward, credit rule, group, advantage."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Rollout
from agl_records.calls.reader import recorded_parts
from agl_records.ledger.documents import each_part
from agl_records.ledger.ledger import Ledger, load_parts
from agl_records.row_builder import extend, new_row, rows_adapter
from agl_records.training_data import ModelCall, TrainingRow
from agl_records.types import Credit, Exclusion, ExclusionReason, LedgerPart, Trained
from agl_views.explanations.trace_reader import (
    Part,
    RefusedReward,
    RewardLine,
    Trace,
    read_trace,
    refused_rewards,
    reward_lines,
)

Account = tuple[Rollout, LedgerPart]


def group_of(rollout: Rollout) -> str:
    """Equal for rollouts of one task, and of one group and step where the algorithm names them."""
    about = rollout.metadata or {}
    own = [rollout.input, about.get("group"), about.get("step")]
    return json.dumps(own, sort_keys=True, default=str)


@dataclass(frozen=True)
class CallLine:
    """One model call, and what it got."""

    call_id: str
    attempt_id: str
    agent_name: str | None
    tokens: tuple[int, int] | None = None
    """First and last token of its answer in the row, the last not included."""
    reward: float | None = None
    rule: str = ""
    sources: tuple[str, ...] = ()
    """Ids of the reward spans."""
    because: str = ""
    group: str | None = None
    advantage: float | None = None
    advantage_because: str = ""
    is_mean: bool = False
    """Whether that advantage is the mean over its tokens: each had its own, which is not kept."""
    estimator: str = ""
    """What made that advantage; "" is not recorded."""
    overlong: float | None = None
    """What the length of an answer cost; None is not recorded."""
    excluded: ExclusionReason | None = None
    """The code why it was not trained."""
    detail: str = ""


@dataclass(frozen=True)
class TokenLine:
    """One token of a row."""

    position: int
    token_id: int
    sampled: bool
    logprob: float | None
    call_id: str | None
    """The call that sampled it; None where it was given."""
    place: int | None
    """Which token of that call's answer, from 0."""


@dataclass(frozen=True)
class RowLines:
    """One training row."""

    number: int
    num_tokens: int
    agent_name: str | None
    calls: tuple[CallLine, ...]
    began: str = ""
    """Why it is a row of its own, where it is not the agent's first."""


@dataclass(frozen=True)
class Explanation:
    """All there is to say about a rollout, or about a row or token of it."""

    rollout_id: str
    status: str
    mode: str | None
    algorithm: str | None
    step: int | None
    rewards: tuple[RewardLine, ...]
    rows: tuple[RowLines, ...]
    excluded: tuple[CallLine, ...] = ()
    excluded_rollout: str = ""
    siblings: dict[str, float | None] = field(default_factory=dict[str, float | None])
    """Other rollouts of the same task and step -> their mean credit."""
    token: TokenLine | None = None
    refused: tuple[RefusedReward, ...] = ()
    """What was given as a reward, and is none."""
    is_lost: bool = False
    """Whether the run went back behind the step of this account, and kept nothing of it."""

    @property
    def lines(self) -> dict[str, CallLine]:
        """Call id -> what the call got."""
        lines = (*(line for row in self.rows for line in row.calls), *self.excluded)
        return {line.call_id: line for line in lines}


@dataclass(frozen=True)
class Chain:
    """The explanation of a rollout, and what it takes to look at one of its tokens."""

    whole: Explanation
    rows: dict[int, TrainingRow]
    calls: dict[str, ModelCall]
    rollout: Rollout
    part: LedgerPart | None
    """The account that is explained; None where no algorithm has accounted for it."""
    trace: Trace
    """What was read."""
    of_step: list[Account] = field(default_factory=list[Account])
    """The rollouts that its step accounts for, this one included, each with its account."""

    @property
    def siblings(self) -> list[Account]:
        """Those of the same task, this one included."""
        return _same_task(self.rollout, self.of_step)

    def only(self, row: int | None, token: int | None = None) -> Explanation:
        """The part about one row, or one token of it; the whole for None.

        Raises:
            ConfigError: There is no such row or token.
        """
        whole = self.whole
        if row is None:
            return whole
        if row not in self.rows:
            numbers = ", ".join(str(number) for number in self.rows) or "none"
            raise ConfigError(
                f"rollout {whole.rollout_id!r} has no training row {row}; it has {numbers}. See: "
                f"agl explain {whole.rollout_id}"
            )
        (lines,) = (lines for lines in whole.rows if lines.number == row)
        if token is None:
            return replace(whole, rows=(lines,), excluded=())
        found = self._token(row, token)
        calls = tuple(line for line in lines.calls if line.call_id == found.call_id)
        excluded = tuple(line for line in whole.excluded if line.call_id == found.call_id)
        used = {source for line in (*calls, *excluded) for source in line.sources}
        return replace(
            whole,
            rows=(replace(lines, calls=calls),),
            excluded=excluded,
            token=found,
            rewards=tuple(reward for reward in whole.rewards if reward.span_id in used),
        )

    def _token(self, number: int, position: int) -> TokenLine:
        tokens = self.rows[number].token_ids
        if position >= len(tokens):
            raise ConfigError(
                f"row {number} of rollout {self.whole.rollout_id!r} has {len(tokens)} tokens; "
                f"there is no token {position}"
            )
        # Not only the row's own calls: one of the same words may have been excluded.
        for call in self.calls.values():
            prompt, sampled = call.prompt_token_ids or [], call.response_token_ids or []
            end = len(prompt) + len(sampled)
            if len(prompt) <= position < end and tokens[:end] == [*prompt, *sampled]:
                place = position - len(prompt)
                logprob = call.response_logprobs[place] if call.response_logprobs else None
                return TokenLine(position, tokens[position], True, logprob, call.call_id, place)
        return TokenLine(position, tokens[position], False, None, None, None)


async def explain(
    store: LightningStore, rollout_id: str, step: int | None = None, *, read: Part | None = None
) -> Chain:
    """Explain a rollout.

    Args:
        store: Where it is.
        rollout_id: Which.
        step: As this step of the algorithm accounted for it; None for the last that did.
        read: Which calls of a long trace are read; None for all spans, however many.

    Raises:
        ConfigError: The store has no such rollout, or no account of that step.
    """
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise ConfigError(f"the store has no rollout {rollout_id!r}. See: agl rollouts")
    trace = await read_trace(store, rollout_id, part=read)
    spans = trace.spans
    parts = await load_parts(store, [rollout], step=step)
    if not parts:  # the run went back behind all of them
        parts = await load_parts(store, [rollout], step=step, lost=True)
    parts = [one for one in parts if not one.problem]
    if step is not None and not parts:
        raise ConfigError(f"rollout {rollout_id!r} has no account of step {step}")
    records = recorded_parts(spans)
    calls = {record.call.call_id: record.call for record in records}
    part: LedgerPart | None = None
    of_step: list[Account] = []
    if parts:
        part = max(parts, key=lambda part: part.step or 0)
        of_step = await _of_step(store, part)
        # Of a long trace not all calls were read.
        trained = [one for one in part.trained if one.kind == "call" and one.call_id in calls]
        known, after = {one.key for one in (*part.trained, *part.excluded)}, Ledger()
        for one in (one.call for one in records if one.code == "late"):
            if (rollout_id, one.attempt_id, one.call_id) not in known:
                after.exclude_call(one, "late", "and after its step was counted")
        excluded = [*part.excluded, *after.exclusions]
        rows = _rows(trained, calls)
    else:
        attempts = list(await store.query_attempts(rollout_id))
        adapted = rows_adapter().adapt(spans, attempts=attempts)
        rows = dict(enumerate(adapted.rows))
        for number, row in rows.items():
            adapted.ledger.train(row, number=number)
        trained, excluded = adapted.ledger.trained, adapted.ledger.exclusions
    left_out = [f"{one.reason}: {one.detail}" for one in excluded if one.kind == "rollout"]
    explanation = Explanation(
        rollout_id=rollout_id,
        status=rollout.status,
        mode=rollout.mode,
        algorithm=part.algorithm if part else None,
        step=part.step if part else None,
        is_lost=part is not None and part.lost,
        rewards=reward_lines(spans),
        rows=tuple(_row(number, row, trained, calls) for number, row in rows.items()),
        excluded=tuple(_line(one, calls) for one in excluded if one.kind == "call"),
        excluded_rollout=left_out[0] if left_out else "",
        siblings={
            one.rollout_id: of.mean_credit
            for one, of in _same_task(rollout, of_step)
            if one.rollout_id != rollout_id
        },
        refused=refused_rewards(spans),
    )
    return Chain(explanation, rows, calls, rollout, part, trace, of_step)


def _same_task(rollout: Rollout, accounts: Sequence[Account]) -> list[Account]:
    own = group_of(rollout)
    return [(one, part) for one, part in accounts if group_of(one) == own]


def _rows(trained: Sequence[Trained], calls: dict[str, ModelCall]) -> dict[int, TrainingRow]:
    """Rows as the algorithm had them: of exactly the calls that its ledger says."""
    rows: dict[int, TrainingRow] = {}
    for one in sorted(trained, key=lambda one: calls[one.call_id].sequence_id):
        number, credit = one.row or 0, one.credit or Credit(reward=None)
        if number in rows:
            extend(rows[number], calls[one.call_id], credit)
        else:
            rows[number] = new_row(calls[one.call_id], credit, None)
    return dict(sorted(rows.items()))


def _row(
    number: int, row: TrainingRow, trained: Sequence[Trained], calls: dict[str, ModelCall]
) -> RowLines:
    by_id = {one.call_id: one for one in trained}
    lines = [
        _line(by_id[call_id], calls, tokens)
        for call_id, tokens in zip(row.call_ids, row.call_ranges, strict=True)
    ]
    return RowLines(number, len(row.token_ids), row.agent_name, tuple(lines), _began(row))


def _line(
    one: Trained | Exclusion, calls: dict[str, ModelCall], tokens: tuple[int, int] | None = None
) -> CallLine:
    credit, advantage = one.credit or Credit(reward=None), one.advantage
    call = calls.get(one.call_id)
    return CallLine(
        call_id=one.call_id,
        attempt_id=one.attempt_id,
        agent_name=call.agent_name if call else None,
        tokens=tokens,
        reward=credit.reward,
        rule=credit.rule,
        sources=tuple(credit.sources),
        because=credit.because,
        group=advantage.group if advantage else None,
        advantage=advantage.value if advantage else None,
        advantage_because=advantage.because if advantage else "",
        is_mean=advantage is not None and advantage.is_mean,
        estimator=advantage.estimator if advantage else "",
        overlong=credit.overlong,
        excluded=one.reason if isinstance(one, Exclusion) else None,
        detail=one.detail if isinstance(one, Exclusion) else "",
    )


async def _of_step(store: LightningStore, part: LedgerPart) -> list[Account]:
    """In the order of their ids."""
    parts = {
        one.rollout_id: one
        async for one in each_part(store, run=part.run, step=part.step, lost=part.lost)
        if one.algorithm == part.algorithm
    }
    rollouts = await store.query_rollouts(rollout_id_in=list(parts))
    return [(one, parts[one.rollout_id]) for one in rollouts]


def _began(row: TrainingRow) -> str:
    if row.row_break is None:
        return ""
    at = row.row_break
    return (
        f"at token {at.position} of the row of call {at.call_id} the prompt went on with {at.got}, "
        f"not with {at.expected}"
    )
