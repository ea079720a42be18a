import math

import pytest

from agl.emitter import reward_attributes
from agl.errors import AdapterError, ConfigError, UnknownComponentError
from agl.plugins.parts import plan_part
from agl.semconv import AGL_ANNOTATION
from agl.types import Attempt
from agl_adapters import TraceToRows
from agl_records.credit import CreditRule
from agl_records.training_data import RowBreak
from agl_records.types import Credit, StepCredit
from agl_testing.traces import Trace


def settled(result):
    """Train every row; every call is then in exactly one bin."""
    for row in result.rows:
        result.ledger.train(row)
    result.ledger.check()
    return result


def reasons(result) -> dict[str, int]:
    return settled(result).ledger.reasons()


def test_calls_that_continue_each_other_share_a_row(trace) -> None:
    trace.gateway([1, 2], [3, 4], logprobs=[-0.3, -0.4])
    trace.gateway([1, 2, 3, 4, 5], [6], logprobs=[-0.6])
    trace.reward(0.5)
    result = settled(TraceToRows().adapt(trace.spans))
    (row,) = result.rows
    assert row.token_ids == [1, 2, 3, 4, 5, 6]
    assert row.loss_mask == [0, 0, 1, 1, 0, 1]
    assert row.logprobs == [0.0, 0.0, -0.3, -0.4, 0.0, -0.6]
    assert row.reward == 0.5
    assert row.call_ranges == [(2, 4), (5, 6)]
    assert row.call_ids == [span.span_id for span in trace.spans[:2]]
    assert row.model_versions == [None, None]
    assert row.row_break is None
    assert result.ledger.summary() == {
        "calls": 2,
        "trained": 2,
        "excluded": {},
        "rollouts": {"total": 1, "trained": 1, "excluded": {}},
        "rewards": {"total": 1, "used": 1, "excluded": {}},
    }
    assert len(result) == 1


def test_row_keeps_the_images_of_its_prompts(trace) -> None:
    def seen(*urls: str) -> dict[str, object]:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return {"role": "user", "content": [{"type": "text", "text": "what?"}, *parts]}

    answer = {"role": "assistant", "content": "yes"}
    trace.gateway([1, 2], [3], messages=[seen("one")])
    trace.gateway([1, 2, 3, 4], [5], messages=[seen("one"), answer, seen("two", "three")])
    trace.gateway([9], [5])
    trace.reward(1.0)
    first, second = TraceToRows().adapt(trace.spans).rows
    assert first.images == ["one", "two", "three"]
    assert second.images == []


def test_a_prompt_that_goes_another_way_begins_a_row_and_says_where(trace) -> None:
    trace.gateway([1, 2, 3], [4, 5])
    trace.gateway([1, 2, 9, 9], [7])
    trace.gateway([1, 2], [7])
    trace.reward(1.0)
    _, second, third = settled(TraceToRows().adapt(trace.spans)).rows
    for row, number, expected, got in ((second, 0, [3, 4, 5], [9, 9]), (third, 1, [9, 9, 7], [])):
        about = {"call_id": trace.spans[number].span_id, "position": 2}
        assert row.row_break == RowBreak(**about, expected=expected, got=got)


def test_a_call_continues_the_longest_row_that_its_prompt_begins_with(trace) -> None:
    trace.gateway([1, 2, 3], [4])  # one agent
    trace.gateway([7, 8], [9])  # another; nobody says who is who
    trace.gateway([1, 2, 3, 4, 5], [6])
    trace.gateway([7, 8, 9], [1])
    trace.gateway([1, 2, 3, 4, 5, 7], [8])
    trace.reward(1.0)
    rows = settled(TraceToRows().adapt(trace.spans)).rows
    tokens = [row.token_ids for row in rows]
    assert tokens == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 1], [1, 2, 3, 4, 5, 7, 8]]
    one, two, branch = rows
    # The second agent shares no token with the first: there is nothing that it could continue.
    assert (one.row_break, two.row_break) == (None, None)
    third = trace.spans[2].span_id
    assert branch.row_break == RowBreak(call_id=third, position=5, expected=[6], got=[7])


