"""What the algorithm's process answers verl: rows, their weights, and the account; no verl."""

import asyncio
import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from tests.training_rows import training_row

import agl
from agl.algorithm.base import RunContext
from agl.errors import ConfigError
from agl.plugins.hooks import HookCaller
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import RolloutConfig, Span
from agl_learning.collect.collector import Collector
from agl_learning.reports import run_metrics
from agl_learning.run.folder import Generation, begin_generation, read_generation
from agl_records.types import Credit
from agl_runs.failures import DEFAULT, Failures
from agl_verl.groups import Groups, Policy
from agl_verl.losses import loss_weights
from agl_verl.messages import GroupRequest, Settle, Update
from agl_verl.options import Options
from agl_verl.row_building import Limits, split, to_row, versions
from agl_verl.run import Run, by_our_names
from agl_verl.trainer_mixin import trajectories

TASKS = [{"rewards": [1.0, 0.0]}, {"rewards": [1.0, None]}, {"rewards": [None, None]}]
"""Per copy of the task, the reward of its rollout; None for an agent that fails."""


def call_span(number, prompt, answer, version="3"):
    attributes = {
        Key.PROMPT_TOKEN_IDS.value: prompt,
        Key.RESPONSE_TOKEN_IDS.value: answer,
        Key.RESPONSE_LOGPROBS.value: [-0.5] * len(answer),
        Key.MODEL_VERSION.value: version,
        Key.OPERATION.value: "chat",
    }
    return Span.from_attributes(
        name=MODEL_CALL_SPAN, attributes=attributes, span_id=f"{number:016x}", start_time=number
    )


async def play_runner(store):
    """Claim rollouts for ever: two calls each, the second one goes on from the first."""
    copies = {}
    while True:
        for claimed in await store.dequeue_many_rollouts(limit=8):
            copy = copies[str(claimed.input)] = copies.get(str(claimed.input), -1) + 1
            ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
            reward = claimed.input["rewards"][copy % 2]
            spans = [call_span(1, [1, 2], [3]), call_span(2, [1, 2, 3, 4], [5, 6], "4")]
            for span in spans:
                await store.add_span(span.model_copy(update=ids))
            if reward is not None:
                attributes = {"agentlightning.reward.0.value": reward}
                span = agl.Span.from_attributes(
                    name="agentlightning.annotation", attributes=attributes, start_time=9, **ids
                )
                await store.add_span(span)
            status = "failed" if reward is None else "succeeded"
            await store.update_attempt(*ids.values(), status=status)
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def groups(failures=DEFAULT, timeout=30.0, runner=True, config=None, waits=False, **limits):
    level = limits.pop("level", "trajectory")
    store = agl.InMemoryLightningStore()
    resources = await store.add_resources({"main_llm": agl.LLM(endpoint="http://x", model="m")})
    limits = Limits(**({"prompt": 100, "response": 100} | limits))
    policy = Policy(level, limits, timeout, waits=waits)
    given = agl.TraceToRows(), config or RolloutConfig()
    playing = asyncio.create_task(play_runner(store)) if runner else None
    try:
        yield Groups(
            store=store,
            collector=Collector(store, None, *given, failures=failures, seed=0),
            train=TASKS,
            val=TASKS,
            resources=dict.fromkeys(("train", "val"), resources.resources_id),
            policy=policy,
            generation=Generation("a1", 2),
        )
    finally:
        if playing is not None:
            playing.cancel()


def request(index=0, *, uid="", step=7, copies=2, validate=False):
    uid = uid or f"u{index}"
    return GroupRequest(uid=uid, index=index, copies=copies, validate=validate, step=step)


