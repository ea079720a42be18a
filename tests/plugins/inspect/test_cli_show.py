"""``agl show``: what people read of a rollout, attempt, call, span, task or run; of nothing."""

import asyncio
import json
import re
from typing import Any

import pytest
from tests.stores import opened

import agl
from agl.errors import ConfigError
from agl.types import Span
from agl.utils.text import printable
from agl_inspect.commands.show import LEARNED
from agl_inspect.report.text import summary_text
from agl_inspect.show import id_lookup, run as run_subject
from agl_inspect.show.id_lookup import Reading, Subject, find, reading_of, task_id
from agl_inspect.show.task import show_task, task_lines
from agl_runs.records import RunStart
from agl_runs.store import begin_run
from agl_sqlite import SqliteLightningStore
from agl_sqlite.ids import id_begins

from .test_cli_explain import step
from .traces import account, add, call_of, filled, ids_of, retried, reward_span


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


def test_messages_of_the_agent_are_told(show):
    about = {"agentlightning.message.body": "sent to \x1b[2J" + "y" * 3_000}
    message = Span.from_attributes(name="agentlightning.message", attributes=about)
    (rollout_id,) = filled(lambda store: step(store, "final", [message, reward_span(1.0, 2)]))
    assert f"    message   sent to \\x1b[2J{'y' * 1_985}… (" in show(rollout_id)
    assert "y" * 3_000 in show(rollout_id, "--full")


def test_an_answer_that_came_after_its_rollout_was_cancelled_is_told_as_that(show, explain):
    """A run that was stopped cancels rollouts whose agents go on to their end."""

    async def cancelled(store: Any) -> str:
        begun = await store.start_rollout("task", mode="train")
        await store.update_rollout(begun.rollout_id, status="cancelled")
        late = [call_of("q", "said at last", [1], [2], number=1), reward_span(0.5, 2)]
        about = {**ids_of(begun), "start_time": 1.0}
        await store.add_many_spans([one.model_copy(update=about) for one in late])
        await store.update_attempt(**ids_of(begun), status="succeeded")
        return begun.rollout_id

    rollout_id = filled(cancelled)
    text = show(rollout_id)
    why = "it came after its attempt or its rollout had ended"
    for part in (f"1 refused: 0.5: {why}", "said at last", f"accounted for it: {why}", " late\n"):
        assert part in text
    assert "none was given" not in text
    text = explain(rollout_id)
    assert "no_calls" not in text
    assert f"late: {why}" in text or f"late ({why})" in text
    assert f"1 refused: 0.5: {why}" in text


def test_a_call_that_came_after_its_step_was_counted_is_told_as_that(show, explain):
    async def counted(store: Any) -> str:
        ended = await add(store, [said(1, [ASKS], CALLS), reward_span(0.5, 2)])
        await account(store, [[ended]])
        late = call_of("q", "said at last", [1], [2], number=7)
        unreadable = reward_span(0.5, 8).changed(
            attributes={"agentlightning.reward.0.value": "much"}
        )
        await store.add_many_spans(
            [one.model_copy(update=ids_of(ended)) for one in (late, unreadable)]
        )
        return ended.rollout_id

    rollout_id = filled(counted)
    for text in (show(rollout_id), explain(rollout_id)):
        assert "and after its step was counted" in text
        assert "1 refused: " in text


def test_full_cuts_neither_the_task_nor_a_name(show):
    async def begin(store: Any) -> str:
        begun = await store.start_rollout("z" * 3_000)
        ids = {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt.attempt_id}
        times = {"start_time": 1.0, "end_time": 2.0}
        await store.add_span(Span.from_attributes(name="n" * 99, attributes={}, **ids, **times))
        return begun.rollout_id

    rollout_id = filled(begin)
    assert show(rollout_id).count("more: --full") == 2
    text = show(rollout_id, "--full")
    assert ("z" * 3_000 in text, "n" * 99 in text, "--full" in text) == (True, True, False)


