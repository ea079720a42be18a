"""The numbers of a run's page and of the list are those that the run's own report says."""

import html
import json
import re

import pytest
from tests.stores import ask

import agl
from agl.types import Failure
from agl_runs.records import RunStart
from agl_runs.store import begin_run, end_run, query_runs
from agl_sqlite import SqliteLightningStore
from agl_ui.pages.run import MOST_TASKS, most_changed
from agl_ui.templating import number
from agl_views.tables.task_changes import TaskChange, task_changes

from .stores import TRACEBACK, apart, filled, ids_of, page_of, reward_span


def text_of(address):
    """The words of a page, in one line; what a drawing says when pointed at is not among them."""
    text = re.sub(r"<svg.*?</svg>|<script.*?</script>", " ", page_of(address))
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def facts_of(file):
    run_facts = pytest.importorskip("agl_inspect.runs.facts").run_facts

    async def facts(store):
        return await run_facts(store, run=(await query_runs(store))[-1])

    return ask(file, facts)


def test_held_out_reward_of_a_search_begins_before_it(serve, prompted):
    facts = facts_of(prompted / "store.db")
    before, after = facts.held_out_before, facts.held_out_after
    address = serve(prompted / "store.db")
    said = text_of(f"{address}/s/{prompted.name}/run/{prompted.name}")
    assert f"Held-out reward {before.reward:.4g} → {after.reward:.4g}" in said


@agl.rollout
def right_or_wrong(task: dict) -> float:
    return float(task["answer"])


def test_a_run_without_steps_has_its_mean_reward_and_promises_no_curve(serve, tmp_path):
    store = SqliteLightningStore(tmp_path / "store.db")
    run = {"algorithm": "baseline", "strategy": "shm", "n_runners": 1, "run": "first"}
    trainer = agl.Trainer(store=store, run_dir=tmp_path, **run)
    trainer.fit(right_or_wrong, [{"answer": 1}, {"answer": 0}, {"answer": 1}])
    apart(store.close())
    assert facts_of(tmp_path / "store.db").result.mean_reward == pytest.approx(2 / 3)
    address = serve(tmp_path / "store.db")
    said = text_of(f"{address}/s/{tmp_path.name}/run/first")
    assert "Mean reward of 3 rollouts 0.6667" in said
    assert "No curve: baseline has come to its end and writes no steps." in said
    assert "No account: the run ended before its first step did" in said
    assert "No step has ended yet" not in said
    assert "finished – 0.6667 –" in text_of(f"{address}/")


ROLLOUTS_OF_2 = {"rollouts/succeeded": 9, "rollouts/failed": 1}
LINES = [
    {"step": 0, "val/reward/mean": 0.2, "val/rollouts/succeeded": 3},
    {"step": 1, "reward/mean": 0.1, "time/step": 2.0, "entropy": 0.9, "kl": 0},
    {"step": 2, "reward/mean": 0.7, "time/step": 4.0, "entropy": 0.25, "kl": 0, **ROLLOUTS_OF_2},
    {"step": 2, "val/reward/mean": 0.05},
]


@pytest.fixture
def begun(tmp_path):
    """Makes a store with a run, given the lines of its metrics and how it ended; its file."""

    def make(lines, outcome=None, number_of=None):
        folder = tmp_path / "run"
        folder.mkdir()

        async def fill(store):
            start = RunStart(run_id="r", algorithm="grpo", folder=str(folder))
            number = (await begin_run(store, start)).generations[-1].number
            for (kind, value), count in (number_of or {}).items():
                for _ in range(count):
                    await one(store, kind, value)
            if outcome is not None:
                await end_run(store, "r", number, outcome)

        async def one(store, kind, value):
            rollout = await store.start_rollout({"q": 1}, metadata={"run": "r", "step": 1})
            if kind == "reward":
                await store.add_span(reward_span(rollout, value))
                await store.update_attempt(**ids_of(rollout), status="succeeded")
            else:
                error = Failure(boundary=kind, type=value, message="m", traceback=TRACEBACK)
                await store.update_attempt(**ids_of(rollout), status="failed", error=error)

        filled(folder / "store.db", fill)
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return folder / "store.db"

    return make