async def test_a_row_holds_both_calls_and_what_was_said_between_them():
    async with groups() as ours:
        answer = await ours.run(request(0))
    one, other = sorted(answer.rows, key=lambda row: -row.reward)
    assert (one.prompt_ids, one.response_ids) == ([1, 2], [3, 4, 5, 6])
    assert one.mask == [1, 0, 1, 1]
    assert one.logprobs == [-0.5, 0.0, -0.5, -0.5]
    assert one.versions == (3, 4)
    assert {one.session, other.session} == {0, 1}
    assert (one.reward, other.reward) == (1.0, 0.0)
    calls = [(call.start, call.end, call.credit.reward) for call in one.notes.calls]
    assert calls == [(0, 1, 1.0), (2, 4, 1.0)]


async def test_dimensions_are_those_of_the_attempt_that_counts():
    """The first attempt fails with the higher span numbers, the second one succeeds."""
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    async with groups(runner=False, config=config) as ours:
        ours.policy.dimensions = True
        collecting = asyncio.create_task(ours.run(request(copies=1)))
        for values, number, status in (((1.0, 1.0), 9, "failed"), ((0.0, 0.25), 3, "succeeded")):
            claimed = await ours.store.dequeue_rollout(wait_seconds=30)
            ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
            reward = Span.from_attributes(
                name="agentlightning.annotation",
                attributes=agl.emitter.reward_attributes(dict(zip("ab", values, strict=True)), "a"),
                sequence_id=number,
                **ids,
            )
            await ours.store.add_span(call_span(1, [1, 2], [3]).model_copy(update=ids))
            await ours.store.add_span(reward)
            await ours.store.update_attempt(*ids.values(), status=status)
        answer = await collecting
    (row,) = answer.rows
    assert row.notes.rewards == {"a": 0.0, "b": 0.25}


async def test_transitions_are_a_row_per_call():
    async with groups(level="transition") as ours:
        answer = await ours.run(request(0))
    of_one = sorted((row for row in answer.rows if row.session == 0), key=lambda row: row.number)
    found = [(row.number, row.prompt_ids, row.response_ids) for row in of_one]
    assert found == [(0, [1, 2], [3]), (1, [1, 2, 3, 4], [5, 6])]


@pytest.mark.parametrize(("estimator", "more"), [("grpo", ""), ("gae", ", the mean of its tokens")])
async def test_every_call_of_a_step_is_in_one_bin(estimator, more):
    async with groups() as ours:
        if more:
            ours.policy.estimator = estimator
        answer = await ours.run(request(0))
        keys = {row.session: f"u0_{row.session}_0" for row in answer.rows}
        settled = await ours.settle(
            Settle(7, {keys[0]: [0.7, 0.7], keys[1]: [0.0, None]}, {"actor/lr": 1.0})
        )
        parts = await agl.load_parts(ours.store, step=7)
        rollouts = await ours.store.query_rollouts()
    # Verl's step 7 makes version 7; which weights sampled stands with each call.
    assert {(part.run, part.generation, part.version) for part in parts} == {("a1", 2, "7")}
    calls = [one for part in parts for one in part.trained if one.kind == "call"]
    assert [one.model_version for one in calls] == ["3", "4"]
    assert {(r.metadata["run"], r.metadata["generation"]) for r in rollouts} == {("a1", 2)}
    assert {one.advantage.because for one in calls} == {f"{estimator}, as verl has it{more}"}
    assert [one.advantage.is_mean for one in calls] == [bool(more)] * 2
    assert {one.advantage.estimator for one in calls} == {estimator}
    assert settled["agl/calls/trained"] == 2
    assert settled["agl/calls/excluded/zero_advantage"] == 1
    assert settled["agl/calls/excluded/rejected"] == 1
    assert settled["agl/reward/mean"] == 0.5
    assert sum(len(part.trained) for part in parts) == 2 + 2  # calls, and rewards that reached them


async def test_a_rollout_of_a_runner_that_vanished_is_run_by_another():
    config = agl.VERL({}, unresponsive_seconds=1.0).rollout_config
    async with groups(runner=False, config=config) as ours:
        collecting = asyncio.create_task(ours.run(request(0)))
        claimed = await ours.store.dequeue_rollout(wait_seconds=30)
        playing = asyncio.create_task(play_runner(ours.store))
        answer = await collecting
        playing.cancel()
        attempts = await ours.store.query_attempts(claimed.rollout_id)
    assert [attempt.status for attempt in attempts] == ["unresponsive", "succeeded"]
    assert sorted(row.reward for row in answer.rows) == [0.0, 1.0]


