"""``agl rollouts`` and ``agl spans``: what a store holds, in tables and as JSON."""

import contextlib
import json
import shlex
import sqlite3

import pytest
from tests.interpreter import AGL, python
from tests.run_project import refuses, write_project
from tests.stores import opened

import agl
from agl.errors import StoreUnavailableError
from agl.types import Failure, Span
from agl_views.tables.file_store import FileStore

from .traces import add, filled, ids_of, reward_span


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The store of a run of three rollouts, of which the second failed."""
    home = tmp_path_factory.mktemp("ran")
    write_project(home, 1, "boom", 0.5)
    python(*AGL, "run", "agl.yaml", "run_dir=out", "algorithm.steps=1", cwd=home, check=True)
    return home / "out/store.db"


@pytest.fixture
def listed(agl, ran):
    """The rows that ``agl rollouts`` has with such options."""
    return lambda *options: json.loads(agl("rollouts", "--path", str(ran), "--json", *options).out)


def test_rollouts_of_a_run_are_listed_in_their_order(listed):
    rows = [(row["status"], row["reward"]) for row in listed()]
    assert rows == [("succeeded", 1.0), ("failed", None), ("succeeded", 0.5)]


def test_the_newest_are_shown_and_how_many_there_are(agl, ran, listed):
    newest = agl("rollouts", "--path", str(ran), "--last", "1")
    assert "1 of 3 rollouts; --last and --all show more" in newest.err
    assert listed()[-1]["rollout_id"] in newest.out


@pytest.mark.parametrize(
    ("options", "rewards"), [([], [0.5, 1.0]), (["--reverse", "--last", "1"], [0.5])]
)
def test_sorted_by_reward(listed, options, rewards):
    assert [row["reward"] for row in listed("--sort", "reward", *options)] == rewards


OPTIONS = {
    0: ["--mode val", "--step 7"],
    1: ["--failed", "--task '\"x\": 0.5'", "--all --task boom --failed", "--reward-below 1"],
    2: ["--task x --limit 2", "--reward-above 0.4", "--status succeeded"],
    3: ["--mode train", "2"],
}


@pytest.mark.parametrize(
    ("options", "count"), [(one, count) for count in OPTIONS for one in OPTIONS[count]]
)
def test_each_filter_leaves_its_own(listed, options, count):
    assert len(listed(*shlex.split(options))) == count


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--status fialed", "Did you mean 'failed'?"),
        ("--mode trian", "'trian' is not one of"),
        ("--last 0", "0 is not in the range"),
        ("--all --last 3", "say two things"),
        ("nosuch", "no run 'nosuch' here"),
    ],
)
def test_an_option_that_cannot_be_is_refused(agl, ran, options, problem):
    refuses(agl, problem, "rollouts", "--path", str(ran), *options.split())


def test_spans_of_a_rollout_are_listed(agl, ran, listed):
    of_one = ("spans", listed()[0]["rollout_id"], "--path", str(ran))
    spans = json.loads(agl(*of_one, "--json").out)
    assert any("agentlightning.reward.0.value" in span["attributes"] for span in spans)
    assert "agentlightning.annotation" in agl(*of_one).out


def test_an_error_is_shown_without_what_a_terminal_would_obey(here, agl, monkeypatch):
    async def fill(store):
        started = await store.start_rollout({"q": 1})
        error = Failure(boundary="agent", type="E", message="\x1b]0;title\x07\x1b[31mred\rgone")
        await store.update_attempt(**ids_of(started), status="failed", error=error)

    filled(fill)
    for colours in (False, True):
        if colours:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("COLUMNS", "200")
        shown = agl("rollouts", "--path", "s.db").out
        assert r"agent: E: \x1b]0;title\x07\x1b[31mred gone" in shown
        assert "\x07" not in shown


NONE = "(a Trainer without run= keeps none)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--path", "no.db"], "agl: no.db: no such store file\n"),
        (["--path", "a", "--url", "b"], "agl: --path and --url name two stores; give one\n"),
        ([], f"agl: there is no agl-runs/*/store.db here {NONE}; give --path FILE or --url URL\n"),
    ],
)
def test_store_that_is_not_there_is_said_in_one_sentence(agl, here, arguments, message):
    assert agl("rollouts", *arguments) == (2, "", message)


def test_the_reward_of_a_failed_rollout_is_shown_as_given_on_the_way(agl, here):
    async def fill(store):
        for value, status in ((0.5, "succeeded"), (1.692, "failed")):
            await add(store, [reward_span(value)], status)

    filled(fill)
    options = ["--path", "s.db"]
    rows = json.loads(agl("rollouts", *options, "--json").out)
    found = [(row["reward"], row["reward_on_the_way"]) for row in rows]
    assert found == [(0.5, None), (None, 1.692)]
    assert "  1.692 on the way  " in agl("rollouts", *options).out.splitlines()[-1]


def test_a_damaged_rollout_attempt_or_span_hides_no_other_and_is_named(agl, here):
    async def fill(store):
        spans = [reward_span(0.5), Span.from_attributes(name="s1", attributes={})]
        ended = [await add(store, spans, "failed", {"q": task}) for task in range(3)]
        for one in ended:
            await store.update_attempt(**ids_of(one), metadata={"m": 1})
        return [one.rollout_id for one in ended]

    ids = filled(fill)
    with contextlib.closing(sqlite3.connect("s.db")) as file, file:
        file.execute("UPDATE rollout SET metadata = '[' WHERE n = 1")
        file.execute("UPDATE attempt SET metadata = '[' WHERE n = 2")
        file.execute("UPDATE span SET body = '{' WHERE k = 5")
    listed = agl("rollouts", "--path", "s.db", "--json")
    rows = json.loads(listed.out)
    assert [(row["rollout_id"], row["reward_on_the_way"]) for row in rows] == [(ids[2], 0.5)]
    assert all(f"'{one}'" in listed.err for one in ids[:2])
    spans = agl("spans", ids[2], "--path", "s.db", "--json")
    assert [span["name"] for span in json.loads(spans.out)] == ["s1"]
    assert "left out, as it is damaged" in spans.err
    assert "restore a copy of the file" in spans.err
    shown = agl("show", ids[0], "--path", "s.db")
    assert (shown.code, f"rollout '{ids[0]}'" in shown.err) == (1, True)


def said(*arguments):
    done = python(*AGL, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_store_is_read_beside_who_has_it_open(tmp_path, is_open):
    path = tmp_path / "store.db"
    store = agl.SqliteLightningStore(path)
    rollout = await store.start_rollout("the task", worker_id="w")
    if not is_open:
        await store.close()
    where = ("--path", str(path))
    before = sorted(tmp_path.iterdir())
    assert rollout.rollout_id in said("rollouts", *where)
    assert "the task" in said("show", rollout.rollout_id, *where)
    said("spans", rollout.rollout_id, *where)
    said("ledger", str(path))
    assert sorted(tmp_path.iterdir()) == before
    if is_open:
        await store.close()


async def test_a_file_of_another_schema_is_not_read_as_ours(tmp_path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await store.enqueue_rollout("t")
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreUnavailableError) as told:
        await FileStore(path).query_rollouts()
    assert f"store {str(path)!r}: made by a newer agl (schema 999" in str(told.value)