def test_every_call_that_trains_nothing_has_a_reason(trace) -> None:
    trace.gateway([1], [2])
    trace.flat("c-1")
    trace.gateway([1], [2], logprobs=[])
    trace.gateway([1], [2, 3], logprobs=[-0.5])
    trace.gateway([1], [2], logprobs=[float("-inf")])
    trace.gateway(error="backend answered 500")
    trace.gateway([1] * 8, [2])
    trace.span("openai.chat.completion", {"gen_ai.operation.name": "chat"})
    broken = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{"}
    trace.span("openai.chat.completion", broken)
    trace.reward(1.0)
    result = TraceToRows(max_length=8).adapt(trace.spans)
    assert reasons(result) == {
        "no_token_ids": 2,
        "no_logprobs": 2,
        "malformed": 2,
        "model_error": 1,
        "over_length": 1,
    }
    assert len(result.rows) == 1
    details = {e.reason: e.detail for e in result.ledger.exclusions}
    assert details["over_length"] == "9 tokens, max_length is 8"
    assert details["model_error"] == "backend answered 500"
    assert result.ledger.exclusions[0].detail == "the prompt has no token ids"


def test_the_attempt_that_began_last_is_used() -> None:
    old, new = Trace("at-9", start=100.0), Trace("at-1", start=500.0)
    for trace, token in ((new, 2), (old, 1)):
        trace.gateway([token], [token])
        trace.reward(float(token))
    result = TraceToRows().adapt([*new.spans, *old.spans])
    assert reasons(result) == {"superseded_attempt": 1}
    assert result.ledger.exclusions[0].detail == "attempt 'at-1' is used"
    assert [(row.attempt_id, row.reward) for row in result.rows] == [("at-1", 2.0)]


def attempt(attempt_id: str, number: int, status: str) -> Attempt:
    ids = {"rollout_id": "ro-1", "attempt_id": attempt_id, "sequence_id": number}
    return Attempt(**ids, start_time=0.0, status=status)


def test_with_attempts_the_last_that_succeeded_is_used() -> None:
    spans = []
    for number in (1, 2, 3):
        trace = Trace(f"at-{number}", start=100.0 * number)
        trace.gateway([number], [number])
        trace.reward(1.0)
        spans += trace.spans
    statuses = ["failed", "succeeded", "timeout"]
    attempts = [attempt(f"at-{n}", n, status) for n, status in enumerate(statuses, 1)]
    result = TraceToRows().adapt(spans, attempts=attempts)
    assert [row.attempt_id for row in result.rows] == ["at-2"]
    assert reasons(result) == {"superseded_attempt": 2}
    attempts[1] = attempt("at-2", 2, "failed")
    result = TraceToRows().adapt(spans, attempts=attempts)
    assert reasons(result) == {"failed_attempt": 3}


@pytest.mark.parametrize("in_time", [True, False])
def test_calls_and_rewards_that_come_late_train_nothing_and_are_accounted_for(trace, in_time):
    if in_time:
        trace.gateway([1], [2], response_id="c-1")
        trace.reward(1.0)
    # A client's record of the call that the gateway recorded in time is no second call.
    trace.flat("c-1", late=True)
    trace.gateway([1], [2], response_id=None if in_time else "c-1", late=True)
    trace.span(AGL_ANNOTATION, reward_attributes(9.0), late=True)
    result = TraceToRows().adapt(trace.spans, attempts=[attempt("at-1", 1, "succeeded")])
    assert reasons(result) == {"late": 1}
    assert result.ledger.reasons("reward") == {"late": 1}
    assert result.ledger.rollouts() == {"ro-1": "trained" if in_time else "late"}
    assert [row.reward for row in result.rows] == [1.0] * in_time


def test_a_call_that_one_of_two_records_tells_of_in_time_is_one_call(trace):
    trace.flat("c-1")
    trace.gateway([1], [2], response_id="c-1", late=True)
    trace.reward(1.0)
    result = TraceToRows().adapt(trace.spans, attempts=[attempt("at-1", 1, "succeeded")])
    assert reasons(result) == {"no_token_ids": 1}  # as the client told it


def test_late_spans_count_once_also_where_they_are_given_twice_or_alone(trace):
    late = trace.span(AGL_ANNOTATION, reward_attributes(9.0), late=True)
    result = settled(TraceToRows().adapt([late, late]))
    assert result.ledger.rollouts() == {"ro-1": "late"}
    result = settled(TraceToRows().adapt([late, late.changed(late=False)]))
    assert result.ledger.reasons("reward") == {"no_calls": 1}


class Numbered(CreditRule):
    """A value of its own for each call; none for the third."""

    def assign(self, calls, spans):
        return [Credit(reward=None if n == 2 else float(n)) for n in range(len(calls))]


class Gives(CreditRule):
    def __init__(self, *given):
        self.given = given

    def assign(self, calls, spans):
        return self.given


def test_calls_of_one_row_keep_their_own_credit(trace) -> None:
    trace.gateway([1], [2])
    trace.gateway([1, 2, 3], [4])
    trace.gateway([1, 2, 3, 4, 5], [6])
    result = TraceToRows(credit=Numbered()).adapt(trace.spans)
    (row,) = result.rows
    assert row.token_ids == [1, 2, 3, 4]
    assert [(c.reward, c.rule) for c in row.credits] == [(0.0, "Numbered"), (1.0, "Numbered")]
    assert row.reward == 0.5
    assert reasons(result) == {"no_reward": 1}


def test_a_row_can_be_kept_for_some_of_its_calls_only(trace) -> None:
    trace.gateway([1], [2, 3])
    trace.gateway([1, 2, 3, 4], [5])
    trace.reward(1.0)
    (row,) = TraceToRows().adapt(trace.spans).rows
    assert row.only([0, 1]) is row
    second = row.only([1])
    assert second.token_ids == row.token_ids
    assert second.loss_mask == [0, 0, 0, 0, 1]
    assert second.logprobs == [0.0, 0.0, 0.0, 0.0, -0.5]
    assert second.call_ids == row.call_ids[1:]
    assert second.call_ranges == [(4, 5)]
    assert row.loss_mask == [0, 1, 1, 0, 1]


def test_wrong_options_and_a_wrong_rule_are_refused(trace) -> None:
    with pytest.raises(ConfigError, match="max_length must be at least 2; got 1"):
        TraceToRows(max_length=1)
    wrong = {"type": "rows", "air": {"custom": ["x:y"]}}, {"type": "rows", "credit": {"lst": 3}}
    for spec, address in zip(
        wrong, ("air.custom: there is no", "credit.lst: unknown"), strict=True
    ):
        with pytest.raises(ConfigError, match=f"^agl.yaml: adapter.{address}"):
            plan_part("adapter", spec, where="agl.yaml: adapter").build()
    with pytest.raises(ConfigError, match="no regular expression"):
        TraceToRows(agent_match="*")
    with pytest.raises(UnknownComponentError, match="unknown credit 'finale'"):
        TraceToRows(credit="finale")
    with pytest.raises(ConfigError, match="truncated is 'drop'; expected train, mask or exclude"):
        TraceToRows(truncated="drop")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "0 credits for 1 calls of"),
        ([0.5], "0.5 to call 1 of 1 of"),
        ([Credit(reward=math.nan)], "nan to call 1 of 1 of"),
        ([Credit(reward=1, step=StepCredit(group="", reward=-math.inf))], "1.0, -inf, 1.0 to call"),
    ],
)
def test_credits_that_are_no_finite_numbers_are_refused(trace, given, said) -> None:
    trace.gateway([1], [2])
    with pytest.raises(AdapterError, match=f"credit rule 'Gives' gave {said} .*rollout 'ro-"):
        TraceToRows(credit=Gives(*given)).adapt(trace.spans)


def test_an_excluded_call_between_two_becomes_context_of_the_second(trace) -> None:
    trace.gateway([1], [2])
    trace.gateway([1, 2, 3], [4], logprobs=[])
    trace.gateway([1, 2, 3, 4, 5], [6])
    trace.reward(1.0)
    result = TraceToRows().adapt(trace.spans)
    assert reasons(result) == {"no_logprobs": 1}
    (row,) = result.rows
    assert row.loss_mask == [0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("wrong", [1e300, -1e300, 0.2, -2e4, float("nan"), float("inf")])
def test_log_probabilities_that_no_model_gives_are_malformed(trace, wrong: float) -> None:
    for logprobs in ([-0.5, wrong], [wrong, -0.5], [1e300, -1e300], [0.05, -9999.0]):
        trace.gateway([1], [2, 3], logprobs=logprobs)
    trace.reward(1.0)
    result = TraceToRows().adapt(trace.spans)
    assert [row.logprobs for row in result.rows] == [[0.0, 0.05, -9999.0]]
    assert result.ledger.reasons() == {"malformed": 3}
