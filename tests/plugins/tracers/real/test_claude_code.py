"""Claude Code, whole: its own tools, its search for tools, its subagents, through the gateway."""

import base64
import json
from collections.abc import Awaitable
from typing import Any

import pytest
from gateway_run import calls_in_turn, run_at_gateway
from processes import claude_code
from scene import ANSWER, reply
from tests.stores import served

pytest.importorskip("claude_agent_sdk")
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("once")]
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSu"
    "QmCC"
)
"""A red square."""


async def run(store, answer, question, **variables):
    """Its answer, its calls and their rows; ``IDS`` in a variable becomes the attempt's ids."""

    def ask(url: str, ids: dict[str, str]) -> Awaitable[str]:
        whose = ",".join(f"agentlightning.{name}={value}" for name, value in ids.items())
        given = {name: value.replace("IDS", whose) for name, value in variables.items()}
        return claude_code(url, question, **given)

    ran = await run_at_gateway(store, answer, ask)
    return ran.text, ran.calls, ran.rows


async def test_a_task_with_its_own_tools_is_one_row(memory_store):
    turns = calls_in_turn(
        ("Bash", {"command": "echo six > number.txt && cat number.txt", "description": "write"}),
        ("Bash", {"command": "cat missing.txt", "description": "fail"}),
        ("Read", {"file_path": "/etc/hostname"}),
        "done",
    )
    text, calls, rows = await run(memory_store, turns, "Write a number to a file.")
    assert text == "done"
    assert [call.error for call in calls] == [None] * 4
    results = [m["content"] for m in calls[-1].messages if m["role"] == "tool"]
    assert results[0] == "six"
    assert "No such file" in results[1]
    (row,) = rows.rows
    assert len(row.call_ids) == 4
    assert row.reward == 1.0
    assert rows.ledger.exclusions == []


async def test_an_image_that_it_reads_and_a_search_of_anthropics(memory_store, tmp_path):
    image = tmp_path / "pixel.png"
    image.write_bytes(base64.b64decode(PIXEL))
    turns = calls_in_turn(
        ("WebSearch", {"query": "weather in Paris"}), ("Read", {"file_path": str(image)}), "done"
    )
    text, calls, rows = await run(memory_store, turns, "Look.")
    assert text == "done"
    search, look = (m["content"] for m in calls[-1].messages if m["role"] == "tool")
    # It asks the model's server to search, by a call of its own; the task goes on without.
    assert "only tools that the provider's own servers run" in search
    assert look[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert {each.reason for each in rows.ledger.exclusions} == {"model_error"}
    assert sum(len(row.call_ids) for row in rows.rows) == 3


async def test_a_tool_that_it_has_to_search_for_first(memory_store):
    text, calls, rows = await run(
        memory_store, reply, "What is the weather in Paris?", ENABLE_TOOL_SEARCH="true"
    )
    assert text == ANSWER
    assert [call.error for call in calls] == [None] * 3
    offered = [{tool["function"]["name"] for tool in call.tools} for call in calls]
    assert "mcp__city__get_weather" not in offered[0]
    assert offered[1] - offered[0] == {"mcp__city__get_weather"}
    # The definitions stand at the beginning of the prompt, which is therefore another one.
    assert [len(row.call_ids) for row in rows.rows] == [1, 2]
    assert rows.rows[1].row_break is not None


async def test_a_subagent_is_in_rows_of_its_own(memory_store):
    task = {"description": "look", "prompt": "Look around.", "subagent_type": "Explore"}
    main = calls_in_turn(("Agent", {**task, "run_in_background": False}), "all done")

    def answer(request: dict[str, Any]) -> Any:
        is_main = "Ask a subagent" in json.dumps(request["messages"])
        return main(request) if is_main else "nothing there"

    text, calls, rows = await run(
        memory_store, answer, "Ask a subagent.", ANTHROPIC_DEFAULT_HAIKU_MODEL="echo"
    )
    assert text == "all done"
    assert [call.error for call in calls] == [None] * 3
    assert "nothing there" in str(calls[-1].messages)
    assert sum(len(row.call_ids) for row in rows.rows) == 3


async def test_its_own_spans_stand_beside_the_gateways(memory_store):
    """It exports them by OpenTelemetry: tools and model calls, without the model's messages."""
    async with served(memory_store) as (server, _):
        variables = {
            "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
            "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.address,
            "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization={server.headers['Authorization']}",
            "OTEL_RESOURCE_ATTRIBUTES": "IDS",
        }
        question = "What is the weather in Paris?"
        _, calls, rows = await run(memory_store, reply, question, **variables)
    names = [span.name for span in await memory_store.query_spans(calls[0].rollout_id)]
    assert names.count("claude_code.llm_request") == 2
    assert names.count("claude_code.tool") == 1
    assert len(calls) == 2
    (row,) = rows.rows
    assert len(row.call_ids) == 2