def test_conversation_is_told_once_with_what_became_of_each_answer(show):
    traces = (CONVERSATION, [reward_span(0.0, 5)])
    (rollout_id, *_) = filled(lambda store: step(store, "final", *traces))
    text = show(rollout_id)
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
    assert f"    assistant {'x' * 3_000}\n" in show(rollout_id, "--full")
    assert "    sampled   1:-0.1 2:-0.2\n" in show(rollout_id, "--tokens")
    told = json.loads(show(rollout_id, "--json"))
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

    text = show(filled(newest).removeprefix("ro-")[:8])
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
    assert show("nothing", code=2) == f"{unknown}'nothing'. See: agl rollouts\n"
    assert "'ro-' is the beginning of several: rollout ro-" in show("ro-", code=2)
    # What it has in its midst is no beginning, however many there are of those.
    assert show(one[5:], code=2).startswith(f"{unknown}{one[5:]!r}")
    no_third = f"agl: rollout {one!r} has no attempt 3; it has 1\n"
    assert show(one, "--attempt", "3", code=2) == no_third
    assert "attempt  none yet\ntask     later\nreward   none was given" in show(waiting)
    assert "no algorithm has accounted for it" in show(one)


def odd_reward(value: Any, number: int) -> Span:
    attributes = {"agentlightning.reward.0.value": value}
    return reward_span(0.0, number).model_copy(update={"attributes": attributes})


def test_which_of_several_rewards_counts_is_said(show):
    given = [reward_span(value, n) for n, value in enumerate((0.2, 0.9), 1)]
    rollout_id = filled(lambda store: add(store, given)).rollout_id
    assert "\nreward   0.9 counts, of 0.2 (primary), 0.9 (primary)\n" in f"{show(rollout_id)}\n"
    given[1] = odd_reward(1e308, 2)
    given.insert(0, reward_span(0.1, 9).model_copy(update={"sequence_id": 0}))
    rollout_id = filled(lambda store: add(store, given)).rollout_id
    text = show(rollout_id)
    assert "\nreward   none counts, of " in text
    assert "; 1 refused: reward 'primary' is '1e+308'" in text


def test_refused_rewards_are_said_to_be(show):
    refused = [odd_reward("high", 1), odd_reward(1e308, 2)]
    rollout_id = filled(lambda store: add(store, refused)).rollout_id
    why = "2 refused: reward 'primary' is '1e+308' (float); expected a number from -1e+12 to 1e+12"
    assert f"\nreward   {why}\n" in f"{show(rollout_id)}\n"
    told = json.loads(show(rollout_id, "--json"))
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
    text = show(rollout_id)
    assert "answer 100\n" in text
    assert "answer 101\n" not in text
    assert f"\n50 more calls: --full shows them, agl show {rollout_id}/SPAN one\n" in text
    assert "of 2199 spans only the calls and rewards were read: --full reads all" in text
    assert "answer 150\n" in show(rollout_id, "--full")


WHERE = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"name": "look", "description": "See what is there.", "parameters": WHERE}
TOOLS = json.dumps([{"type": "function", "function": TOOL}])
ASKED = {"role": "user", "content": "Which room?"}


def answered(number: int, text: str) -> Span:
    span = said(number, [ASKED], {"content": text})
    more = {"gen_ai.tool.definitions": TOOLS, "gen_ai.response.id": f"chatcmpl-{text}"}
    return span.model_copy(update={"attributes": {**span.attributes, **more}})


GOOD = [answered(1, "attic"), reward_span(1.0, 2)]
BAD = [answered(3, "cellar \x1b[2J"), reward_span(0.0, 4)]


def test_call_is_found_by_span_and_by_response_and_shown_with_tools_tokens_and_credit(show):
    one, other = filled(lambda store: step(store, "final", GOOD, BAD))
    text = show(f"{1:016x}")
    assert show("chatcmpl-att") == text
    assert text.startswith(f"span     {1:016x}, ")
    assert f"\nof       {one}, attempt at-" in text
    assert "\nanswer   chatcmpl-attic\nlearned  step 1 of toy\n" in text
    assert "    credit   1 by rule 'final': " in text
    assert "    advantage +0.7071: " in text
    assert "    tool      look(at) See what is there.\n" in text
    assert "    user      Which room?\n    assistant attic\n" in text
    tokens = show(f"{1:016x}", "--tokens")
    assert "                  0       1    -0.1000  1\n                  1       2" in tokens
    assert "cellar \\x1b[2J" in show("chatcmpl-cellar")
    told = json.loads(show(f"{other}/{3:016x}", "--json"))
    assert (told["kind"], told["calls"][0]["fate"]["reward"]) == ("span", 0.0)
    assert told["calls"][0]["mask"] == [1, 1]
    # A span that is no call is shown with its attributes.
    assert "    agentlightning.reward.0.value: 1.0\n" in show(f"{2:016x}")


