"""``agl show``: what people read of a rollout."""

import asyncio
import json
from typing import Any

import agl
from agl.types import Span
from agl.utils.text import printable
from agl_sqlite import SqliteLightningStore

from .test_cli_explain import step
from .traces import add, call_of, filled, reward_span


def said(number: int, messages: list[Any], answer: dict[str, Any]) -> Span:
    return call_of(messages, answer, [10] * len(messages), [1, 2], [-0.1, -0.2], number=number)


LOOK = {"name": "look", "arguments": '{"at": "attic"}'}
ASKS = {"role": "user", "content": "Where is it?\nSay a room."}
CALLS = {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": LOOK}]}
SEES = {"role": "tool", "tool_call_id": "a", "content": "a \x1b[2Jcat \u202etac"}
CONVERSATION = [
    said(1, [ASKS], CALLS),
    said(3, [ASKS, {"role": "assistant", **CALLS}, SEES], {"content": "x" * 3_000}),
    reward_span(1.0, 4),
]


def test_conversation_is_told_once_with_what_became_of_each_answer(show):
    (rollout_id, *_) = filled(
        lambda store: step(store, "final", CONVERSATION, [reward_span(0.0, 5)])
    )
    code, text = show(rollout_id)
    assert code == 0
    lines = text.splitlines()
    assert lines[2] == "task     task"
    assert lines[3] == "reward   1 (primary)"
    assert lines[4].startswith("learned  step 1 of toy: ")
    assert text.count("Where is it?") == 1
    assert "    user      Where is it?\n              Say a room.\n" in text
    assert '    assistant calls look({"at": "attic"})\n' in text
    assert "    (2 messages as before)\n    tool      a \\x1b[2Jcat \\u202etac\n" in text
    assert f"    assistant {'x' * 2_000}… (1000 characters more: --full)\n" in text
    assert f"trained: reward 1. Why: agl explain {rollout_id}" in text.replace(", advantage +0", "")
    assert f"    assistant {'x' * 3_000}\n" in show(rollout_id, "--full")[1]
    assert "    sampled   1:-0.1 2:-0.2\n" in show(rollout_id, "--tokens")[1]
    told = json.loads(show(rollout_id, "--json")[1])
    assert [call["messages"][0] for call in told["calls"]] == [ASKS, ASKS]
    assert {call["fate"]["reward"] for call in told["calls"]} == {1.0}
    assert told["rollout"]["input"] == "task"


def breaks(task: Any) -> float:
    raise KeyError(f"no {task} \x1b[31m")


def test_error_of_an_agent_has_its_place_and_traceback(show):
    trainer = agl.Trainer(store=SqliteLightningStore("s.db"), tracer="otel", strategy="shm")
    trainer.dev(agl.rollout(breaks), ["fruit"])
    asyncio.run(trainer.store.close())

    async def newest(store: Any) -> str:
        return (await store.query_rollouts())[-1].rollout_id

    rollout_id = filled(newest)
    code, text = show(rollout_id.removeprefix("ro-")[:8])
    assert code == 0
    line = breaks.__code__.co_firstlineno + 1
    assert f"failed in the agent, {__file__}:{line}\n" in text
    assert "    error     KeyError: 'no fruit \\x1b[31m'\n" in text.replace("\\\\x1b", "\\x1b")
    assert '    raise KeyError(f"no {task}' in text
    assert "\x1b" not in text


def test_what_is_not_there_is_said(show):
    async def fill(store: Any) -> list[str]:
        ended = [(await add(store, CONVERSATION)).rollout_id for _ in range(2)]
        return [*ended, (await store.enqueue_rollout("later")).rollout_id]

    one, _, waiting = filled(fill)
    unknown = "agl: the store has no rollout, attempt, call, span, task or run "
    assert show("nothing") == (2, f"{unknown}'nothing'. See: agl rollouts\n")
    code, text = show("ro-")
    assert (code, "'ro-' is the beginning of several: rollout ro-" in text) == (2, True)
    # What it has in its midst is no beginning, however many there are of those.
    assert show(one[5:])[1].startswith(f"{unknown}{one[5:]!r}")
    code, text = show(one, "--attempt", "3")
    assert (code, text) == (2, f"agl: rollout {one!r} has no attempt 3; it has 1\n")
    assert "attempt  none yet\ntask     later\nreward   none was given" in show(waiting)[1]
    assert "no algorithm has accounted for it" in show(one)[1]


def test_which_of_several_rewards_counts_is_said(show):
    given = [reward_span(value, n) for n, value in enumerate((0.2, 0.9), 1)]
    rollout_id = filled(lambda store: add(store, given)).rollout_id
    assert "\nreward   0.9 counts, of 0.2 (primary), 0.9 (primary)\n" in f"{show(rollout_id)[1]}\n"
    given[1] = given[1].model_copy(update={"attributes": {"agentlightning.reward.0.value": 1e308}})
    given.insert(0, reward_span(0.1, 9).model_copy(update={"sequence_id": 0}))
    rollout_id = filled(lambda store: add(store, given)).rollout_id
    text = show(rollout_id)[1]
    assert "\nreward   none counts, of " in text
    assert "; 1 refused: reward 'primary' is '1e+308'" in text


def test_refused_rewards_are_said_to_be(show):
    refused = [
        reward_span(0.0, n).model_copy(update={"attributes": given})
        for n, given in enumerate(
            [{"agentlightning.reward.0.value": value} for value in ("high", 1e308)], 1
        )
    ]
    rollout_id = filled(lambda store: add(store, refused)).rollout_id
    why = "2 refused: reward 'primary' is '1e+308' (float); expected a number from -1e+12 to 1e+12"
    assert f"\nreward   {why}\n" in f"{show(rollout_id)[1]}\n"
    told = json.loads(show(rollout_id, "--json")[1])
    expected = ["reward 'primary' is 'high", "reward 'primary' is '1e+3"]
    assert [one["problem"][:25] for one in told["rewards_refused"]] == expected


def test_terminals_get_nothing_to_obey():
    odd = "a\tb\nc \x07\x9b\u2066\u200f é 日"
    assert printable(odd) == "a\tb\nc \\x07\\x9b\\u2066\\u200f é 日"


def test_long_trace_is_cut_and_says_where_the_rest_is(show):
    calls = [said(n, [ASKS], {"content": f"answer {n}"}) for n in range(1, 151)]
    work = [
        Span.from_attributes(name="work", attributes={}, span_id=f"{n:016x}")
        for n in range(151, 2_200)
    ]
    rollout_id = filled(lambda store: add(store, [*calls, *work])).rollout_id
    text = show(rollout_id)[1]
    assert "answer 100\n" in text
    assert "answer 101\n" not in text
    assert f"\n50 more calls: --full shows them, agl show {rollout_id}/SPAN one\n" in text
    assert "of 2199 spans only the calls and rewards were read: --full reads all" in text
    assert "answer 150\n" in show(rollout_id, "--full")[1]
