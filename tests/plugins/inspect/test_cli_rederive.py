"""``agl rederive``: a run of another one's rollouts, whose agent is not run again."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.digests import digests
from tests.run_project import refuses, succeeds

from agl.emitter import find_final_reward
from agl.types import Span
from agl_runs.local_runs import runs_in
from agl_runs.records import RunStart
from agl_runs.store import begin_run, end_run
from agl_runs.user_code import digest_of
from agl_sqlite import SqliteLightningStore

from .traces import add, call_of, filled, reward_span

RUN = "first-run"
REWARDS = """
def length(task, messages):
    return float(len(messages[-1]["content"]))

async def doubled(reward):
    return None if reward is None else 2 * reward

def named(task, private, spans, rollout):
    assert "private" not in task and private == "key"
    return {"primary": 3.0, "spans": float(len(spans))}

def picky(messages):
    return 1.0 / (len(messages[-1]["content"]) - 1)

def broken(task):
    raise ValueError("no judge today")

def greedy(task, wallet):
    return 0.0
"""


ROLLOUTS = (
    ("one", "a", 0.0, RUN, "succeeded"),
    ("one", "bbb", 1.0, RUN, "succeeded"),
    ("two", "cc", 0.5, RUN, "succeeded"),
    ("two", "dddd", 0.5, RUN, "succeeded"),
    ("two", "lost", 1.0, RUN, "failed"),
    ("one", "stranger", 1.0, "other", "succeeded"),
    ("judged", "[1, 0]", 1.0, RUN, "succeeded"),
)
"""Task, answer, reward, run, status."""


def fill(path: Path, begins_with: list[Span]) -> None:
    """A run of two tasks, two rollouts of each, one that failed, one of another run, a judge's."""

    async def write(store: Any) -> None:
        await begin_run(store, RunStart(run_id=RUN, algorithm="baseline", folder=str(path.parent)))
        for task, answer, reward, run, status in ROLLOUTS:
            about = {"run": run, "step": 1, **({"judges": []} if task == "judged" else {})}
            call = call_of("q", answer, [1, 2], [3] * len(answer))
            spans = [*begins_with, call, reward_span(reward)]
            asked = {"q": task, "private": "key"}
            await add(store, spans, status, asked, metadata=about)
        await end_run(store, RUN, 1, "finished")

    filled(write, path)


@pytest.fixture
def project(own_modules):
    (own_modules / "my_rewards.py").write_text(REWARDS)
    folder = own_modules / "agl-runs" / RUN
    folder.mkdir(parents=True)
    fill(folder / "store.db", [reward_span(-7.0)])
    return own_modules


@pytest.fixture
def agl(project, agl):
    return agl


def rederived(agl, *how: str) -> dict[str, Any]:
    return json.loads(succeeds(agl, "rederive", RUN, *how, "--json").out)


def records_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*map(json.loads, Path(found["folder"], "records.jsonl").read_text().splitlines())]


def rewards_of(folder: str) -> dict[str, list[float | None]]:
    """Task -> final rewards, as any reader of the store sees them."""

    async def read(store: Any) -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = {}
        for rollout in await store.query_rollouts():
            spans = await store.query_spans(rollout.rollout_id, "latest")
            found.setdefault(rollout.input["q"], []).append(find_final_reward(spans))
        return found

    return filled(read, Path(folder) / "store.db")


def test_a_new_reward_function_changes_rewards_and_nothing_of_the_run(agl, project):
    before = digests(project / "agl-runs" / RUN)
    found = rederived(agl, "--reward", "my_rewards:length")
    expected = [({"q": "one"}, 0.5, 2.0), ({"q": "two"}, 0.5, 3.0)]
    assert [(one["task"], one["before"], one["now"]) for one in found["tasks"]] == expected
    assert rewards_of(found["folder"]) == {"one": [1.0, 3.0], "two": [2.0, 4.0]}
    assert [record["reward"] for record in records_of(found)] == [1.0, 3.0, 2.0, 4.0]
    assert digests(project / "agl-runs" / RUN) == before
    # Export and comparison take the new run.
    out = succeeds(agl, "export", "--as", "dpo", "--path", found["folder"]).out
    pairs = [json.loads(line) for line in out.splitlines()]
    assert [(one["chosen_reward"], one["rejected_reward"]) for one in pairs] == [(3, 1), (4, 2)]
    compared = json.loads(agl("runs", "compare", RUN, found["run"], "--json")[1])
    assert [task[1:] for task in compared["tasks"]] == [[0.5, 2.0], [0.5, 3.0]]


def test_the_runs_name_each_other(agl, project):
    found = rederived(agl, "--reward", "my_rewards:length", "--credit", "per_call")
    new = found["run"]
    shown = json.loads(agl("runs", "show", new, "--json")[1])
    store = str(project / "agl-runs" / RUN / "store.db")
    assert shown["derived_from"] == {"run_id": RUN, "store": store}
    source = digest_of(project / "my_rewards.py")
    reward = {"reward": "my_rewards:length", "reward_source": source}
    given = {"credit": "per_call", "adapter": "rows", "mode": None}
    assert shown["config"] == {**reward, **given}
    assert "agl-core" in shown["code"]["versions"]
    assert (shown["status"], shown["algorithm"]) == ("finished", "rederive")
    assert json.loads(agl("runs", "show", RUN, "--json")[1])["derived"] == [new]
    assert f"{RUN} in {store}" in agl("runs", "show", new)[1]
    assert new in agl("runs", "show", RUN)[1]