def test_attempt_is_shown_as_its_own(show):
    _, first, second = filled(retried)
    assert f"attempt  1 of 2, {first}: failed" in show(first)
    assert "failed in the agent" in show(first.removeprefix("at-"))
    assert f"attempt  2 of 2, {second}: succeeded" in show(second[:-1])


def test_task_is_shown_with_all_its_rollouts_and_where_they_part(show):
    one, other = filled(lambda store: step(store, "final", GOOD, BAD))
    text = show(task_id("task"))
    lines = text.splitlines()
    assert lines[0] == f"task     {task_id('task')}: task"
    assert lines[1] == "rewards  2 that count: mean 0.5, from 0 to 1, standard deviation 0.7071"
    assert "parting  1 messages are the same in all 2 conversations; then:\n" in text
    assert f"  {one}; reward 1\n    assistant attic\n" in text
    assert f"  {other}; reward 0\n    assistant cellar \\x1b[2J\n" in text
    told = json.loads(show(task_id("task")[:9], "--json"))
    assert [line["reward"] for line in told["rollouts"]] == [1.0, 0.0]
    assert (told["rewards"]["mean"], told["common_messages"]) == (0.5, 1)


def test_run_is_shown_by_a_beginning_and_refuses_options_of_rollouts(show):
    start = RunStart(run_id="grpo-20261122", algorithm="grpo")
    filled(lambda store: begin_run(store, start))
    assert show("grpo-2026").startswith("run      grpo-20261122: grpo, ")
    refused = "agl: --attempt, --tokens does not go with run grpo-20261122\n"
    assert show("grpo-2026", "--tokens", "--attempt", "3", code=2) == refused


def test_rewards_of_what_did_not_succeed_are_in_no_mean(show):
    async def fill(store: SqliteLightningStore) -> list[str]:
        await begin_run(store, RunStart(run_id="grpo-1", algorithm="grpo"))
        ids: list[str] = []
        about = {"task": "x", "metadata": {"run": "grpo-1", "step": 1}}
        ends = {0.25: "succeeded", 1.692: "failed", 1.5: "", 0.75: "succeeded"}
        for value, status in ends.items():
            spans = [answered(len(ids) + 50, f"say {value}"), reward_span(value)]
            if status:
                rollout = await add(store, spans, status, **about)
            else:
                rollout = await store.start_rollout("x", mode="train", metadata=about["metadata"])
                of = ids_of(rollout)
                await store.add_many_spans([span.model_copy(update=of) for span in spans])
                await store.update_rollout(rollout.rollout_id, status="cancelled")
            ids.append(rollout.rollout_id)
        return ids

    ids = filled(fill)
    lines = show("grpo-1").splitlines()
    heads = next(line.split() for line in lines if line.startswith("step "))
    assert heads[2:8] == ["rollouts", "failed", "cancelled", "reward", "lowest", "highest"]
    row = next(line.split() for line in lines if line.startswith("1 "))
    assert row[2:8] == ["4", "1", "1", "0.5", "0.25", "0.75"]
    (step_,) = json.loads(show("grpo-1", "--json"))["steps"]
    assert (step_["rewards"], step_["failed"], step_["cancelled"]) == ([0.25, 0.75], 1, 1)

    text = show(task_id("x"))
    assert "rewards  2 that count: mean 0.5, from 0.25 to 0.75, standard deviation 0.3536" in text
    assert "1.692 on the way" in next(line for line in text.splitlines() if ids[1] in line)
    assert f"  {ids[2]}; reward 1.5 on the way" in text
    said = "reward   1.692 (primary) on the way: it counts only where the attempt"
    assert said in show(ids[1])


