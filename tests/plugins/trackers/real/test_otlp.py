"""OpenTelemetry's exporter sends a run to a collector."""

import asyncio
import json
import logging
import os
import threading
from typing import Any

import pytest
from tests.interpreter import python

import agl
import agl_trackers
from agl.types import Span
from agl_trackers import otlp

from ..collector import attributes, collecting  # noqa: TID252
from ..runs import Hang, Learner, fit  # noqa: TID252

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


def tracker(address: str, **options: Any) -> agl_trackers.OTLP:
    return agl_trackers.OTLP(endpoint=address, **{"wait_seconds": 120, **options})


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """What a collector got of a run of six rollouts."""
    with collecting() as found:
        headers = {"key": "of ours"}
        fit(tracker(found.address, headers=headers), tmp_path_factory.mktemp("run"), run="first")
    return found


@pytest.fixture
def trace(sent):
    """The spans of one rollout: itself, its call, and its reward."""
    root = next(span for span in sent.spans if span.name == "rollout")
    return root, *(span for span in sent.spans if span.parent_span_id == root.span_id)


def test_the_collector_is_told_the_project_and_the_key(sent):
    [resource] = {json.dumps(attributes(r.resource_spans[0].resource)) for r in sent.requests}
    assert json.loads(resource)["openinference.project.name"] == "agl"
    assert sent.headers[0]["key"] == "of ours"


def test_each_attempt_is_a_trace_of_its_own(sent, trace):
    roots = [span for span in sent.spans if span.name == "rollout"]
    assert [root.parent_span_id for root in roots] == [b""] * 6
    assert len({span.trace_id for span in trace}) == 1
    root, call, reward = trace
    assert call.name == "chat tiny"
    said = attributes(root)["session.id"]
    assert said == attributes(root)["gen_ai.conversation.id"] == attributes(call)["session.id"]
    assert attributes(reward)["openinference.span.kind"] == "EVALUATOR"


ROLLOUT = {
    "openinference.span.kind": "AGENT",
    "input.value": '{"question": "Is it?"}',  # without the answer key
    "output.value": "yes",
    "evaluations.0.evaluation.name": "primary",
    "evaluations.0.evaluation.score": 0.75,
}
CALL = {
    "openinference.span.kind": "LLM",
    **dict.fromkeys(("llm.model_name", "gen_ai.request.model"), "tiny"),
    **dict.fromkeys(("llm.token_count.prompt", "gen_ai.usage.input_tokens"), 7),
    **dict.fromkeys(("llm.token_count.completion", "gen_ai.usage.output_tokens"), 2),
    "llm.input_messages.0.message.content": "Say yes. Is it?",
    "llm.output_messages.0.message.role": "assistant",
}


def test_rollout_is_said_in_openinference_and_its_call_in_both_conventions(trace):
    for place, said in enumerate((ROLLOUT, CALL)):
        found = attributes(trace[place])
        assert {name: found.get(name) for name in said} == said


def test_a_rollout_has_its_step_and_its_reward_as_an_event(trace):
    assert json.loads(attributes(trace[0])["metadata"])["step"] == 1
    [event] = trace[0].events
    assert event.name == "gen_ai.evaluation.result"
    assert attributes(event)["gen_ai.evaluation.score.value"] == 0.75


def test_messages_are_those_of_gen_ai(trace):
    assert json.loads(attributes(trace[1])["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Say yes. Is it?"}]}
    ]


def test_a_failed_attempt_is_a_span_with_its_error_and_traceback(tmp_path):
    with collecting() as found:
        fit(tracker(found.address), tmp_path)
    [failed] = [span for span in found.spans if span.status.code == 2]
    assert failed.status.message == "agent: no kindness"
    [event] = failed.events
    assert attributes(event)["exception.type"] == "LookupError"
    assert "runs.py" in attributes(event)["exception.stacktrace"]


def test_spans_are_sent_while_the_run_goes_on(tmp_path):
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


def test_a_collector_that_refuses_is_tried_less_and_less_and_the_run_goes_on(tmp_path, caplog):
    with collecting(lambda: 401) as found, caplog.at_level(logging.WARNING, "agl.trackers"):
        fit(tracker(found.address), tmp_path)
    assert found.requests == []
    first, last = [one.getMessage() for one in caplog.records if one.name == "agl.trackers"]
    assert "the collector did not take the spans. The run goes on" in first
    # Six rollouts, and the start and the end of the tracker.
    assert "6 of 8 records are lost" in last


def test_a_collector_that_hangs_does_not_hold_the_run_up(tmp_path, caplog):
    with Hang() as hang, collecting(hang) as found:
        fit(tracker(found.address, wait_seconds=0.2), tmp_path)
        assert found.requests == []
        hang.goes_on.set()
    assert "the collector had not answered after" in caplog.messages[-1]


