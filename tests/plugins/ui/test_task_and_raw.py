"""A task's groups, and single calls of a long trace, as the server answers."""

import itertools
import re

import pytest

import agl
from agl.types import Event, Failure, RolloutConfig
from agl_ui.data_sources import DataSource, file_source
from agl_ui.pages.task import _siblings
from agl_ui.prompt_tree import prompt_runs
from agl_ui.read_only_store import ReadOnlyStore
from agl_views.tables.rollout_table import Wanted, _by_contract

from .long_trace import fill_with_long_trace
from .stores import call_span, filled, ids_of, page_of as read, reward_span


def test_the_whole_text_of_any_call_of_a_long_trace(serve, tmp_path):
    file = tmp_path / "long.db"
    rollout_id = fill_with_long_trace(file, 2_300, every=2)
    address = f"{serve(file)}/s/long/rollouts/{rollout_id}"
    call = f"{2_240 + 1:016x}"  # the 1,121st
    assert read(f"{address}/raw?call={call}&message=0") == "question 2240"
    assert read(f"{address}/raw?call={call}&message=answer") == "answer 2240"
    assert f'"call_id": "{call}"' in read(f"{address}/why.json?call={call}&token=3")


def fill(file, metadata, answers=(("A", 1.0), ("B", 0.0)), tools=0, failed=()):
    """Rollouts of one task, for each of these metadata; their ids."""
    user = [{"role": "user", "content": "q"}]

    async def write(store):
        ids = []
        for about, (answer, reward) in itertools.product(metadata, answers):
            given = {"mode": "train", "metadata": about, "config": RolloutConfig()}
            rollout = await store.start_rollout("t", **given)
            work = {"name": "tool", "attributes": {}, "start_time": 1.0, **ids_of(rollout)}
            spans = [agl.Span.from_attributes(**work) for _ in range(tools)]
            spans += [call_span(rollout, user, answer), reward_span(rollout, reward)]
            await store.add_many_spans(spans)
            status = "failed" if answer in failed else "succeeded"
            await store.update_attempt(rollout.rollout_id, "latest", status=status)
            ids.append(rollout.rollout_id)
        return ids

    return filled(file, write)


def rows_of(text):
    body = text.partition('id="steps"')[2].partition("<tbody>")[2]
    return [re.sub(r"<[^>]*>", " ", one).split() for one in body.split("</tr>")[:-1]]


def test_groups_of_runs_are_not_mixed(serve, tmp_path):
    file = tmp_path / "two.db"
    about = [{"run": run, "step": 1, "group": group} for run in ("x", "y") for group in (0, 1)]
    ids = fill(file, about)
    text = read(f"{serve(file)}/s/two/task?rollout={ids[2]}")
    found = rows_of(text)
    assert [one[:4] for one in found] == [
        ["1", run, group, "2"] for run, group in (("y", "1"), ("y", "0"), ("x", "1"), ("x", "0"))
    ]
    side = text.partition('id="side"')[2].partition('id="steps"')[0]
    assert set(re.findall(r"/rollouts/(ro-\w+)", side)) == {ids[2], ids[3]}


@pytest.mark.parametrize("step", [True, -3, "x", {"a": 1}])
def test_no_link_of_a_task_is_refused(serve, tmp_path, step):
    file = tmp_path / "odd.db"
    ids = fill(file, [{"step": step}, {"step": 2}])
    base = serve(file)
    text = read(f"{base}/s/odd/task?rollout={ids[0]}")
    links = re.findall(r'href="(/s/odd/task[^"]*)"', text)
    assert len(links) == 2
    for link in links:
        assert "side by side" in read(base + link.replace("&amp;", "&"))


def test_the_reward_of_a_failed_rollout_is_in_no_mean(serve, tmp_path):
    file = tmp_path / "failed.db"
    answers = (("A", 0.25), ("B", 0.75), ("C", 1.692))
    ids = fill(file, [{"step": 1}, {"step": 2}], answers, failed={"C"})
    base = serve(file)
    text = read(f"{base}/s/failed/task?rollout={ids[0]}")
    assert [one[1:] for one in rows_of(text)] == [["3", "0.5", "0.25", "0.75", "0.3536"]] * 2
    assert "mean of those that succeeded, step 1: 0.5" in text
    rewards = re.findall(r'<div class="reward">(.*?)</div>', text)
    expected = ["reward 0.75", "reward 0.25", "reward 1.692 on the way"]
    assert [re.sub("<[^>]*>", "", one) for one in rewards] == expected
    table = read(f"{base}/s/failed/rollouts?step=1")
    assert '1.692 <span class="remark">on the way</span>' in table
    card = read(f"{base}/s/failed/rollouts/{ids[2]}").partition("<dt>Reward</dt>")[2][:200]
    assert "1.692" in card
    assert "on the way: it counts only where the attempt succeeds" in card


@pytest.fixture
def four_steps(tmp_path):
    return tmp_path / "old.db", fill(tmp_path / "old.db", [{"step": n} for n in range(4)])