@pytest.mark.parametrize("is_file", [True, False])
async def test_of_a_long_run_whole_steps_and_learning_are_shown(tmp_path, monkeypatch, is_file):
    monkeypatch.setattr(run_subject, "MOST", 10)
    store = SqliteLightningStore(tmp_path / "s.db") if is_file else agl.InMemoryLightningStore()
    lines = [{"step": n, "reward/mean": n / 10} for n in range(1, 6)]
    lines.append({"step": 0, "val/reward/mean": 0.125})
    lines.append({"step": 5, "val/reward/mean": 0.75})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    await begin_run(store, RunStart(run_id="mine", algorithm="grpo", folder=str(tmp_path)))
    for n in range(1, 6):
        for _ in range(4):
            await store.start_rollout("x", mode="train", metadata={"run": "mine", "step": n})
    shown = await run_subject.show_run(store, "mine")
    learned = summary_text(shown.facts, 80, names=LEARNED)
    text = "\n".join(run_subject.run_lines(shown, learned))
    rows = [line.split()[:3] for line in text.splitlines() if re.match(r"\d+ +train", line)]
    assert rows == [["4", "train", "4"], ["5", "train", "4"]]  # of step 3 only two were read
    assert "whole steps among the newest 10; those of one step" in text
    assert "0.125 before -> 0.75 after step 5" in text
    assert "0.1 -> 0.5 in training, over 5 steps" in text
    monkeypatch.setattr(run_subject, "MOST", 500)
    whole = run_subject.run_lines(await run_subject.show_run(store, "mine"), "")
    assert "newest" not in "\n".join(whole)
    await store.close()


def test_nothing_named_is_the_newest_failure_and_else_the_newest(show):
    newest = filled(lambda store: add(store, GOOD)).rollout_id
    assert f"rollout  {newest}: succeeded" in show()
    failed = filled(lambda store: add(store, GOOD, status="failed")).rollout_id
    filled(lambda store: add(store, GOOD))
    assert f"rollout  {failed}: failed" in show()


async def test_nothing_named_counts_no_more_rollouts_than_it_must():
    asked: list[Any] = []

    class Counting(agl.InMemoryLightningStore):
        async def query_rollouts(self, **about: Any) -> Any:
            asked.append(about["status_in"])
            return await super().query_rollouts(**about)

    store = Counting()
    failed = await add(store, GOOD, status="failed")
    asked.clear()
    assert (await id_lookup.newest(store))[0].rollout_id == failed.rollout_id
    assert asked == [["failed"]]


def test_ambiguous_beginnings_name_the_candidates_and_unknown_ids_near_ones(show):
    ids = filled(lambda store: step(store, "final", GOOD, GOOD))
    text = show(f"{1:016x}", code=2)
    assert all(f"call or span {1:016x} of {one}" in text for one in ids)
    assert "ROLLOUT/SPAN says which" in text
    show(f"{ids[1]}/{1:016x}")
    wrong = f"{ids[0][:-1]}z"
    assert f"near it are {ids[0]}" in show(wrong, code=2)


async def test_files_and_other_stores_find_the_same(store):
    ids = await step(store, "final", GOOD, BAD)
    reading = reading_of(store)
    assert type(reading) is Reading
    assert await reading.rollouts(ids[1][:6]) == [Subject("rollout", ids[1], ids[1])]
    [attempt] = [one for one in await reading.attempts("at-") if one.rollout_id == ids[0]]
    assert await reading.attempts(attempt.name[:7]) == [attempt]
    other = (await reading.attempts("at-"))[0]
    span = Subject.of_span(ids[1], other.attempt_id, f"{3:016x}")
    assert await reading.spans(f"{3:016x}") == [span]
    assert [one.rollout_id for one in await reading.responses("chatcmpl-attic")] == [ids[0]]
    assert await reading.tasks(task_id("task")) == [Subject.of_task("task")]
    assert await reading.rollouts_of("task") == ids


