"""From the spans of a rollout to training rows, with an account of every call and reward."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from agl.errors import ConfigError
from agl.types import Attempt, Span
from agl.utils.checks import check_choice, check_numbers
from agl_adapters.accounting import (
    account_for_rewards,
    announce,
    exclude_all,
    leave_out,
    source_of_final_reward,
    used_answer,
)
from agl_adapters.air import AutoRewards
from agl_adapters.own import asked_again, of_another, perhaps_by_number, rewards_of_agent
from agl_records.calls.attempts import unused_attempts
from agl_records.calls.matching import compile_match, selects
from agl_records.calls.reader import Recorded, by_attempt, late_calls, recorded_and_unrecognised
from agl_records.calls.sources.fields import OUTPUT_TYPE
from agl_records.calls.span_tree import late_spans, ordered
from agl_records.credit import CreditRule, GroupRule, credits_of
from agl_records.ledger.ledger import Ledger
from agl_records.row_builder import RowsAdapter, RowSet, common_length, extend, new_row
from agl_records.training_data import ModelCall, RowBreak, TrainedModel, TrainingRow
from agl_records.types import LATE, Credit, ExclusionReason

Truncated = Literal["train", "mask", "exclude"]
WrongToolCalls = Literal["train", "exclude"]
LEAST_LOGPROB, MOST_LOGPROB = -1e4, 0.1
"""Bounds of log-probabilities: vLLM writes -9999 for minus infinity, and where numbers have 16 bits
one of nearly 0 may be rounded to above 0."""
_BREAK_TOKENS = 8
"""How many tokens of each side a ``RowBreak`` shows."""


class TraceToRows(RowsAdapter):
    """Makes rows of token ids, loss mask, log-probabilities and credit per call.

    A call continues the longest row of its agent with whose exact token ids its prompt begins, so
    that agents that take turns, named or not, keep their rows apart. Where there is none, a row
    begins, and says in ``row_break`` where its prompt left the row most like it. Calls of different
    attempts are never mixed: one attempt of a rollout is used. Calls below the span of a reward are
    a judge's: they are not trained, and no reward is given to them. Nor are those that may be,
    as they name no parent and ran in its time. A span around all calls of the
    trained model is the agent's own, unless its output is the reward (AgentOps' operations).

    Args:
        agent_match: Regular expression, searched in agents' names; None takes every call. A call
            whose agent is unknown matches nothing.
        credit: The credit rule: its name, a dict of ``type`` and options, or a rule.
        truncated: What to do with an answer that was cut off at the limit of tokens (its reason to
            finish is ``length``). ``train`` trains it as any other. ``mask`` excludes the call and
            trains the others: a row that goes on behind it has its tokens as given ones. With
            ``exclude`` no call of an attempt with such an answer is trained, so that none is
            blamed for an end that it did not choose.
        wrong_tool_calls: What to do with an answer that calls a tool with arguments that are no
            JSON object, or one that was not offered. ``train`` trains it as any other: its token
            ids are what the model sampled, and its reward tells the model that it was wrong.
            ``exclude`` excludes the call.
        max_length: Calls whose prompt and answer are longer together, in tokens, are excluded.
        air: Automatic intermediate rewards: a dict of the options of ``AutoRewards``
            (``on_tool_success``, ``on_tool_failure``, ``on_code_execution``, ``custom``,
            ``enabled``), or an ``AutoRewards``; None makes none.

    Raises:
        ConfigError: A wrong regular expression or length, or ``air`` with a credit rule that only
            looks at final rewards.
        PluginError: There is no such credit rule.
    """

    def __init__(
        self,
        agent_match: str | None = None,
        credit: str | dict[str, Any] | CreditRule = "final",
        max_length: int | None = None,
        air: dict[str, Any] | AutoRewards | None = None,
        truncated: Truncated = "train",
        wrong_tool_calls: WrongToolCalls = "train",
    ) -> None:
        owner = type(self).__name__
        check_numbers(owner, whole=True, optional=True, least=2, max_length=max_length)
        check_choice(owner, get_args(Truncated), truncated=truncated)
        check_choice(owner, get_args(WrongToolCalls), wrong_tool_calls=wrong_tool_calls)
        self.agent_match = compile_match(agent_match, f"{owner}: agent_match")
        self.truncated: Truncated = truncated
        self.wrong_tool_calls: WrongToolCalls = wrong_tool_calls
        self.max_length = max_length
        self.credit = _credit_rule(credit, f"{owner}: credit")
        self.credit_name = _name_of_rule(credit)
        self.air = _air(air, f"{owner}: air")
        if self.air is not None and self.air.enabled and not self.credit.uses_intermediate:
            raise ConfigError(
                "TraceToRows: air makes intermediate rewards, which the credit rule "
                f"{self.credit_name!r} does not use. Choose credit 'per_call', 'discounted' or "
                "'stepwise', or leave air out"
            )

    def adapt(
        self,
        source: Sequence[Span],
        /,
        attempts: Sequence[Attempt] | None = None,
        model: TrainedModel | None = None,
    ) -> RowSet:
        """Rows; see ``RowsAdapter``.

        Raises:
            AdapterError: The credit rule did not give one finite credit per call.
        """
        result = RowSet()
        groups = by_attempt(source)
        known = {(attempt.rollout_id, attempt.attempt_id): attempt for attempt in attempts or ()}
        for key in known:
            groups.setdefault(key, [])
        unused = unused_attempts(groups, attempts)
        has_calls: dict[str, bool] = {}
        for key, spans in groups.items():
            result.ledger.add_rollout(key[0])
            records = recorded_and_unrecognised(spans)
            has_calls[key[0]] = has_calls.get(key[0], False) or bool(records)
            if key in unused:
                leave_out(records, spans, *unused[key], result.ledger)
            else:
                announce(records, result.ledger)
                self._adapt_attempt(records, ordered(spans), model, known.get(key), result)
        calls, late = late_calls(source), late_spans(source)
        leave_out(calls, late, "late", LATE, result.ledger)
        has_calls = dict.fromkeys((span.rollout_id for span in late), False) | has_calls
        has_calls |= dict.fromkeys((one.call.rollout_id for one in calls), True)
        whys = {rollout_id: why for (rollout_id, _), why in reversed(unused.items())}
        for rollout_id, _ in groups.keys() - unused.keys():
            whys[rollout_id] = "no_calls", "no model call of its attempt was recorded"
        for rollout_id in (rollout_id for rollout_id, some in has_calls.items() if not some):
            result.ledger.exclude_rollout(rollout_id, *whys.get(rollout_id, ("late", LATE)))
        return result

    def _adapt_attempt(
        self,
        records: Sequence[Recorded],
        spans: Sequence[Span],
        model: TrainedModel | None,
        attempt: Attempt | None,
        result: RowSet,
    ) -> None:
        own: list[Recorded] = []
        agents = rewards_of_agent(records, spans, model)
        if attempt is not None:
            records = perhaps_by_number(records, spans, attempt)
        again = asked_again([record.call for record in records])
        for record in records:
            another = of_another(record, model, agents)
            if another is None and record.call.call_id in again:
                another = ("infrastructure", again[record.call.call_id])
            if another is None:
                own.append(record)
            else:
                exclude_all(record.call, *another, None, result.ledger)
        calls = [record.call for record in own]
        if self.air is not None:
            spans = ordered([*spans, *self.air.rewards(spans)])
        rollout_id = spans[0].rollout_id if spans else ""
        credits = credits_of(self.credit, self.credit_name, calls, spans, rollout_id)
        is_final = not (self.credit.uses_intermediate or isinstance(self.credit, GroupRule))
        final = source_of_final_reward(spans) if is_final else []
        # A rule may give one and the same credit to many calls.
        named = {
            id(c): c.model_copy(
                update={
                    "rule": self.credit_name,
                    "sources": c.sources or (final if c.reward is not None else []),
                }
            )
            for c in credits
        }
        account_for_rewards(calls, list(named.values()), spans, self.credit_name, result.ledger)
        cut = self._cut_off(calls) if self.truncated == "exclude" else None
        made: list[TrainingRow] = []
        rows: defaultdict[str | None, list[TrainingRow]] = defaultdict(list)
        for record, given in zip(own, credits, strict=True):
            call, credit = record.call, named[id(given)]
            problem = self._problem(record, model)
            if problem is None and credit.reward is None:
                problem = (credit.reason, credit.because or "no reward reached this call")
            if problem is None and cut is not None:
                problem = ("truncated", f"the answer of call {cut} of its attempt was cut off")
            if problem is not None:
                exclude_all(call, *problem, credit, result.ledger)
                continue
            if call.choices:
                call = used_answer(call, result.ledger)
            row = self._take(call, credit, rows[call.agent_name])
            if row is not None:
                made.append(row)
                rows[call.agent_name].append(row)
        for row in made:
            kept = self._without_cut_off(row, result.ledger)
            if kept is not None:
                result.rows.append(kept)

    def _cut_off(self, calls: Sequence[ModelCall]) -> str | None:
        """The id of the first call whose answer was cut off, of those that may be trained."""
        may = (call for call in calls if selects(self.agent_match, call.agent_name))
        return next((call.call_id for call in may if call.is_truncated), None)

    def _without_cut_off(self, row: TrainingRow, ledger: Ledger) -> TrainingRow | None:
        """The row as it is trained: with ``mask`` answers that were cut off count as given."""
        if self.truncated != "mask":
            return row
        cut = {n for n, reason in enumerate(row.finish_reasons) if reason == "length"}
        kept = [n for n in range(len(row.call_ids)) if n not in cut]
        if cut:
            detail = "its answer was cut off at the limit of tokens"
            ledger.exclude_row(row.only(cut), "truncated", detail)
        return row.only(kept) if kept else None

    def _take(
        self, call: ModelCall, credit: Credit, rows: Sequence[TrainingRow]
    ) -> TrainingRow | None:
        """A row that begins with the call, or None: one of its agent's has become longer by it."""
        continued = _longest_begun(rows, call.prompt_token_ids or [])
        if continued is not None:
            extend(continued, call, credit)
            return None
        return new_row(call, credit, _find_break(rows, call.prompt_token_ids or []))

    def _no_answer(self, record: Recorded) -> tuple[ExclusionReason, str] | None:
        """Why the call is not trained, whatever its tokens are: its agent, its end, its tools."""
        problem, agent = record.problem, record.call.agent_name
        if problem is None and self.wrong_tool_calls == "exclude":
            problem = record.call.tool_problem
        if selects(self.agent_match, agent) or (problem and problem[0] == "infrastructure"):
            return problem
        return "agent_not_selected", f"its agent is {agent!r}"

    def _problem(
        self, record: Recorded, model: TrainedModel | None
    ) -> tuple[ExclusionReason, str] | None:
        call = record.call
        if (problem := self._no_answer(record)) is not None:
            return problem
        prompt, response = call.prompt_token_ids, call.response_token_ids
        if prompt and response == []:
            return "empty_answer", f"the answer has no tokens; it ended with {call.finish_reason!r}"
        if not prompt or not response:
            return _no_token_ids(record)
        size = model.vocabulary_size if model else None
        if size is not None and (highest := max(max(prompt), max(response))) >= size:
            return "malformed", f"token id {highest} is beyond the vocabulary of {size}"
        if (mismatch := _count_mismatch(call)) is not None:
            return "token_count_mismatch", mismatch
        logprobs = call.response_logprobs
        if not logprobs:
            why = "the answer has no log-probabilities"
            return "no_logprobs", _with_unreadable(why, call)
        if len(logprobs) != len(response):
            return (
                "no_logprobs",
                f"{len(response)} answer tokens with {len(logprobs)} log-probabilities",
            )
        if [each for each in logprobs if not LEAST_LOGPROB <= each <= MOST_LOGPROB]:
            found = f"{min(logprobs):g} to {max(logprobs):g}"
            bounds = f"{LEAST_LOGPROB:g} to {MOST_LOGPROB:g}"
            return "malformed", f"log-probabilities from {found} are not in {bounds}"
        length = len(prompt) + len(response)
        if self.max_length is not None and length > self.max_length:
            return "over_length", f"{length} tokens, max_length is {self.max_length}"
        return None


