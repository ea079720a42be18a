"""The reward of a rollout is the same from every kind of store, and counts where it succeeded."""

from typing import Any

import pytest
from tests.stores import opened

import agl
from agl.emitter import find_final_reward, reward_attributes
from agl.semconv import AGL_ANNOTATION, AGL_REWARD, LightningSpanAttributes as Key
from agl_records.final_rewards import FinalReward, final_reward
from agl_runs.result import result_of
from agl_views.runs.prompt_runs import PromptRuns

pytestmark = pytest.mark.plugins

Given = list[tuple[str, dict[str, Any]]]
OURS = AGL_ANNOTATION
OTHER: tuple[str, dict[str, Any]] = ("step of a tool", {"tool": "search"})


def ours(value: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return OURS, {**reward_attributes(0.0), f"{Key.REWARD}.0.value": value, **more}


CASES: dict[str, tuple[Given, float | None]] = {
    "one of ours": ([OTHER, ours(0.2)], 0.2),
    "under another name": ([OTHER, ("judge", reward_attributes(0.9))], 0.9),
    "a later one under another name": ([ours(0.2), ("judge", reward_attributes(0.9))], 0.9),
    "an earlier one under another name": ([("judge", reward_attributes(0.9)), ours(0.2)], 0.2),
    "far behind it": ([ours(0.2), *[OTHER] * 20, ("judge", reward_attributes(0.9))], 0.9),
    "far before the end": ([ours(0.2), *[OTHER] * 300], 0.2),
    "of another tool": (
        [("op", {"agentops.task.output": '{"type": "reward", "value": 0.4}'})],
        0.4,
    ),
    "an older name": ([ours(0.1), (AGL_REWARD, reward_attributes(0.3))], 0.3),
    "refused at last": ([ours(0.2), ours(1e300)], None),
    "refused under another name": ([ours(0.2), *[OTHER] * 9, ("judge", ours("high")[1])], None),
    "graded": ([ours(0.1, **{Key.GRADED: True}), ours(1.0)], 0.1),
    "graded before much": (
        [ours(0.1, **{Key.GRADED: True}), *[OTHER] * 20, ("by agent", ours(1.0)[1])],
        0.1,
    ),
    "a note behind it": ([ours(0.2), (OURS, {"reward of whom": "none"})], 0.2),
    "none": ([OTHER] * 12, None),
    "nothing": ([], None),
}


async def fill(
    store: Any, given: Given, status: str = "succeeded", late: float | None = None
) -> str:
    started = await store.start_rollout("a task")
    ids = (started.rollout_id, started.attempt.attempt_id)

    def span(number: int, name: str, attributes: dict[str, Any]) -> agl.Span:
        made = agl.Span.from_attributes(name=name, attributes=attributes, span_id=f"{number:016x}")
        is_graded = Key.GRADED in attributes
        writer = "runner" if is_graded else "agent" if name == "by agent" else None
        about = {"rollout_id": ids[0], "attempt_id": ids[1], "writer": writer}
        return made.model_copy(update=about)

    await store.add_many_spans([span(n, *one) for n, one in enumerate(given, 1)])
    await store.update_attempt(*ids, status=status)
    if late is not None:
        await store.add_many_spans([span(9999, *ours(late))])
    return ids[0]


@pytest.fixture
async def store(tmp_path):
    async with opened(tmp_path / "store.db") as store:
        yield store


@pytest.mark.parametrize("case", CASES)
async def test_the_final_reward_of_all_kinds_of_store_is_one(store, case):
    given, expected = CASES[case]
    for late in (None, 1.0):
        rollout_id = await fill(store, given, late=late)
        assert find_final_reward(await store.query_spans(rollout_id)) == expected
        rollout = await store.get_rollout_by_id(rollout_id)
        assert final_reward(rollout) == FinalReward(expected)
        assert rollout.reward == expected


async def test_the_reward_is_in_the_result_of_a_run_and_in_its_prompt_run(store):
    rollout_id = await fill(store, [ours(0.4)])
    about = {"run": "r", "kind": "evaluation", "split": "search", "position": 0, "task": 0}
    prompts = {"prompts": {**about, "algorithm": "apo", "candidate": "seed"}}
    await store.update_rollout(rollout_id, metadata=prompts)
    assert (await result_of(store, "", None)).rewards == {rollout_id: 0.4}
    found = PromptRuns()
    found.take(await store.query_rollouts())
    (run,) = found.runs.values()
    assert run.candidates["seed"].evaluations[rollout_id].reward == 0.4


@pytest.mark.parametrize("status", ["failed", "timeout"])
async def test_the_reward_of_what_did_not_succeed_was_given_on_the_way(store, status):
    rollout_id = await fill(store, [ours(1.692)], status=status)
    queued = await store.enqueue_rollout("waits")
    rollouts = await store.query_rollouts()
    assert [one.rollout_id for one in rollouts] == [rollout_id, queued.rollout_id]
    found = list(map(final_reward, rollouts))
    assert found == [FinalReward(None, 1.692), FinalReward()]
    assert [str(one) for one in found] == ["1.692 on the way", ""]
    assert FinalReward().text("none") == "none"