async def follow(tracked, number, *, before_end=None, **odd):
    """Rollouts of a run with this tracker, the fourth with such a span; what is lost."""
    store = agl.InMemoryLightningStore()
    await tracked.on_run_start(Learner(), store)
    for n in range(number):
        one = await store.start_rollout(n)
        ids = {"rollout_id": one.rollout_id, "attempt_id": one.attempt.attempt_id}
        span = Span.from_attributes(name="work", attributes={"n": n}, **ids)
        await store.add_many_spans([span.model_copy(update=odd) if n == 3 else span])
        await store.update_attempt(*ids.values(), status="succeeded")
    if before_end is not None:
        await asyncio.wait_for(asyncio.to_thread(before_end.wait), 120)
    assert tracked._delivery is not None
    await tracked.on_run_end()
    return dict(tracked._delivery.lost)


def numbers(found: Any) -> list[int]:
    return sorted(attributes(span)["n"] for span in found.spans if span.name == "work")


async def test_an_attempt_that_cannot_be_written_takes_no_other_with_it():
    with collecting() as found:
        lost = await follow(tracker(found.address), 50, trace_id="nothex", span_id="alsonot")
    assert lost == {"their spans cannot be written (ValueError)": 1}
    assert numbers(found) == [n for n in range(50) if n != 3]


async def test_what_a_collector_refuses_at_first_is_sent_later(monkeypatch):
    monkeypatch.setattr(otlp, "LONGEST_PAUSE", 0.01)
    answers, again = [200, 200, 400, 400, 400, 400, 400], threading.Event()

    def answer() -> int:
        if answers:
            return answers.pop(0)
        again.set()
        return 200

    with collecting(answer) as found:
        every = tracker(found.address, every_seconds=0.01)
        assert await follow(every, 30, before_end=again) == {}
    assert numbers(found) == list(range(30))


async def test_what_a_collector_never_takes_is_lost_alone(monkeypatch):
    monkeypatch.setattr(otlp, "LONGEST_PAUSE", 0.01)
    send = agl_trackers.OTLP._export

    def refuse(self: agl_trackers.OTLP, traces: Any) -> None:
        for trace in traces:
            if any((span.attributes or {}).get("n") == 3 for span in trace.spans):
                raise ConnectionError("413 Content Too Large")
        send(self, traces)

    monkeypatch.setattr(agl_trackers.OTLP, "_export", refuse)
    with collecting() as found:
        lost = await follow(tracker(found.address, every_seconds=0.01), 30)
    assert sum(lost.values()) == 1
    assert numbers(found) == [n for n in range(30) if n != 3]


async def test_one_rollout_that_cannot_be_read_holds_no_other_up(monkeypatch):
    monkeypatch.setattr(otlp, "LONGEST_PAUSE", 0.01)
    read = otlp._attempts

    async def attempts(store: Any, rollout: Any) -> Any:
        if rollout.input == 3:
            raise OSError("a bad sector")
        return await read(store, rollout)

    monkeypatch.setattr(otlp, "_attempts", attempts)
    with collecting() as found:
        lost = await follow(tracker(found.address, every_seconds=0.01), 30)
    assert sum(lost.values()) == 1
    assert numbers(found) == [n for n in range(30) if n != 3]


async def test_of_a_failing_collector_few_rollouts_are_read_and_all_counted(monkeypatch):
    tried, read = threading.Event(), list[str]()
    attempts = otlp._attempts

    async def note(store: Any, rollout: Any) -> Any:
        read.append(rollout.rollout_id)
        return await attempts(store, rollout)

    def refuse() -> int:
        tried.set()
        return 401

    monkeypatch.setattr(otlp, "_attempts", note)
    with collecting(refuse) as found:
        lost = await follow(tracker(found.address, every_seconds=0.01), 600, before_end=tried)
    assert sum(lost.values()) == 600
    assert len(read) < 20


async def test_of_a_collector_that_hangs_one_rollout_is_read_and_all_are_counted():
    with Hang() as hang, collecting(hang) as found:
        hangs = tracker(found.address, every_seconds=0.01, wait_seconds=0.2)
        lost = await follow(hangs, 600, before_end=hang.began)
        hang.goes_on.set()
    assert sum(number for why, number in lost.items() if "the run had ended" not in why) >= 1
    assert sum(lost.values()) >= 600


def test_its_words_on_a_key_do_not_have_it():
    headers = {"Authorization": "Bearer SECRETTOKEN123456"}
    shown = repr(agl_trackers.OTLP(headers=headers, endpoint="http://u:pw12345678@h/v1"))
    assert "OTLP(endpoint='http://" in shown
    assert "Authorization" in shown
    assert "SECRETTOKEN123456" not in shown
    assert "pw12345678" not in shown


REFUSED = """
import agl
import agl_trackers

@agl.rollout
def agent(task: str) -> float:
    return 1.0

tracker = agl_trackers.OTLP(endpoint="http://127.0.0.1:9/v1/traces", wait_seconds=20)
agl.Trainer(strategy="shm", n_runners=1, hooks=[tracker]).dev(agent, ["one"])
"""


def test_of_a_collector_that_is_not_there_only_our_log_speaks(tmp_path):
    env = {**os.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    done = python("-c", REFUSED, cwd=tmp_path, env=env, check=True)
    assert "otlp: " in done.stderr
    assert "records are lost" in done.stderr
    bare = [line for line in done.stderr.splitlines() if line.startswith(("Transient", "Failed"))]
    assert bare == []
