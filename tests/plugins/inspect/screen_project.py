"""A project with a run in it whose ids and times are always the same, to take screens of.

The run is made by hand, through the store, as GRPO would have left it.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from agl.semconv import ModelCallAttributes as Key
from agl.store import watchdog
from agl.types import Failure, Span
from agl_runs.records import RunCode, RunStart
from agl_runs.store import begin_run, end_run
from agl_sqlite import SqliteLightningStore, ids

from .traces import account, call_of, ids_of, reward_span

RUN = "20260102T030405Z-0001"
BEGIN = 1_767_323_045.0
"""2026-01-02 03:04:05 UTC."""
AGENT = '''"""Greets a guest."""

import agl


@agl.rollout
def greet(task: dict, prompt_template: agl.PromptTemplate) -> float:
    text = prompt_template.format(name=task["name"])
    agl.emit_message(text)
    if task["name"] == "Cy":
        raise KeyError("fruit")
    return float(len(text) < 14)
'''
CONFIG = """agent: greeter:greet
train: guests.jsonl
resources:
  prompt_template: {resource_type: prompt_template, template: "Hello, {name}!", engine: f-string}
algorithm: baseline
strategy: shm
runners: 1
"""
GUESTS = ["Ada", "Bartholomew Featherstonehaugh-Cholmondeley", "Cy", "Dee"]
TRACEBACK = """Traceback (most recent call last):
  File "greeter.py", line 11, in greet
    raise KeyError("fruit")
KeyError: 'fruit'
"""


def make_project(folder: Path) -> None:
    """Write agent, tasks and configuration."""
    (folder / "greeter.py").write_text(AGENT)
    (folder / "agl.yaml").write_text(CONFIG)
    lines = [json.dumps({"name": name}) for name in GUESTS]
    (folder / "guests.jsonl").write_text("\n".join(lines) + "\n")


class _Clock:
    def __init__(self) -> None:
        self.time = BEGIN

    def now(self) -> float:
        return self.time

    def passes(self, seconds: float) -> None:
        self.time += seconds


@contextmanager
def _always_the_same() -> Iterator[_Clock]:
    clock = _Clock()
    with (
        mock.patch.object(watchdog.StoreClock, "now", side_effect=clock.now),
        mock.patch("agl_runs.store.time", SimpleNamespace(time=clock.now)),
        mock.patch.object(ids, "_random", random.Random(1)),
    ):
        yield clock


def make_run(folder: Path) -> None:
    """Make the run in ``folder/agl-runs``."""
    home = folder / "agl-runs" / RUN
    home.mkdir(parents=True)
    lines: list[dict[str, Any]] = [
        {"step": 0, "val/reward/mean": 0.25, "val/rollouts/succeeded": 4, "generation": 1}
    ]
    rewards = [0.2, 0.3, 0.25, 0.4, 0.5, 0.45, 0.6, 0.75, 0.7, 0.85, 0.9, 0.95]
    lines += [
        {"step": n, "reward/mean": reward, "tokens/sampled": 40, "tokens/given": 160,
         "time/rollouts": 3.5, "time/update": 1.25, "time/sampling": 2.5, "time/step": 5.0,
         "generation": 1}
        for n, reward in enumerate(rewards, 1)
    ]  # fmt: skip
    lines.append({"step": 12, "val/reward/mean": 0.875, "val/rollouts/succeeded": 4})
    bias = {"bias": 0.2, "bias_task": 0.15, "bias_length": 0.05, "bias_error": 0.04}
    lines[3] |= {f"failures/{name}": value for name, value in bias.items()}
    (home / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = {"rewards": rewards, "val_rewards": [[0, 0.25], [12, 0.875]], "calls_trained": 5}
    (home / "summary.json").write_text(json.dumps(said))
    with _always_the_same() as clock:
        asyncio.run(_fill(home, clock))


async def _fill(home: Path, clock: _Clock) -> None:
    store = SqliteLightningStore(str(home / "store.db"), scan_interval_seconds=1e6)
    code = RunCode(versions={"python": "3.11"}, agent="0123456789abcdef")
    start = RunStart(
        run_id=RUN, algorithm="grpo", folder=str(home), config={"steps": 12}, code=code,
        seed=1, pid=1, host="here",
    )  # fmt: skip
    await begin_run(store, start)
    for step in (1, 2):
        clock.passes(2.0)
        await _step(store, clock, step)
    await end_run(store, RUN, 1, "finished")
    await store.close()


async def _step(store: SqliteLightningStore, clock: _Clock, step: int) -> None:
    """Two rollouts of each of two tasks; in step 2 the last one fails."""
    groups = []
    for group, name in enumerate(GUESTS[:2]):
        groups.append([])
        for member in range(2):
            about = {"run": RUN, "generation": 1, "step": step, "group": group}
            rollout = await store.start_rollout({"name": name}, mode="train", metadata=about)
            clock.passes(0.5 + member)
            fails = (step, group, member) == (2, 1, 1)
            spans = _spans(100 * step + 10 * group + member, name, member, clock, fails)
            made = ids_of(rollout)
            await store.add_many_spans([span.model_copy(update=made) for span in spans])
            how = {"boundary": "agent", "type": "KeyError", "message": "'fruit'"}
            error = {"error": Failure(**how, traceback=TRACEBACK)} if fails else {}
            status = "failed" if fails else "succeeded"
            await store.update_attempt(rollout.rollout_id, "latest", status=status, **error)
            groups[-1] += await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
    await account(store, groups, step=step, algorithm="grpo", run=RUN)


def _spans(number: int, name: str, member: int, clock: _Clock, fails: bool) -> list[Span]:
    said = [
        {"role": "system", "content": "Greet the guest in one line."},
        {"role": "user", "content": f"The guest is {name}."},
    ]
    tokens = [7, 8, 9, 10] if member else [5, 6]
    logprobs = [-0.25 * n for n in range(1, len(tokens) + 1)]
    sampled = (list(range(20, 40)), tokens, logprobs)
    answer = "Good evening to you" if member else "Hi!"
    call = call_of(said, answer, *sampled, **{Key.REQUEST_MODEL.value: "tiny"})
    root = Span.from_attributes(name="greet", attributes={})
    now = clock.now()
    spans = [(root, now - 0.5, now), (call, now - 0.4, now - 0.1)]
    spans += [] if fails else [(reward_span(0.5 - member / 4), now, now)]

    def placed(n: int, span: Span, begin: float, end: float) -> Span:
        ids = {"sequence_id": n, "span_id": f"{number * 10 + n:016x}", "trace_id": f"{number:032x}"}
        parent = f"{number * 10 + 1:016x}" if n > 1 else None
        times = {"start_time": begin, "end_time": end}
        return span.model_copy(update={**ids, "parent_id": parent, **times})

    return [placed(n, *one) for n, one in enumerate(spans, 1)]
