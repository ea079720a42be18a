"""``agl diff``: two rollouts of one task, where they part and what each earned."""

import json
from typing import Any

import pytest

from .traces import add, call_of, filled, retried, reward_span

TASK = {"question": "2 + 3?"}


async def one(store: Any, answers: list[str], reward: float, task: Any = TASK) -> str:
    """The id of a rollout that is asked again after each answer but the last."""
    spans, messages = [], [{"role": "user", "content": "2 + 3?"}]
    for said in answers:
        spans.append(call_of(list(messages), said, [1, 2, 3], [4, 5], [-0.5, -0.25]))
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": "are you sure?"})
    return (await add(store, [*spans, reward_span(reward)], task=task)).rollout_id


@pytest.fixture
def ids(here):
    async def make(store: Any) -> list[str]:
        return [
            await one(store, ["it is 5", "yes, 5"], 1.0),
            await one(store, ["it is 5", "no, 6"], 0.0),
            await one(store, ["it is 5", "yes, 5"], 1.0),
            await one(store, ["hello"], 0.0, {"question": "who?"}),
        ]

    return filled(make)


def test_two_rollouts_are_shown_to_where_they_part(ids, diff):
    out = diff(ids[0][:-2], ids[1])
    assert "the first 3 messages are the same; then they part" in out
    assert "A   4 assistant yes, 5" in out
    assert "B   4 assistant no, 6" in out
    assert "* reward          1                           0" in out
    assert "  model calls     2                           2" in out
    assert "A   2 assistant" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_same_conversations_are_said_to_be_the_same(ids, diff):
    assert "all 4 messages are the same" in diff(ids[0], ids[2])


def test_programs_get_both_sides(ids, diff):
    told = json.loads(diff(ids[0], ids[1], "--json"))
    assert told["common_messages"] == 3
    assert [side["reward"] for side in told["rollouts"]] == [1.0, 0.0]
    assert told["rollouts"][1]["turns"][-1]["text"] == "no, 6"
    assert told["rollouts"][0]["tokens"] == 4
    # No algorithm ever ran.
    assert [(side["trained"], side["credit"]) for side in told["rollouts"]] == [(None, None)] * 2


def test_one_rollout_twice_is_refused_and_two_tasks_until_it_is_asked_for(ids, diff):
    assert "give two" in diff(ids[0], ids[0], code=2)
    said = diff(ids[0], ids[3], code=2)
    assert "are of two tasks" in said
    assert "--any-task" in said
    assert "the first 1 messages are the same" in diff(ids[0], ids[3], "--any-task")


def test_two_attempts_of_one_rollout_are_compared_as_they_are_named(diff):
    rollout_id, first, second = filled(retried)
    out = diff(first, second)
    assert "A failed: agent: KeyError: 'fruit'" in out
    assert "* attempt         1                           2" in out
    diff(first, rollout_id)
    both = f"both are rollout '{rollout_id}', attempt 2; give two"
    assert both in diff(second, rollout_id, code=2)
