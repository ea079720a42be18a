"""Stores that the page is tried on: one of every kind of failure, one of hostile text."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import agl
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Call
from agl.types import Failure, RolloutConfig, TraceStatus
from agl_runs.records import RunStart
from agl_runs.store import begin_run

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/home/me/agent.py", line 41, in solve\n'
    "    return answers[task]\nKeyError: 'three'\n"
)
FAILURES = {
    "agent": ("KeyError", "'three'", TRACEBACK),
    "timeout": ("timeout", "the attempt took longer than 30 s", None),
    "tracer": ("ExportError", "no spans could be sent", None),
    "model": ("APIConnectionError", "Connection refused", TRACEBACK),
    "evaluator": ("ValueError", "the grader gave nan", None),
    "lost": ("lost", "no sign of life for 60 s", None),
    "resources": ("ConfigError", "no resource 'prompt'", None),
    "hook": ("TypeError", "a hook raised", None),
    "store": ("InvalidRecordError", "a span holds nan", None),
}


def apart(coroutine):
    """Run a coroutine in a thread of its own: Playwright has a loop in that of the test."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def call_span(rollout, messages, answer, **attributes):
    """A model call of the rollout's attempt, as a gateway records it."""
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    given = {
        Call.OPERATION: "chat",
        Call.REQUEST_MODEL: "policy",
        Call.INPUT_MESSAGES: json.dumps(messages),
        Call.OUTPUT_MESSAGES: json.dumps([{"role": "assistant", "content": answer}]),
        Call.FINISH_REASONS: ["stop"],
        **attributes,
    }
    start = rollout.attempt.start_time
    return agl.Span.from_attributes(
        attributes=given, name=MODEL_CALL_SPAN, start_time=start, end_time=start + 0.5, **ids
    )


def reward_span(rollout, value):
    """The final reward of a rollout."""
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    named = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
    start = rollout.attempt.start_time + 0.6
    return agl.Span.from_attributes(
        attributes=named, name="agentlightning.annotation", start_time=start, end_time=start, **ids
    )


async def fill_with_failures(path: Path) -> None:
    """Rollouts that failed in each way, one that was tried twice, and one that waits."""
    store = agl.SqliteLightningStore(path, durability="process")
    await begin_run(store, RunStart(run_id="failures", algorithm="grpo"))
    await store.add_resources({"prompt": agl.PromptTemplate(template="Hi {name}!")})
    for boundary, (kind, message, traceback) in FAILURES.items():
        rollout = await store.start_rollout({"task": boundary}, mode="train", worker_id="w1")
        failed = agl.Span.from_attributes(
            attributes={},
            name="agent.solve",
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            status=TraceStatus(status_code="ERROR", description=message),
            start_time=rollout.attempt.start_time,
            end_time=rollout.attempt.start_time + 1,
        )
        await store.add_many_spans([failed, call_span(rollout, [_user(boundary)], "I do not know")])
        error = Failure(boundary=boundary, type=kind, message=message, traceback=traceback)
        await store.update_attempt(
            rollout.rollout_id, rollout.attempt.attempt_id, status="failed", error=error
        )
    retry = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await store.enqueue_rollout("tried twice", mode="val", config=retry)
    for number, status in enumerate(("failed", "succeeded")):
        again = await store.dequeue_rollout("w2")
        assert again is not None
        await store.add_many_spans([call_span(again, [_user("twice")], f"answer {number}")])
        error = {"error": Failure(boundary="agent", type="E", message="first", traceback=TRACEBACK)}
        if status == "succeeded":
            await store.add_span(reward_span(again, 1.0))
        await store.update_attempt(
            again.rollout_id,
            again.attempt.attempt_id,
            status=status,
            **(error if status == "failed" else {}),
        )
    await store.enqueue_rollout("waits", mode="test")
    await store.close()


def _user(text):
    return {"role": "user", "content": text}


HOSTILE = [
    "<script>window.hurt = 1</script>",
    '"><img src=x onerror="window.hurt = 1">',
    "<a href='javascript:window.hurt=1'>click</a>",
    "</pre></div></main><iframe srcdoc='<script>parent.hurt=1</script>'></iframe>",
    "[click](javascript:window.hurt=1) {{ 7 * 7 }} {% raw %}",
    "safe \u202egnp.exe\u202c and \u2066isolated\u2069, no\u200bwidth",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x00 end",
    "half an emoji \ud83d and its other half \ude00",
]


async def fill_with_hostile(path: Path) -> None:
    """Rollouts whose tasks, answers, names and errors are hostile, and one with a huge line.

    So are names of runners, spans, agents, rewards, resources and options.
    """
    store = agl.SqliteLightningStore(path, durability="process")
    hostile = [text.encode("utf-8", "backslashreplace").decode() for text in HOSTILE]
    hostile = [text.replace("\x00", "") for text in hostile]
    config = {"algorithm": {"type": "grpo", **{text: text for text in hostile}}}
    await begin_run(store, RunStart(run_id="hostile", algorithm=hostile[0], config=config))
    resources = {text: agl.PromptTemplate(template=text + " {name}") for text in hostile}
    await store.add_resources(resources)
    for text, safe in zip(HOSTILE, hostile, strict=True):
        rollout = await store.start_rollout(
            {"task": safe, safe: safe}, mode="train", worker_id=safe, metadata={"step": 1}
        )
        # The answer is JSON within an attribute, where even half an emoji can be written.
        named = {Call.REQUEST_MODEL: safe, "gen_ai.agent.name": safe, "model": safe}
        call = call_span(rollout, [_user(text)], text, **named)
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        span = agl.Span.from_attributes(
            name=safe,
            attributes={safe: safe},
            status=TraceStatus(status_code="ERROR", description=safe),
            start_time=rollout.attempt.start_time,
            end_time=rollout.attempt.start_time + 1,
            **ids,
        )
        reward = reward_span(rollout, 1.0).model_copy(
            update={
                "attributes": {
                    "agentlightning.reward.0.name": safe,
                    "agentlightning.reward.0.value": 1.0,
                    safe: safe,
                }
            }
        )
        await store.add_many_spans([call, span, reward])
        error = Failure(boundary="agent", type=safe, message=safe, traceback=safe)
        await store.update_attempt(
            rollout.rollout_id, rollout.attempt.attempt_id, status="failed", error=error
        )
    rollout = await store.start_rollout("long", mode="val", worker_id="w")
    await store.add_span(call_span(rollout, [_user("go")], "x" * 10_000_000 + "<script>"))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    await store.close()