async def test_the_task_of_a_store_without_a_file(four_steps, monkeypatch):
    file, ids = four_steps
    store = agl.SqliteLightningStore(file)

    async def no_file(store, question):
        return None

    monkeypatch.setattr("agl_ui.pages.task.ask_file", no_file)
    source = DataSource("s", "s", ReadOnlyStore(store))
    for rollout_id in (ids[0], ids[5], ids[-1]):
        rollout = await store.get_rollout_by_id(rollout_id)
        assert [each.rollout_id for each in await _siblings(source, rollout)] == ids
    monkeypatch.setattr("agl_ui.pages.task.AROUND", 2)
    near = await _siblings(source, await store.get_rollout_by_id(ids[4]))
    assert [each.rollout_id for each in near] == ids[2:7]
    await store.close()


async def test_siblings_in_a_file_are_found_without_reading_other_tasks(tmp_path, monkeypatch):
    store = agl.SqliteLightningStore(tmp_path / "two.db")
    requests = [agl.EnqueueRolloutRequest(input={"task": n % 2}, mode="val") for n in range(40)]
    ids = [one.rollout_id for one in await store.enqueue_many_rollouts(requests)]
    await store.close()
    source = file_source(tmp_path / "two.db")
    rollout = await source.store.get_rollout_by_id(ids[20])
    asked = []
    query = source.store.query_rollouts

    async def counted(**given):
        asked.append(found := await query(**given))
        return found

    monkeypatch.setattr(source.store, "query_rollouts", counted)
    assert [one.rollout_id for one in await _siblings(source, rollout)] == ids[::2]
    assert sum(map(len, asked)) == 20
    monkeypatch.setattr("agl_ui.pages.task.AROUND", 4)
    assert [one.rollout_id for one in await _siblings(source, rollout)] == ids[16:25:2]
    await source.store.close()


def test_which_of_several_rewards_counts_is_said(serve, tmp_path):
    async def fill(store):
        rollout = await store.start_rollout("t")
        await store.add_many_spans([reward_span(rollout, value) for value in (0.2, 0.9)])
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        return rollout.rollout_id

    file = tmp_path / "several.db"
    rollout_id = filled(file, fill)
    text = read(f"{serve(file)}/s/several/rollouts/{rollout_id}")
    card = re.sub(r"<[^>]*>", "", text.partition("<dt>Reward</dt>")[2].partition("</div>")[0])
    assert " ".join(card.split()) == "0.9 counts, of 0.2, 0.9"


def test_the_last_page_that_is_full_has_no_next_one(serve, tmp_path):
    file = tmp_path / "full.db"
    ids = fill(file, [{}] * 25)
    base = f"{serve(file)}/s/full/rollouts?size=25"
    first = read(base)
    assert 'rel="next"' in first
    assert first.count('<td><a class="id"') == 25
    for order in ("newest", "oldest", "ended", "status"):
        last = read(f"{base}&sort={order}").partition('rel="next" href="')[2].partition('"')[0]
        last = read(f"{base.partition('/s/')[0]}{last.replace('&amp;', '&')}")
        assert last.count('<td><a class="id"') == 25, order
        assert 'rel="next"' not in last
    assert len(ids) == 50


def test_columns_are_of_both_ends_and_calls_after_many_tools_are_found(serve, tmp_path):
    file = tmp_path / "many.db"
    answers = [(f"answer {n}", float(n < 8)) for n in range(16)]
    ids = fill(file, [{"step": 1}], answers, tools=0)
    text = read(f"{serve(file)}/s/many/task?rollout={ids[0]}")
    assert re.findall(r'<div class="reward">.*?reward</span> (\d)', text) == ["1"] * 4 + ["0"] * 4
    assert "8 more are not beside each other: those between" in text
    other = tmp_path / "tools.db"
    ids = fill(other, [{"step": 1}], tools=450)
    assert "No model call is recorded" not in read(f"{serve(other)}/s/tools/task?rollout={ids[0]}")


async def test_all_pages_of_a_store(four_steps, monkeypatch):
    file, ids = four_steps
    monkeypatch.setattr("agl_ui.prompt_tree.PAGE", 3)
    monkeypatch.setattr("agl_views.tables.rollout_table.PAGE", 3)
    store = agl.SqliteLightningStore(file)
    await store.add_resources({"prompt": agl.PromptTemplate(template="Hi {name}")})
    known = await prompt_runs(DataSource("s", "s", ReadOnlyStore(store)))
    assert (known.num_read, known.last) == (len(ids), ids[-1])
    assert (await _by_contract(store, Wanted(step=2))).ids
    assert (await _by_contract(store, Wanted())).ids == ids[::-1]
    await store.close()


def test_what_is_left_out_of_a_traceback_and_of_events_is_counted(tmp_path, serve):
    async def fill(store):
        rollout = await store.start_rollout("t", mode="train", worker_id="w")
        span = reward_span(rollout, 1.0)
        events = [Event(name=f"e{n}", attributes={}, timestamp=1.0) for n in range(203)]
        await store.add_span(span.model_copy(update={"events": events}))
        error = Failure(boundary="agent", type="E", message="m", traceback="x" * 20_007)
        await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=error)
        return rollout.rollout_id, span.span_id

    file = tmp_path / "long.db"
    rollout_id, span_id = filled(file, fill)
    text = read(f"{serve(file)}/s/long/rollouts/{rollout_id}?span={span_id}")
    assert "7 characters before are left out" in text
    assert "3 more events" in text
