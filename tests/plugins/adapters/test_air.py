"""Rewards out of what tools did."""

import pytest

from agl.errors import ConfigError
from agl.types import TraceStatus
from agl_adapters import AutoRewards, TraceToRows

from .test_rows import settled

TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}


def failed_status(text: str = "timeout"):
    return TraceStatus(status_code="ERROR", description=text)


def credits(trace, air, credit="per_call") -> list[float | None]:
    result = TraceToRows(credit=credit, air=air).adapt(trace.spans)
    settled(result)
    given = {c: k.reward for r in result.rows for c, k in zip(r.call_ids, r.credits, strict=True)}
    calls = [s for s in trace.spans if s.name == "openai.chat.completion"]
    return [given.get(span.span_id) for span in calls]


def two_tools(trace) -> None:
    trace.gateway([1], [2])
    trace.span("execute_tool search", TOOL)
    trace.gateway([3], [4])
    trace.span("execute_tool search", TOOL, status=failed_status())


def test_tools_give_rewards_to_the_calls_that_asked_for_them(trace) -> None:
    two_tools(trace)
    assert credits(trace, {"on_tool_success": 0.3, "on_tool_failure": -0.2}) == [0.3, -0.2]
    assert credits(trace, {"on_tool_success": 0.3}) == [0.3, None]


def test_off_means_no_rewards(trace) -> None:
    two_tools(trace)
    trace.reward(1.0)
    assert credits(trace, {"on_tool_success": 0.3, "enabled": False}) == [None, 1.0]
    assert credits(trace, {"on_tool_success": 0.3, "enabled": False}, "final") == [1.0, 1.0]


def test_intermediate_rewards_add_to_the_return(trace) -> None:
    two_tools(trace)
    trace.reward(1.0)
    # G2 = -0.2 + 1 = 0.8; G1 = 0.3 + 0.5 * 0.8 = 0.7.
    air = {"on_tool_success": 0.3, "on_tool_failure": -0.2}
    found = credits(trace, air, {"type": "discounted", "gamma": 0.5})
    assert found == [pytest.approx(0.7), pytest.approx(0.8)]


def test_the_final_reward_is_the_agents_own(trace) -> None:
    trace.gateway([1], [2])
    trace.reward(1.0)
    trace.span("execute_tool search", TOOL)
    result = TraceToRows(credit="stepwise", air={"on_tool_success": 0.3}).adapt(trace.spans)
    (credit,) = result.rows[0].credits
    assert credit.reward == 1.0
    assert credit.step.reward == pytest.approx(1.3)
    assert result.ledger.summary()["rewards"] == {"total": 2, "used": 2, "excluded": {}}


def test_functions_see_tool_and_output(trace) -> None:
    seen = []
    output = {**TOOL, "gen_ai.tool.call.result": '{"hits": 3}'}
    trace.gateway([1], [2])
    trace.span("execute_tool search", output)
    trace.span("execute_tool search", TOOL, status=failed_status("no route"))

    def success(name, output):
        seen.append((name, output))
        return 0.1 * output["hits"]

    def failure(name, error):
        seen.append((name, error))

    rules = AutoRewards(on_tool_success=success, on_tool_failure=failure)
    (reward,) = rules.rewards(trace.spans)
    assert reward.attributes["agentlightning.reward.0.value"] == pytest.approx(0.3)
    assert seen == [("search", {"hits": 3}), ("search", "no route")]


def test_code_is_judged_by_its_exit_code(trace) -> None:
    code = {**TOOL, "gen_ai.tool.name": "run_python"}
    code["gen_ai.tool.call.arguments"] = '{"code": "1/0"}'
    trace.span("ok", {**code, "gen_ai.tool.call.result": '{"exit_code": 0}'})
    trace.span("bad", {**code, "gen_ai.tool.call.result": '{"exit_code": 1}'})
    trace.span("worse", {**code, "process.exit_code": 7})
    seen = []

    def judge(code, result, exit_code):
        seen.append((code["code"], exit_code))
        return 0.5 if exit_code == 0 else -0.1

    values = [
        span.attributes["agentlightning.reward.0.value"]
        for span in AutoRewards(on_code_execution=judge, on_tool_success=9.0).rewards(trace.spans)
    ]
    assert values == [0.5, -0.1, -0.1]
    assert seen == [("1/0", 0), ("1/0", 1), ("1/0", 7)]
    assert len(AutoRewards(on_code_execution=0.5).rewards(trace.spans)) == 1


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("t", {"openinference.span.kind": "TOOL", "tool.name": "search"}),
        ("t", {"agentops.span.kind": "tool", "operation.name": "search"}),
        ("t", {"traceloop.span.kind": "tool", "traceloop.entity.name": "search"}),
        ("agentlightning.operation", {"agentlightning.operation.name": "search"}),
    ],
)
def test_tools_of_every_instrument_are_known(trace, name, attributes) -> None:
    trace.span(name, attributes)
    (reward,) = AutoRewards(on_tool_success=1.0).rewards(trace.spans)
    assert reward.parent_id == trace.spans[0].span_id


def test_agents_and_model_calls_are_no_tools(trace) -> None:
    trace.gateway([1], [2])
    trace.span("agentlightning.operation", {"type": "agent"})
    trace.span("agentlightning.operation", {"agentlightning.operation.output.choices.0.index": 0})
    assert AutoRewards(on_tool_success=1.0, on_tool_failure=1.0).rewards(trace.spans) == []


def bonus(span):
    return 0.5 if span.attributes.get("cache.hit") else None


def test_custom_rules_see_every_span_and_may_be_named(trace) -> None:
    trace.gateway([1], [2])
    trace.span("lookup", {"cache.hit": True})
    path = f"{bonus.__module__}:bonus"
    assert credits(trace, {"custom": [path]}) == [0.5]
    assert credits(trace, {"custom": [bonus, lambda span: None]}) == [0.5]


def test_a_rule_that_looks_at_final_rewards_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="the credit rule 'final' does not use"):
        TraceToRows(air={"on_tool_success": 1.0})
    with pytest.raises(ConfigError, match="on_tool_sucess"):
        TraceToRows(credit="per_call", air={"on_tool_sucess": 1.0})
    with pytest.raises(ConfigError, match="expected a number or a function"):
        AutoRewards(on_tool_success=[1.0])
