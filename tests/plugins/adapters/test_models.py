"""Whose calls become rows: the trained model's, and not a judge's."""

import pytest

from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls
from agl_records.training_data import TrainedModel

from .test_truncated import change

POLICY, ECHO = TrainedModel(name="policy"), TrainedModel(name="echo")
OWN_REWARD = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}


def test_calls_below_a_reward_are_a_judges(trace) -> None:
    trace.gateway([1], [2])
    reward = trace.reward(0.5, start_time=200.0, end_time=300.0)
    trace.gateway([7], [8], parent_id=reward.span_id)
    trace.gateway([7], [9], start_time=201.0, end_time=202.0)  # in its time, without a parent
    for credit in ("final", "per_call"):
        result = TraceToRows(credit=credit).adapt(trace.spans)
        assert [(row.token_ids, row.reward) for row in result.rows] == [([1, 2], 0.5)]
        assert result.ledger.reasons() == {"judge": 1, "perhaps_judge": 1}
        result.ledger.train(result.rows[0])
        result.ledger.check()


def test_calls_below_a_reward_that_cannot_be_read_are_a_judges_too(trace) -> None:
    trace.gateway([1], [2])
    judge = trace.span("judge", {"agentlightning.reward.0.value": "good"})
    trace.gateway([7], [8], parent_id=judge.span_id)
    assert TraceToRows().adapt(trace.spans).ledger.reasons()["judge"] == 1


@pytest.mark.parametrize("model", [None, ECHO])
@pytest.mark.parametrize("credit", ["final", "per_call"])
def test_a_reward_on_the_agents_own_span_makes_no_call_a_judges(trace, credit, model) -> None:
    agent = trace.span("agent", OWN_REWARD, start_time=100.0, end_time=200.0, sequence_id=9)
    trace.gateway([1], [2], parent_id=agent.span_id)
    judge = trace.span("judge", OWN_REWARD, parent_id=agent.span_id)
    trace.gateway([7], [8], parent_id=judge.span_id)
    result = TraceToRows(credit=credit).adapt(trace.spans, model=model)
    (row,) = result.rows
    assert (row.token_ids, row.reward) == ([1, 2], 1.0 if credit == "final" else 2.0)
    assert result.ledger.reasons() == {"judge": 1}
    unused = {"superseded_reward": 1} if credit == "final" else {}
    assert result.ledger.reasons("reward") == unused


def test_a_span_whose_output_is_the_reward_is_a_judges_also_around_all_calls(trace) -> None:
    output = {"agentops.task.output": '{"type": "reward", "value": 1.0}'}
    judge = trace.span("evaluate", output, start_time=100.0, end_time=200.0)
    trace.gateway([7], [8], parent_id=judge.span_id)
    result = TraceToRows().adapt(trace.spans, model=ECHO)
    assert (result.rows, result.ledger.reasons()) == ([], {"judge": 1})


def test_a_call_that_names_no_model_is_not_the_trained_ones(trace) -> None:
    span = trace.gateway([1], [2])
    trace.reward(1.0)
    unnamed = {k: v for k, v in span.attributes.items() if "model" not in k}
    trace.spans[0] = span.model_copy(update={"attributes": unnamed})
    assert TraceToRows().adapt(trace.spans).rows
    result = TraceToRows().adapt(trace.spans, model=POLICY)
    assert result.ledger.reasons() == {"other_model": 1}
    assert result.ledger.exclusions[0].detail == "no model is recorded; 'policy' is trained"


@pytest.mark.parametrize("given", ["echo", "hosted_vllm/echo"])
def test_a_provider_before_the_name_is_no_other_model(trace, given: str) -> None:
    tokens = {"prompt_token_ids": [1], "response_token_ids": [2]}
    trace.flat(extra={"gen_ai.request.model": given, "gen_ai.response.model": "/m/17", **tokens})
    trace.reward(1.0)
    (call,) = model_calls(trace.spans)
    assert ECHO.made(call)
    assert not POLICY.made(call)


def test_what_a_gateway_served_is_the_trained_model_by_its_whole_name_only(trace) -> None:
    trace.gateway([1], [2], response_id="r1")
    trace.gateway([1], [3], response_id="r2")
    change(trace, REQUEST_MODEL="acme/echo")
    trace.reward(1.0)
    result = TraceToRows().adapt(trace.spans, model=ECHO)
    assert [row.token_ids for row in result.rows] == [[1, 2]]
    assert result.ledger.reasons() == {"other_model": 1}
    assert result.ledger.exclusions[0].detail == "its model is 'acme/echo'; 'echo' is trained"


@pytest.mark.parametrize(("served", "is_trained"), [("echo", True), ("acme/echo", False)])
def test_the_gateways_name_counts_where_the_client_recorded_the_call_too(trace, served, is_trained):
    # The client's record is kept, as it alone has the tokens.
    trace.gateway(response_id="r1")
    change(trace, REQUEST_MODEL=served)
    tokens = {"prompt_token_ids": [1], "response_token_ids": [2]}
    trace.flat("r1", extra={"gen_ai.request.model": "acme/echo", **tokens})
    (call,) = model_calls(trace.spans)
    assert call.response_token_ids == [2]
    assert ECHO.made(call) is is_trained


def test_token_ids_beyond_the_vocabulary_are_malformed(trace) -> None:
    trace.gateway([1, 2], [3])
    trace.gateway([1, 2], [10])
    trace.gateway([10], [3])
    trace.gateway([1, 2], [2**40])
    trace.reward(1.0)
    result = TraceToRows().adapt(trace.spans, model=TrainedModel(name="echo", vocabulary_size=10))
    assert result.ledger.reasons() == {"malformed": 2, "no_token_ids": 1}
    assert [row.token_ids for row in result.rows] == [[1, 2, 3]]
    details = [exclusion.detail for exclusion in result.ledger.exclusions]
    assert details[:2] == ["token id 10 is beyond the vocabulary of 10"] * 2
