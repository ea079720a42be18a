"""OpenTelemetry's exporter sends a run to a collector."""

import asyncio
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import agl
import agl_trackers

from ..collector import attributes, collecting  # noqa: TID252
from ..runs import fit  # noqa: TID252

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


def tracker(address: str, **options: Any) -> agl_trackers.OTLP:
    return agl_trackers.OTLP(endpoint=address, **{"wait_seconds": 120, **options})


def test_each_attempt_is_a_trace_with_its_calls_and_rewards_in_both_conventions(
    tmp_path: Path,
) -> None:
    with collecting() as found:
        fit(tracker(found.address, headers={"key": "of ours"}), tmp_path, run="first")
    [resource] = {json.dumps(attributes(r.resource_spans[0].resource)) for r in found.requests}
    assert json.loads(resource)["openinference.project.name"] == "agl"
    assert found.headers[0]["key"] == "of ours"
    roots = [span for span in found.spans if span.name == "rollout"]
    assert len(roots) == 6
    assert all(not root.parent_span_id for root in roots)

    first = roots[0]
    about = attributes(first)
    assert about["openinference.span.kind"] == "AGENT"
    assert about["session.id"] == about["gen_ai.conversation.id"]
    assert json.loads(about["input.value"]) == {"question": "Is it?"}  # without the answer key
    assert about["output.value"] == "yes"
    assert json.loads(about["metadata"])["step"] == 1
    assert about["evaluations.0.evaluation.name"] == "primary"
    assert about["evaluations.0.evaluation.score"] == 0.75
    [event] = first.events
    assert event.name == "gen_ai.evaluation.result"
    assert attributes(event)["gen_ai.evaluation.score.value"] == 0.75

    below = [span for span in found.spans if span.parent_span_id == first.span_id]
    assert {span.trace_id for span in below} == {first.trace_id}
    call, reward = below
    assert call.name == "chat tiny"
    said = attributes(call)
    assert said["openinference.span.kind"] == "LLM"
    assert said["session.id"] == about["session.id"]
    assert said["llm.model_name"] == said["gen_ai.request.model"] == "tiny"
    assert said["llm.token_count.prompt"] == said["gen_ai.usage.input_tokens"] == 7
    assert said["llm.token_count.completion"] == said["gen_ai.usage.output_tokens"] == 2
    assert said["llm.input_messages.0.message.content"] == "Say yes. Is it?"
    assert said["llm.output_messages.0.message.role"] == "assistant"
    assert json.loads(said["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Say yes. Is it?"}]}
    ]
    assert attributes(reward)["openinference.span.kind"] == "EVALUATOR"


def test_a_failed_attempt_is_a_span_with_its_error_and_traceback(tmp_path: Path) -> None:
    with collecting() as found:
        fit(tracker(found.address), tmp_path)
    [failed] = [span for span in found.spans if span.status.code == 2]
    assert failed.status.message == "agent: no kindness"
    [event] = failed.events
    assert attributes(event)["exception.type"] == "LookupError"
    assert "runs.py" in attributes(event)["exception.stacktrace"]


def test_spans_are_sent_while_the_run_goes_on(tmp_path: Path) -> None:
    came = threading.Event()

    def note() -> int:
        came.set()
        return 200

    class Waits(agl.Hook):
        """Holds the run up at its first step until something has come."""

        async def on_step_end(self, step: int) -> None:
            assert await asyncio.to_thread(came.wait, 60)

    with collecting(note) as found:
        fit([tracker(found.address, every_seconds=0.05), Waits()], tmp_path)
    assert len(found.requests) > 1


def test_a_collector_that_refuses_is_tried_less_and_less_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting(lambda: 401) as found, caplog.at_level(logging.WARNING, "agl.trackers"):
        fit(tracker(found.address), tmp_path)
    assert found.requests == []
    first, last = [one.getMessage() for one in caplog.records if one.name == "agl.trackers"]
    assert "the collector did not take the spans. The run goes on" in first
    assert "are lost" in last


def test_a_collector_that_hangs_does_not_hold_the_run_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()

    def hang() -> int:
        goes_on.wait()
        return 200

    with collecting(hang) as found:
        try:
            fit(tracker(found.address, wait_seconds=0.2), tmp_path)
            assert found.requests == []
        finally:
            goes_on.set()
    assert "had not returned after" in caplog.messages[-1]