def _longest_begun(rows: Sequence[TrainingRow], prompt: Sequence[int]) -> TrainingRow | None:
    """The longest row with all of whose tokens ``prompt`` begins; the latest of several."""
    best: TrainingRow | None = None
    for row in rows:
        tokens = row.token_ids
        end = len(tokens)
        if end > len(prompt) or (best is not None and end < len(best.token_ids)):
            continue
        # The last token tells most rows apart, without copying either side.
        if tokens[-1] == prompt[end - 1] and tokens == prompt[:end]:
            best = row
    return best


def _find_break(rows: Sequence[TrainingRow], prompt: Sequence[int]) -> RowBreak | None:
    """Where ``prompt`` leaves the row with which it has most tokens in common, if any."""
    shared = ((common_length(row.token_ids, prompt), n) for n, row in enumerate(rows))
    position, number = max(shared, default=(0, 0))  # the latest of several
    if position == 0:
        return None
    row, end = rows[number], position + _BREAK_TOKENS
    return RowBreak(
        call_id=row.call_ids[-1],
        position=position,
        expected=list(row.token_ids[position:end]),
        got=list(prompt[position:end]),
    )


def _no_token_ids(record: Recorded) -> tuple[ExclusionReason, str]:
    call, span = record.call, record.node.span
    if span is not None and _is_structured(span):
        return (
            "structured_output",
            f"span {span.name!r} has the parsed object and no token ids; send the call through "
            "the gateway",
        )
    missing = "prompt" if not call.prompt_token_ids else "answer"
    return "no_token_ids", _with_unreadable(f"the {missing} has no token ids", call)