async def test_siblings_of_a_failed_rollout_are_trained_or_dropped_and_never_zero():
    async with groups() as ours:
        kept, lost = [await ours.run(request(index)) for index in (1, 2)]
    assert [row.reward for row in kept.rows] == [1.0]
    assert lost.rows == []
    assert "2 rollouts, 0 succeeded" in lost.dropped
    async with groups(failures=Failures(agent="drop_group")) as ours:
        dropped = await ours.run(request(1))
        assert dropped.rows == []
        assert dropped.dropped.startswith("2 rollouts, 1 succeeded")
        settled = await ours.settle(Settle(7, {}))
        ledger = await agl.load_ledger(ours.store)
        ledger.check()
    assert settled["agl/groups/dropped"] == settled["agl/failures/tasks_lost"] + 1 == 1
    assert settled["agl/failures/excluded"] == 2
    assert ledger.reasons() == {"failed_attempt": 2, "unused_group": 2}


async def test_what_verl_never_trained_is_accounted_for_at_the_end():
    async with groups() as ours:
        await ours.run(request(0))
        await ours.end()
        ledger = await agl.load_ledger(ours.store)
    ledger.check()
    assert ledger.reasons() == {"unused_group": 4}


async def test_validation_trains_nothing_and_counts_failures_apart():
    async with groups() as ours:
        answer = await ours.run(request(1, validate=True))
        metrics = ours.validated()
        ledger = await agl.load_ledger(ours.store)
    assert [row.reward for row in answer.rows] == [1.0]
    assert metrics == {
        "val-agl/reward/mean": 1.0,
        "val-agl/rollouts/succeeded": 1.0,
        "val-agl/rollouts/failed": 1.0,
    }
    assert ledger.reasons() == {"not_trained_mode": 2, "failed_attempt": 2}


