"""Stores that the page is tried on: one of every kind of failure, one of hostile text."""

import asyncio
import re
import struct
import urllib.error
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor

from tests.stores import opened

import agl
from agl.semconv import ModelCallAttributes as Call
from agl.types import Failure, RolloutConfig, TraceStatus
from agl_runs.records import RunStart
from agl_runs.store import begin_run

from ..inspect.traces import call_of, ids_of, reward_span as reward_of  # noqa: TID252

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


def filled(path, fill):
    """What ``fill`` gives, which gets the store of this file, open."""

    async def run():
        async with opened(path, durability="process") as store:
            return await fill(store)

    return apart(run())


def begin(path, *runs, **about):
    """A store with these runs."""

    async def fill(store):
        for run in runs:
            await begin_run(store, RunStart(run_id=run, algorithm="grpo", **about))

    filled(path, fill)


def read(address, data=None, **headers):
    """Status and text of an answer, which may be an error."""
    try:
        answer = urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read().decode()


def page_of(address):
    """The text of a page that is there, with no more than one space anywhere."""
    status, text = read(address)
    assert status == 200, text
    return re.sub(r"\s+", " ", text)


def call_span(rollout, messages, answer, **attributes):
    """A model call of the rollout's attempt, as a gateway records it."""
    given = {Call.REQUEST_MODEL: "policy", Call.FINISH_REASONS: ["stop"], **attributes}
    return _owned(call_of(messages, answer, **given), rollout, 0.0, 0.5)


def reward_span(rollout, value):
    """The final reward of a rollout."""
    return _owned(reward_of(value), rollout, 0.6, 0.6)


def _owned(span, rollout, begin, end):
    start = rollout.attempt.start_time
    times = {"start_time": start + begin, "end_time": start + end}
    return span.model_copy(update={**ids_of(rollout), **times})


def failed_span(rollout, name, message, **attributes):
    """A span with an error."""
    start = rollout.attempt.start_time
    given = {"attributes": attributes, "start_time": start, "end_time": start + 1}
    status = TraceStatus(status_code="ERROR", description=message)
    return agl.Span.from_attributes(name=name, status=status, **given, **ids_of(rollout))


async def fill_with_failures(store) -> None:
    """Rollouts that failed in each way, one that was tried twice, and one that waits."""
    await begin_run(store, RunStart(run_id="failures", algorithm="grpo"))
    await store.add_resources({"prompt": agl.PromptTemplate(template="Hi {name}!")})
    for boundary, (kind, message, traceback) in FAILURES.items():
        rollout = await store.start_rollout({"task": boundary}, mode="train", worker_id="w1")
        call = call_span(rollout, [_user(boundary)], "I do not know")
        await store.add_many_spans([failed_span(rollout, "agent.solve", message), call])
        error = Failure(boundary=boundary, type=kind, message=message, traceback=traceback)
        await store.update_attempt(**ids_of(rollout), status="failed", error=error)
    retry = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await store.enqueue_rollout("tried twice", mode="val", config=retry)
    error = Failure(boundary="agent", type="E", message="first", traceback=TRACEBACK)
    for number, ended in enumerate(({"status": "failed", "error": error}, {"status": "succeeded"})):
        again = await store.dequeue_rollout("w2")
        assert again is not None
        await store.add_many_spans([call_span(again, [_user("twice")], f"answer {number}")])
        if number:
            await store.add_span(reward_span(again, 1.0))
        await store.update_attempt(**ids_of(again), **ended)
    await store.enqueue_rollout("waits", mode="test")


def png_of(side, rows, level=-1):
    """A PNG of so many dots a side."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    dots = zlib.compress(rows, level)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", dots), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


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


async def fill_with_hostile(store) -> None:
    """Rollouts whose tasks, answers, names and errors are hostile, and one with a huge line.

    So are names of runners, spans, agents, rewards, resources and options.
    """
    hostile = [text.encode("utf-8", "backslashreplace").decode() for text in HOSTILE]
    hostile = [text.replace("\x00", "") for text in hostile]
    config = {"algorithm": {"type": "grpo", **{text: text for text in hostile}}}
    await begin_run(store, RunStart(run_id="hostile", algorithm=hostile[0], config=config))
    resources = {text: agl.PromptTemplate(template=text + " {name}") for text in hostile}
    await store.add_resources(resources)
    for text, safe in zip(HOSTILE, hostile, strict=True):
        task, about = {"task": safe, safe: safe}, {"step": 1}
        rollout = await store.start_rollout(task, mode="train", worker_id=safe, metadata=about)
        # The answer is JSON within an attribute, where even half an emoji can be written.
        named = {Call.REQUEST_MODEL: safe, "gen_ai.agent.name": safe, "model": safe}
        call = call_span(rollout, [_user(text)], text, **named)
        odd = {"agentlightning.reward.0.name": safe, safe: safe}
        reward = reward_span(rollout, 1.0)
        reward = reward.model_copy(update={"attributes": {**reward.attributes, **odd}})
        await store.add_many_spans([call, failed_span(rollout, safe, safe, **{safe: safe}), reward])
        error = Failure(boundary="agent", type=safe, message=safe, traceback=safe)
        await store.update_attempt(**ids_of(rollout), status="failed", error=error)
    rollout = await store.start_rollout("long", mode="val", worker_id="w")
    await store.add_span(call_span(rollout, [_user("go")], "x" * 10_000_000 + "<script>"))
    await store.update_attempt(**ids_of(rollout), status="succeeded")