def _is_structured(span: Span) -> bool:
    """Whether a span says that the answer is an object of a given form."""
    attributes = span.attributes
    return (
        attributes.get(OUTPUT_TYPE) == "json"
        or "response_format" in str(attributes.get("llm.invocation_parameters", ""))
        or any(
            "response_format" in key or "structured_output" in key or key.endswith(".parsed")
            for key in attributes
        )
    )


def _with_unreadable(why: str, call: ModelCall) -> str:
    return f"{why}: {'; '.join(call.unreadable)}" if call.unreadable else why


def _count_mismatch(call: ModelCall) -> str | None:
    """How many tokens the server counted and how many ids there are, where these differ.

    vLLM counts the token that ends an answer and returns its id; servers over SGLang count it, and
    some of them return no id of it. An answer that the limit cut off has none. Of several answers
    nobody knows which of them lacks an id.
    """
    num_given = len(call.prompt_token_ids or ())
    if call.input_tokens and call.input_tokens != num_given and not call.choices:
        return (
            f"the server counted {call.input_tokens} tokens of the prompt, and there are "
            f"{num_given} token ids"
        )
    answers = [(one.token_ids, one.finish_reason) for one in call.choices] or [
        (call.response_token_ids, call.finish_reason)
    ]
    found = sum(len(ids or ()) for ids, _ in answers)
    may_lack = len(answers) == 1 and answers[0][1] != "length"
    if call.output_tokens and not 0 <= call.output_tokens - found <= may_lack:
        return f"the server counted {call.output_tokens} tokens, and there are {found} token ids"
    known = sum(number for _, number in call.version_spans or ())
    num_own = len(call.response_token_ids or ())
    if known and not 0 <= known - num_own <= 1:
        return f"the server names the weights of {known} tokens, and there are {num_own} token ids"
    return None


def _credit_rule(credit: str | Mapping[str, Any] | CreditRule, where: str) -> CreditRule:
    from agl.plugins.build import build_component

    about: dict[str, Any] = {"group": "agl.credits", "expected_type": CreditRule}
    return build_component(credit, default="final", where=where, **about)


def _name_of_rule(credit: str | Mapping[str, Any] | CreditRule) -> str:
    if isinstance(credit, str):
        return credit
    if isinstance(credit, Mapping):
        return str(credit.get("type", "final"))
    return type(credit).__name__


def _air(air: dict[str, Any] | AutoRewards | None, where: str) -> AutoRewards | None:
    if air is None or isinstance(air, AutoRewards):
        return air
    from agl.plugins.schema import validate

    return AutoRewards(**validate(AutoRewards, air, where))
