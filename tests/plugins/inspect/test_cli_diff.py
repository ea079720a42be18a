"""``agl diff``: two rollouts of one task, where they part and what each earned."""

import asyncio
import json
from typing import Any

import pytest
from tests.stores import opened

import agl
from agl.types import Failure, Span

TASK = {"question": "2 + 3?"}


def call_of(rollout: Any, answers: list[str], number: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "2 + 3?"}]
    for said in answers[:number]:
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": "are you sure?"},
        ]
    answer = [{"role": "assistant", "content": answers[number]}]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps(answer),
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": [4, 5],
        "agentlightning.response_logprobs": [-0.5, -0.25],
    }


def span(rollout: Any, name: str, number: int, attributes: dict[str, Any]) -> Span:
    return Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        name=name,
        attributes=attributes,
        start_time=100.0 + number,
        end_time=100.5 + number,
    )


async def one(store: Any, answers: list[str], reward: float, task: Any = TASK) -> str:
    rollout = await store.start_rollout(input=task, mode="train")
    spans = [
        span(rollout, "openai.chat.completion", n + 1, call_of(rollout, answers, n))
        for n in range(len(answers))
    ]
    key = "agentlightning.reward.0"
    given = {f"{key}.name": "primary", f"{key}.value": reward}
    spans.append(span(rollout, "agentlightning.annotation", len(answers) + 1, given))
    await store.add_many_spans(spans)
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    return rollout.rollout_id


@pytest.fixture
def ids(tmp_path):
    async def make() -> list[str]:
        async with opened(tmp_path / "store.db") as store:
            return [
                await one(store, ["it is 5", "yes, 5"], 1.0),
                await one(store, ["it is 5", "no, 6"], 0.0),
                await one(store, ["it is 5", "yes, 5"], 1.0),
                await one(store, ["hello"], 0.0, {"question": "who?"}),
            ]

    return asyncio.run(make())


@pytest.fixture(name="run")
def call_diff(tmp_path, request):
    command = request.getfixturevalue("agl")  # the name stands for the package here
    return lambda *given: command("diff", *given, "--path", str(tmp_path / "store.db"))


def test_two_rollouts_are_shown_to_where_they_part(ids, run):
    code, out, _ = run(ids[0][:-2], ids[1])
    assert code == 0
    assert "the first 3 messages are the same; then they part" in out
    assert "A   4 assistant yes, 5" in out
    assert "B   4 assistant no, 6" in out
    assert "* reward          1                           0" in out
    assert "  model calls     2                           2" in out
    assert "A   2 assistant" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_same_conversations_are_said_to_be_the_same(ids, run):
    code, out, _ = run(ids[0], ids[2])
    assert code == 0
    assert "all 4 messages are the same" in out


def test_programs_get_both_sides(ids, run):
    code, out, _ = run(ids[0], ids[1], "--json")
    told = json.loads(out)
    assert code == 0
    assert told["common_messages"] == 3
    assert [side["reward"] for side in told["rollouts"]] == [1.0, 0.0]
    assert told["rollouts"][1]["turns"][-1]["text"] == "no, 6"
    assert told["rollouts"][0]["tokens"] == 4
    # No algorithm ever ran.
    assert [(side["trained"], side["credit"]) for side in told["rollouts"]] == [(None, None)] * 2


def test_one_rollout_twice_is_refused_and_two_tasks_until_it_is_asked_for(ids, run):
    code, _, err = run(ids[0], ids[0])
    assert (code, "give two" in err) == (2, True)
    code, _, err = run(ids[0], ids[3])
    assert code == 2
    assert "are of two tasks" in err
    assert "--any-task" in err
    code, out, _ = run(ids[0], ids[3], "--any-task")
    assert code == 0
    assert "the first 1 messages are the same" in out


def test_two_attempts_of_one_rollout_are_compared_as_they_are_named(tmp_path, run):
    async def fill() -> list[str]:
        store = agl.SqliteLightningStore(tmp_path / "store.db")
        about = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"])
        first = await store.start_rollout(input=TASK, config=about)
        error = Failure(boundary="agent", type="KeyError", message="'fruit'")
        ids = (first.rollout_id, first.attempt.attempt_id)
        await store.update_attempt(*ids, status="failed", error=error)
        second = await store.start_attempt(first.rollout_id)
        await store.update_attempt(first.rollout_id, second.attempt.attempt_id, status="succeeded")
        await store.close()
        return [first.rollout_id, first.attempt.attempt_id, second.attempt.attempt_id]

    rollout_id, first, second = asyncio.run(fill())
    code, out, _ = run(first, second)
    assert code == 0
    assert "A failed: agent: KeyError: 'fruit'" in out
    assert "* attempt         1                           2" in out
    assert run(first, rollout_id)[0] == 0
    code, _, err = run(second, rollout_id)
    assert (code, f"both are rollout '{rollout_id}', attempt 2; give two" in err) == (2, True)
