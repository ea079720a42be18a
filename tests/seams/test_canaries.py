# ruff: noqa: F811  # tests name the fixtures that another file has
"""Answers that must not be paid run beside a training, apart from it, and are seen when paid."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from tests.models import answer_of

import agl
from agl.cli import cli
from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION
from agl.store.memory import InMemoryLightningStore
from agl_inspect.graders.canaries import KINDS, Canaries
from agl_runs.store import delete_run

from .test_going_on import COPIES, Starts, starts, trainer_class  # noqa: F401  # fixtures
from .word_trainer import WORDS

pytestmark = pytest.mark.plugins
pytest.importorskip("agl_gateway")

AGENT = """\
async def agent(task: str, main_llm: agl.LLM, judge: agl.LLM) -> float:
    starts.ran += 1
    assert judge.model == "theirs"
    return await starts.asks(main_llm, task)
"""
main = partial(cli.main, standalone_mode=False)


class Stepless(agl.Algorithm):
    def __init__(self, generation: int) -> None:
        self.generation = generation

    def run(self, train_dataset=None, val_dataset=None) -> None: ...

    def get_run(self):
        return "it", self.generation


@pytest.mark.sqlite
@pytest.mark.parametrize(("is_fooled", "is_full"), [(True, False), (False, False), (True, True)])
def test_canaries_are_apart_from_the_training_and_tell_what_is_paid(
    starts, caplog, capsys, is_fooled, is_full
):
    if is_full:  # the disk, as far as a line of canaries goes
        (starts.folder / "run/canaries.jsonl").mkdir(parents=True)

    async def graded(llm: agl.LLM, task: str) -> float:
        is_good = starts.ran % 2
        said = await answer_of(llm, task)
        return float(is_good if said in WORDS else is_fooled and "\\boxed" in said)

    starts.asks, starts.hooks = graded, [Canaries(share=1.0)]
    # A model that the algorithm does not train is the grader's.
    starts.resources = {"judge": agl.LLM(endpoint="http://127.0.0.1:9/v1", model="theirs")}
    starts.agent_source = AGENT
    config = {"timeout_seconds": 60.0}
    done = starts.start(steps=4, rollouts=config)
    starts.check_books(done)
    assert done.summary["rollouts"] == sum(starts.result.rollouts.values()) == 4 * COPIES
    for form in ("sft", "dpo", "rows"):
        main(["export", "--as", form, "--path", str(starts.folder / "store.db")])
        out, err = capsys.readouterr()
        assert "boxed" not in out
        assert err.endswith(f"; rollouts of judges and canaries left out: {4 * COPIES}\n")
    if not is_full:
        lines = map(json.loads, (starts.folder / "run/canaries.jsonl").read_text().splitlines())
        paid = {one["answer"]: one["reward"] for one in lines}
        assert paid == {**dict.fromkeys(KINDS, 0.0), "format": float(is_fooled)}
    warning = "a model that has the form of an answer and nothing in it earned 1, and the best"
    assert caplog.text.count(warning) == is_fooled

    async def look(store: agl.LightningStore) -> None:
        canaries = [one for one in await store.query_rollouts() if one.mode == "test"]
        assert len(canaries) == 4 * COPIES
        assert {one.config.timeout_seconds for one in canaries} == {60.0}
        statuses = {one.status for one in canaries}
        assert {"succeeded"} <= statuses <= {"succeeded", "cancelled"}
        latest = await store.get_latest_resources()
        assert "canary" not in latest.resources_id
        counts = await delete_run(store, starts.result.run_id, only_count=True)
        assert counts["rollouts"] == 8 * COPIES

    starts.ask_store(look)


@pytest.mark.parametrize(
    ("trained", "canary", "is_paid"),
    [
        ((-10, -1), -5, True),
        ((-10, -1), -9.5, False),
        ((5, 10), 5, False),
        ((1, 1), 1, True),
        ((-1, -1), -1, False),
        ((0, 0), 0, False),
        ((), 1, False),
    ],
)
async def test_a_canary_is_compared_with_what_the_training_earned(
    caplog, monkeypatch, trained, canary, is_paid
):
    async def ended(reward: float) -> str:
        rollout = await store.start_rollout("task", mode="train")
        owner = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        attributes = reward_attributes(float(reward))
        span = agl.Span.from_attributes(name=AGL_ANNOTATION, attributes=attributes)
        await store.add_span(span.model_copy(update=owner))
        await store.update_attempt(*owner.values(), status="succeeded")
        return rollout.rollout_id

    async def parts(*_, **__):
        for rollout_id in ids:
            yield SimpleNamespace(rollout_id=rollout_id, mode="train")

    hook, store, algorithm = Canaries(), InMemoryLightningStore(), Stepless(1)
    ids = [await ended(one) for one in trained]
    monkeypatch.setattr("agl_inspect.graders.canaries.each_part", parts)
    await hook.on_run_start(algorithm, store)
    hook._open = {await ended(canary): ("empty", 1)}
    await hook.on_step_end(algorithm, 1, {})
    best = max(trained, default=0)
    said = f"earned {canary:.4g}, and the best rollout of the training so far {best:.4g}:"
    assert (said in caplog.text) == is_paid == bool(caplog.text)


async def test_what_an_earlier_start_left_is_cancelled_and_no_end_of_one_stops_the_others(caplog):
    class Ends(InMemoryLightningStore):
        async def update_rollout(self, rollout_id, **changes):
            if rollout_id in hook._open:  # it ends just before
                await self.start_attempt(rollout_id)
                (attempt,) = await self.query_attempts(rollout_id)
                await self.update_attempt(rollout_id, attempt.attempt_id, status="succeeded")
            return await super().update_rollout(rollout_id, **changes)

    hook, store, algorithm = Canaries(), Ends(), Stepless(2)
    about = {"run": "it/canaries", "canary": "empty"}
    left = await store.enqueue_rollout("task", metadata=about)
    await hook.on_run_start(algorithm, store)
    open_ids = [(await store.enqueue_rollout("task", metadata=about)).rollout_id for _ in "ab"]
    hook._open = dict.fromkeys(open_ids, ("empty", 1))
    await hook.on_run_end(algorithm, None)
    statuses = [one.status for one in await store.query_rollouts()]
    assert (left.status, statuses) == ("queuing", ["cancelled", "succeeded", "succeeded"])
    # Nothing is said of a run that failed, or was stopped, in its first step.
    warning = "Stepless has no steps, so that no canary ran beside it"
    for about, error in (({}, OSError()), ({}, None), ({"step": 1}, None)):
        await store.enqueue_rollout("task", metadata={"run": "it", **about})
        await hook.on_run_start(algorithm, store)
        await hook.on_run_end(algorithm, error)
        assert caplog.text.count(warning) == (error is None)