async def test_task_is_found_by_its_own_id_without_reading_every_task(tmp_path):
    async with opened(tmp_path / "s.db") as store:
        for number in range(3):
            await store.enqueue_rollout({"id": f"shop-{number}", "text": "a" * 200})
        [one] = await reading_of(store).task("shop-1")
        assert one.task == {"id": "shop-1", "text": "a" * 200}
        assert await reading_of(store).task(one.name) == [one]
        assert await reading_of(store).task("shop") == []
        [other] = await Reading(store).task("shop-2")
        assert other.task == {"id": "shop-2", "text": "a" * 200}


def test_beginning_of_an_id_is_looked_for_by_key(tmp_path):
    filled(lambda store: store.enqueue_rollout("task"), tmp_path / "s.db")
    reading = reading_of(SqliteLightningStore(tmp_path / "s.db"))
    for name, *columns in (
        ("ids_of_rollouts", "n", "rollout_id"),
        ("ids_of_attempts", "t.a", "t.attempt_id"),
    ):
        condition = id_begins(*columns, "ro-1ad1af5a8")
        sql = f"EXPLAIN QUERY PLAN {reading._sql[name]}".replace("{ranges}", condition)
        reading._sql["plan"] = sql
        plan = " ".join(str(row) for row in reading.ask("plan", most=6))
        assert "SCAN" not in plan


async def test_what_was_not_looked_at_is_said(tmp_path, monkeypatch):
    memory = agl.InMemoryLightningStore()
    first = await memory.start_rollout("task")
    for _ in range(2):
        await memory.start_rollout("task")
    attempt = first.attempt.attempt_id
    monkeypatch.setattr(id_lookup, "NEWEST_ROLLOUTS", 2)
    among = "the newest 2 of 3 rollouts"
    with pytest.raises(ConfigError, match=rf"no .* .{attempt}. was found; only {among}"):
        await find(memory, attempt)
    with pytest.raises(ConfigError, match=r"the store has no .* 'ro-zz'"):
        await find(memory, "ro-zz")  # by its id the contract can be asked
    shown = await show_task(memory, "task")
    assert f"rollouts the newest 2 of 2 found among {among}" in "\n".join(task_lines(shown))
    assert shown.as_json()["looked_at"] == among
    monkeypatch.setattr(id_lookup, "NEWEST_ROLLOUTS", 20)
    assert (await find(memory, attempt)).kind == "attempt"
    assert "newest" not in "\n".join(task_lines(await show_task(memory, "task")))


async def test_rollouts_of_a_task_beyond_many_are_said_and_not_counted(tmp_path, monkeypatch):
    async with opened(tmp_path / "s.db") as store:
        ids = [(await store.enqueue_rollout("task")).rollout_id for _ in range(4)]
        assert await reading_of(store).rollouts_of("task") == ids
        monkeypatch.setattr(id_lookup, "NEWEST_OF_TASK", 3)
        assert await reading_of(store).rollouts_of("task") == ids[1:]
        text = "\n".join(task_lines(await show_task(store, "task")))
        assert "rollouts the newest 3 of 3 found among the newest 3 of this task" in text


async def test_what_was_not_looked_at_in_a_file_is_said(tmp_path, monkeypatch):
    async with opened(tmp_path / "s.db") as store:
        await step(store, "final", GOOD, BAD)
        with pytest.raises(ConfigError, match=r"the store has no .* 'feed-nothing'\. See"):
            await find(store, "feed-nothing")
        monkeypatch.setattr(id_lookup, "NEWEST_ATTEMPTS", 1)
        monkeypatch.setattr(id_lookup, "NEWEST_SPANS", 1)
        said = "spans of the newest 1 attempts and response ids in the newest 1 spans were"
        with pytest.raises(ConfigError, match=said):
            await find(store, "feed-nothing")


@pytest.mark.parametrize("name", ["a" * 100_000, "task-" + "b" * 100_000, "ro-1/" + "/" * 100_000])
def test_name_of_any_length_is_refused_at_once(show, name):
    filled(lambda store: add(store, GOOD))
    text = show(name, code=2)
    assert len(text) < 200
    assert "an id, or the beginning of one, has 1,000 at most" in text