async def test_what_a_dead_start_finished_of_the_step_after_a_checkpoint_is_used():
    async with groups(waits=True) as ours:
        ours.generation = Generation("a1", 1)
        await ours.run(request(uid="died", step=3))
        second = dataclasses.replace(ours, generation=Generation("a1", 2), since=(2, 1))
        used = await second.run(request(uid="again", step=3))
        third = dataclasses.replace(ours, generation=Generation("a1", 3), since=(3, 1))
        anew = await third.run(request(uid="once more", step=3))
        one, two, *rest = await ours.store.query_rollouts()
    assert {row.rollout_id for row in used.rows} == {one.rollout_id for one in (one, two)}
    assert {row.rollout_id for row in anew.rows} <= {one.rollout_id for one in rest}
    assert len(rest) == 2
    seeds = [[one.metadata["seed"] for one in some] for some in ((one, two), rest)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


async def test_a_task_that_verl_asks_for_twice_in_a_step_is_run_twice_with_other_seeds():
    async with groups(waits=True) as ours:
        await asyncio.gather(*(ours.run(request(uid=uid, step=3)) for uid in ("one", "two")))
        rollouts = await ours.store.query_rollouts()
    assert len({one.metadata["seed"] for one in rollouts}) == 4


@pytest.mark.parametrize("waits", [True, False])
async def test_rollouts_of_weights_that_a_later_start_has_not_are_not_used(waits):
    async with groups(waits=waits) as ours:
        ours.generation = Generation("a1", 1)
        step = 4 if waits else 3
        await ours.run(request(uid="died", step=step))
        second = dataclasses.replace(ours, generation=Generation("a1", 2), since=(2, 1))
        await second.run(request(uid="again", step=step))
        assert len(await ours.store.query_rollouts()) == 4


async def test_a_group_that_nobody_runs_ends_with_what_is_missing(caplog):
    async with groups(timeout=0.2, runner=False) as ours:
        answer = await ours.run(request(0))
        statuses = [rollout.status for rollout in await ours.store.query_rollouts()]
    assert answer.rows == []
    assert statuses == ["cancelled", "cancelled"]
    assert "has not ended in 0.2 seconds" in caplog.text
    assert "0 runners" in caplog.text


async def test_a_group_whose_model_went_away_is_not_run_again_after_its_limit():
    async with groups(timeout=2.0, runner=False) as ours:
        running = asyncio.create_task(ours.run(request(0)))
        claimed = await ours.store.dequeue_rollout(wait_seconds=30)
        gone = agl.types.Failure(boundary="model", type="GatewayError", message="gone")
        await ours.store.update_attempt(claimed.rollout_id, "latest", status="failed", error=gone)
        answer = await asyncio.wait_for(running, 30)
        await asyncio.wait_for(ours.end(), 30)
        rollouts = await ours.store.query_rollouts()
    assert "2 rollouts, 0 succeeded" in answer.dropped
    assert {one.status for one in rollouts} == {"cancelled", "failed"}


async def test_calls_beyond_the_limits_are_excluded_by_reason():
    async with groups(response=2) as ours:
        answer = await ours.run(request(0))
        await ours.end()
        ledger = await agl.load_ledger(ours.store)
    assert [row.response_ids for row in answer.rows] == [[3], [3]]
    assert ledger.reasons() == {"over_length": 2, "unused_group": 2}
    async with groups(prompt=1) as ours:
        answer = await ours.run(request(0))
        ledger = await agl.load_ledger(ours.store)
    assert answer.rows == []
    assert ledger.reasons() == {"over_length": 4}
    detail = ledger.exclusions[0].detail
    assert detail == "its prompt has 2 tokens, the limit is 1"


def row(call_ranges, model_versions=("1", "1")):
    tokens = list(range(call_ranges[-1][1] + 1))
    credits = [Credit(reward=float(number)) for number in range(len(call_ranges))]
    call_ids = [str(number) for number in range(len(call_ranges))]
    given = {"credits": credits, "call_ids": call_ids, "model_versions": list(model_versions)}
    return training_row(tokens, call_ranges, **given)


def test_splitting_gives_each_call_its_own_reward_and_what_came_before_as_prompt():
    parts = list(split(row([(2, 3), (5, 7)]), "transition"))
    made = [to_row(part, 0, number, 1.0, {}) for number, part in enumerate(parts)]
    assert [one.prompt_ids for one in made] == [[0, 1], [0, 1, 2, 3, 4]]
    assert [one.mask for one in made] == [[1], [1, 1]]
    rewards = [one.notes.calls[0].credit.reward for one in made]
    assert rewards == [0.0, 1.0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(("3",), (3, 3)), (("3", "5"), (3, 5)), (("3-4",), (3, 4)), ((None,), (0, 0)), ((), (0, 0))],
)
def test_versions_are_the_oldest_and_newest_weights(given, expected):
    assert versions(row([(2, 3)], given)) == expected


def test_what_every_trainer_measures_has_one_name():
    of_verl = {"actor/grad_norm": 1.0, "actor/lr": 2.0, "agl/reward/mean": 3.0}
    assert by_our_names({**of_verl, "val-agl/reward/mean": 4.0, "val-core/x": 5.0}) == {
        "grad_norm": 1.0,
        "actor/lr": 2.0,
        "reward/mean": 3.0,
        "val/reward/mean": 4.0,
        "val-core/x": 5.0,
    }


