import json

from agl_adapters import TraceToChats

from .test_rows import settled
from .test_truncated import change

USER = {"role": "user", "content": "hi"}
YES = {"role": "assistant", "content": "yes"}
SURE = {"role": "user", "content": "sure?"}


def test_a_conversation_of_several_calls_is_one_row_which_can_be_kept_for_some(trace) -> None:
    trace.gateway(messages=[USER])
    trace.gateway(messages=[USER, YES, SURE])
    trace.reward(0.5)
    result = settled(TraceToChats().adapt(trace.spans))
    (row,) = result.rows
    assert [message["content"] for message in row.messages] == ["hi", "yes", "sure?", "yes"]
    assert row.answers == [1, 3]
    assert row.call_ids == [span.span_id for span in trace.spans[:2]]
    assert row.reward == 0.5
    assert row.token_ids == row.logprobs == row.call_ranges == row.loss_mask == []
    assert result.ledger.summary()["trained"] == 2
    second = row.only([1])
    assert (second.answers, second.call_ids) == ([3], row.call_ids[1:])
    assert second.messages == row.messages


def test_what_clients_add_to_a_message_does_not_break_a_conversation(trace) -> None:
    sent_back = {**YES, "refusal": None, "annotations": [], "tool_calls": None}
    trace.gateway(messages=[USER])
    trace.gateway(messages=[USER, sent_back, SURE])
    trace.reward(1)
    assert len(settled(TraceToChats().adapt(trace.spans)).rows) == 1


def test_another_answer_or_prompt_begins_a_row(trace) -> None:
    trace.gateway(messages=[USER])
    trace.gateway(messages=[USER, {**YES, "content": "no"}, SURE])
    trace.gateway(messages=[{"role": "user", "content": "hello"}])
    trace.reward(1)
    rows = settled(TraceToChats().adapt(trace.spans)).rows
    assert [row.answers for row in rows] == [[1], [3], [1]]


def test_agents_have_rows_of_their_own_and_others_are_excluded(trace) -> None:
    trace.gateway(messages=[USER], agent="writer")
    trace.gateway(messages=[USER], agent="critic")
    trace.reward(1)
    agents = [row.agent_name for row in TraceToChats().adapt(trace.spans).rows]
    assert agents == ["writer", "critic"]
    result = settled(TraceToChats(agent_match="writer").adapt(trace.spans))
    assert result.ledger.reasons() == {"agent_not_selected": 1}


def test_calls_without_an_answer_to_learn_from_have_a_reason(trace) -> None:
    trace.gateway(messages=[USER], error="APIError: boom")
    trace.gateway(messages=[USER])
    change(trace, FINISH_REASONS=["content_filter"])
    trace.reward(1)
    result = settled(TraceToChats().adapt(trace.spans))
    assert result.rows == []
    assert result.ledger.reasons() == {"model_error": 2}
    assert "content filter" in result.ledger.exclusions[-1].detail


def test_tool_calls_and_tools_are_kept(trace) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    asked = {"role": "assistant", "tool_calls": [call]}
    trace.gateway(messages=[USER])
    change(trace, OUTPUT_MESSAGES=json.dumps([{**asked, "content": None}]))
    found = {"role": "tool", "tool_call_id": "c1", "content": "Paris"}
    trace.gateway(messages=[USER, asked, found])
    change(trace, TOOL_DEFINITIONS=json.dumps(tools))
    trace.reward(1)
    (row,) = settled(TraceToChats().adapt(trace.spans)).rows
    assert row.messages[1]["tool_calls"] == [call]
    assert row.answers == [1, 3]
    assert row.tools == tools


def test_a_call_that_servers_failed_is_infrastructures(trace) -> None:
    trace.gateway(messages=[USER], error="503", agent="critic")
    change(trace, ERROR_KIND="infrastructure")
    trace.gateway(messages=[USER], error="400", agent="writer")
    trace.reward(0)
    result = settled(TraceToChats(agent_match="writer").adapt(trace.spans))
    assert result.ledger.reasons() == {"infrastructure": 1, "model_error": 1}