def test_another_credit_rule_keeps_rewards_and_changes_what_calls_get(agl):
    fill(Path("two-calls.db"), [call_of("q", "first", [1, 2], [3] * 5), reward_span(1.0)])
    where = ("--path", "two-calls.db")
    final = rederived(agl, "--credit", "final", *where)
    half = "{type: discounted, gamma: 0.5}"
    discounted = rederived(agl, "--credit", half, "--to", "elsewhere", *where)
    for found in (final, discounted):
        assert rewards_of(found["folder"]) == {"one": [0.0, 1.0], "two": [0.5, 0.5]}
        assert found["rollouts"] == 4
    assert [one["credit_now"] for one in final["tasks"]] == [0.5, 0.5]
    # Task one: 1 + 0.5 * 0 and 0, then 1 + 0.5 * 1 and 1. Task two: twice 1 + 0.5 * 0.5 and 0.5.
    assert [one["credit_now"] for one in discounted["tasks"]] == [3.5 / 4, 3.5 / 4]
    assert discounted["credit"] == {"type": "discounted", "gamma": 0.5}
    assert discounted["folder"] == "elsewhere"


def test_an_adapter_without_rows_gives_its_own_records(agl):
    found = rederived(agl, "--adapter", "messages")
    answers = [record["messages"][-1]["content"] for record in records_of(found)]
    assert answers == ["a", "bbb", "cc", "dddd"]


def test_a_list_of_an_adapter_is_many_records_and_anything_else_is_one(agl, project):
    source = """
from agl import TraceAdapter

class Pairs(TraceAdapter):
    def adapt(self, source):
        return (1, [2])

class Lists(TraceAdapter):
    def adapt(self, source):
        return [(1, 2), {"a": (3,)}]
"""
    (project / "my_adapters.py").write_text(source)
    expected = {"Pairs": [{"value": [1, [2]]}], "Lists": [{"value": [1, 2]}, {"a": [3]}]}
    for name, made in expected.items():
        found = rederived(agl, "--adapter", f"my_adapters:{name}", "--to", name)
        assert records_of(found) == made * 4


def test_a_function_may_be_async_and_give_several_rewards(agl):
    doubled = rederived(agl, "--reward", "my_rewards:doubled")
    assert rewards_of(doubled["folder"]) == {"one": [0.0, 2.0], "two": [1.0, 1.0]}
    named = rederived(agl, "--reward", "my_rewards:named")
    assert [one["now"] for one in named["tasks"]] == [3.0, 3.0]


def test_a_rollout_on_which_the_function_fails_has_no_reward_and_says_why(agl):
    found = rederived(agl, "--reward", "my_rewards:picky")
    assert rewards_of(found["folder"])["one"] == [None, 0.5]
    ((_, why),) = found["without_reward"].items()
    assert why.replace("float ", "") == "ZeroDivisionError: division by zero"  # "float": 3.11
    assert found["left_out"]["no_reward"] == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (("--reward", "my_rewards:broken"), "no judge today"),
        (("--reward", "my_rewards:greedy"), "parameter 'wallet'; a reward function may take task"),
        (("--reward", "my_rewards:missing"), "has no 'missing'"),
        (("--credit", "fairly"), "fairly"),
        (("--adapter", "messages", "--credit", "final"), "credit"),
        (("--reward", "my_rewards:length", "--mode", "val"), "no rollout of mode 'val'"),
        (("--reward", "my_rewards:length", "--to", "."), "not empty"),
        ((), "Give --reward, --credit or --adapter"),
    ],
    ids=str,
)
def test_what_will_not_do_is_named_and_leaves_nothing(agl, project, how, said):
    refuses(agl, said, "rederive", RUN, *how)
    assert [path.name for path in (project / "agl-runs").iterdir()] == [RUN]


def test_a_derived_run_is_not_the_newest_to_go_on_with_and_cannot_be_replayed(agl):
    new = rederived(agl, "--reward", "my_rewards:length")["run"]
    refuses(agl, f"it was derived from '{RUN}'", "replay", new, "--step", "1")
    code, _, err = agl("run", "--resume")
    assert (code, RUN in err, new in err) == (2, True, False)


def test_a_run_that_is_being_written_can_be_derived_from(agl, project):
    store = SqliteLightningStore(project / "agl-runs" / RUN / "store.db")
    try:
        asyncio.run(store.start_rollout("late"))
        found = rederived(agl, "--reward", "my_rewards:length")
    finally:
        asyncio.run(store.close())
    assert found["rollouts"] == 4
    (derived,) = runs_in(Path(found["folder"]) / "store.db")
    assert derived.derived_from is not None


def test_algorithms_without_training_steps_refuse_a_replay_by_name(agl, project):
    config = "agent: my_agent:agent\nalgorithm: {type: apo, base_url: 'http://x', api_key: x}\n"
    (project / "agl-runs" / RUN / "config.yaml").write_text(config)
    agent = "import agl\n@agl.rollout\ndef agent(task) -> float:\n    return 1.0\n"
    (project / "my_agent.py").write_text(agent)
    refuses(agl, "APO cannot train a step again", "replay", RUN, "--step", "1")