async def test_hooks_see_verls_steps_and_each_checkpoint_once(tmp_path):
    told = []

    class Watch(agl.Hook):
        def on_update_start(self, step, rows):
            told.append(("update", step, *[(one.row.call_ids[:], one.advantages) for one in rows]))
            rows[0].row.token_ids.clear()

        def on_step_end(self, step, metrics):
            told.append(("step", step, metrics["generation"], metrics["actor/lr"]))

        def on_checkpoint_saved(self, step, path):
            told.append(("checkpoint", step, path))

    algorithm = agl.Baseline()
    algorithm.set_context(RunContext(hooks=HookCaller([Watch()])))
    config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(tmp_path)))
    run = Run(algorithm, Options({}), None, config, tmp_path / "run", TASKS, None)
    run._generation = Generation("a1", 2)
    async with groups() as run._groups:
        rows = (await run._groups.run(request(0))).rows
        values = {f"u0_{one.session}_0": [0.7, 0.0] for one in rows[:1]} | {"other_0_0": [0.7]}
        await run.answer(Update(7, values))
        held = [row for one in run._groups._held.values() for row in one.rows.values()]
        assert all(row.token_ids for row in held)  # whatever the hook does to what it sees
        for step in (7, 8, 9):
            if step == 8:
                (tmp_path / "latest_checkpointed_iteration.txt").write_text("8")
            await run.answer(Settle(step, {}, {"actor/lr": 1.0, "actor/grad_norm": 0.5}))
    lines = run_metrics.RunMetrics.read(tmp_path / "run").lines
    assert [line["grad_norm"] for line in lines] == [0.5] * 3
    assert [line["calls/total"] for line in lines] == [0] * 3
    assert run._rewards()["rewards"] == [None] * 3
    _, _, (call_ids, (advantage,)) = told.pop(0)
    assert (len(call_ids), advantage.value) == (1, 0.7)
    seven, eight, nine = (("step", step, 2, 1.0) for step in (7, 8, 9))
    assert told == [seven, eight, ("checkpoint", 8, tmp_path / "global_step_8"), nine]


@pytest.mark.parametrize("other", ["grpo", None])
async def test_the_folder_of_another_run_is_refused_and_left_as_it_is(tmp_path, other):
    store, algorithm = agl.InMemoryLightningStore(), agl.VERL({})
    algorithm.set_context(RunContext(store=store, gateway=agl.LLMProxy(), folder=tmp_path))
    begun = other and begin_generation(tmp_path, algorithm=other)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "generation": 1}\n')
    left = await store.enqueue_rollout("task", metadata=begun.metadata if begun else None)
    said = "holds a run of 'grpo', and this is 'verl'" if begun else "and no run.json that says"
    for start in (algorithm.clear_leftovers(store), algorithm.run(TASKS)):
        with pytest.raises(ConfigError, match=said):
            await start
    assert read_generation(tmp_path) == begun
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "generation": 1}\n'
    assert (await store.get_rollout_by_id(left.rollout_id)).status == "queuing"


async def test_a_run_is_verls_and_the_next_start_in_the_runs_folder_cancels_what_it_left(tmp_path):
    store, algorithm = agl.InMemoryLightningStore(), agl.VERL({})
    algorithm.set_context(RunContext(store=store, folder=tmp_path))
    trainer = SimpleNamespace(resume_mode="auto", default_local_dir=str(tmp_path / "checkpoints"))
    config = SimpleNamespace(trainer=trainer)
    run = Run(algorithm, Options({}), None, config, tmp_path, TASKS, None)
    generation = await run._begin(0)
    assert (generation.number, generation.algorithm) == (1, "verl")
    left = await store.enqueue_rollout("task", metadata=generation.metadata)
    await algorithm.clear_leftovers(store)
    assert (await store.get_rollout_by_id(left.rollout_id)).status == "cancelled"


def test_weights_of_a_loss_stay_in_single_precision():
    mask = torch.arange(7) < torch.tensor([3, 5, 7])[:, None]
    keys = [f"u0_{number}_0" for number in range(3)]
    rollouts = trajectories(keys, [False] * 3, mask.float())
    for mean in ("rollout", "token"):
        weights = loss_weights(rollouts, mean)
        assert weights.dtype == torch.float32
        assert weights.sum().item() == pytest.approx(3.0)