def test_numbers_of_a_run_are_those_of_its_metrics(serve, begun):
    said = text_of(f"{serve(begun(LINES))}/s/run/run/r")
    assert "Step 2 " in said
    assert "Held-out reward 0.2 → 0.05 " in said
    assert "Rollouts per second, last step 2.5 " in said  # (9 + 1) / 4 s
    assert "Entropy, nats per token 0.25 " in said
    assert "KL to the reference" not in said  # 0 in all steps: there is none


@pytest.mark.parametrize(("end", "way"), [(0.05, "down"), (0.5, "up"), (0.2, "")])
def test_reward_that_rose_is_up_and_one_that_fell_is_down(serve, begun, end, way):
    lines = [*LINES[:-1], {"step": 2, "val/reward/mean": end}]
    page = page_of(f"{serve(begun(lines))}/s/run/run/r")
    assert f'0.2 → <strong class="{way}">{end}</strong>' in page


def test_only_the_last_start_of_a_run_alerts(serve, begun):
    file = begun(LINES)
    again = RunStart(run_id="r", algorithm="grpo")
    for change, is_told in (
        (lambda store: end_run(store, "r", 1, "stopped", "interrupted"), True),
        (lambda store: begin_run(store, again), False),
    ):
        filled(file, change)
        said = text_of(f"{serve(file)}/s/run/run/r")
        assert ("Start 1 stopped: interrupted" in said) == is_told


def test_causes_stand_by_how_many_failed_by_them(serve, begun):
    failed = {("agent", "KeyError"): 1, ("evaluator", "ValueError"): 3, ("agent", "OSError"): 2}
    said = text_of(f"{serve(begun(LINES, number_of=failed))}/s/run/run/r")
    causes = [("3", "ValueError"), ("2", "OSError"), ("1", "KeyError")]
    assert re.findall(r"(\d)× \w+ (\w+)", said) == causes


@pytest.mark.parametrize(
    ("lines", "outcome", "why"),
    [
        ([], None, "No step has ended yet. If grpo has steps, the curve begins with the first."),
        ([], "failed", "No curve: the run ended before its first step did; its state is failed."),
        ([{"step": 3, "entropy": 1.0}], "finished", "No curve: there are metrics up to step 3"),
    ],
)
def test_why_there_is_no_curve(serve, begun, lines, outcome, why):
    assert why in text_of(f"{serve(begun(lines, outcome))}/s/run/run/r")


def test_a_run_whose_first_step_goes_on_has_the_mean_so_far(serve, begun):
    number_of = {("reward", 1.0): 3, ("reward", 0.0): 1, ("agent", "KeyError"): 2}
    said = text_of(f"{serve(begun([], number_of=number_of))}/s/run/run/r")
    assert "Mean reward of 4 rollouts 0.75" in said


def test_tasks_that_changed_most_are_found_without_a_look_at_all_for_each(monkeypatch):
    monkeypatch.setattr(TaskChange, "__eq__", None)
    found = [TaskChange(n, None, 0, 0.0, 1, n, 1, f"ro-{n}") for n in range(MOST_TASKS + 3)]
    assert [one.task for one in most_changed(found)] == [*range(3, MOST_TASKS + 3)]


def test_tasks_of_a_run_stand_by_how_much_worse_they_became(serve, trained):
    async def look(store):
        (run,) = await query_runs(store)
        return run.run_id, await task_changes(store, run.run_id)

    run_id, changes = ask(trained / "store.db", look)
    address = f"{serve(trained / 'store.db')}/s/{trained.name}/run/{run_id}"
    assert "Which tasks became better, and which worse" in text_of(address)
    said = text_of(f"{address}/tasks")
    rows = [" ".join(map(number, (one.first, one.last, one.difference))) for one in changes]
    assert len(rows) > 1
    assert [said.index(row) for row in dict.fromkeys(rows)] == sorted(map(said.index, {*rows}))
    assert f"{changes[0].first_step} to {changes[0].last_step} {changes[0].rollouts}" in said
