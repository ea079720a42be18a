"""The SQL agent: its databases, its reward, its safety, and itself through the gateway."""

import json
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, check_alone, learned, play, run_script, scripts, write_parquet

from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls
from agl_testing.echo_llm import EchoLLM, RawReply

for module in ("langgraph", "langchain_openai"):
    pytest.importorskip(module)

FOLDER = EXAMPLES / "spider"
SCRIPT = FOLDER / "train_sql_agent.py"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(FOLDER))
    try:
        from make_databases import make_databases
    finally:
        sys.path.remove(str(FOLDER))
    return make_databases(tmp_path_factory.mktemp("spider"))


@pytest.fixture
def tasks(folder: Path) -> list[Any]:
    train, val = scripts.sql_tasks.load_small_tasks(folder)
    return [*train, *val]


@pytest.fixture
def database(folder: Path) -> Path:
    return folder / "database/pets/pets.sqlite"


def test_small_set_has_questions_about_unseen_databases_held_out(folder: Path) -> None:
    train, val = scripts.sql_tasks.load_small_tasks(folder)
    assert (len(train), len(val)) == (69, 33)
    assert not {task["db_id"] for task in train} & {task["db_id"] for task in val}


def test_every_reference_is_right_and_no_other_reference_of_its_database_is(tasks) -> None:
    results = {}
    for task in tasks:
        databases = scripts.sql_tasks.databases_of(task)
        assert [path.stem for path in databases] == [task["db_id"], f"{task['db_id']}_2"]
        query = task["private"]["query"]
        rows = [scripts.sql_execution.run_query(path, query).rows for path in databases]
        assert all(rows), task
        results.setdefault(task["db_id"], {})[query] = rows

    def same(rows: Any, expected: Any, ordered: bool) -> bool:
        pairs = zip(rows, expected, strict=True)
        return all(scripts.sql_execution.same_rows(one, two, ordered=ordered) for one, two in pairs)

    for found in results.values():
        for query, expected in found.items():
            ordered = "order by" in query.lower()
            assert [one for one, rows in found.items() if same(rows, expected, ordered)] == [query]


def test_databases_are_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    scripts.make_databases.make_databases(tmp_path)
    for path in sorted(folder.rglob("*.sqlite")):
        again = tmp_path / path.relative_to(folder)
        with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(again)) as other:
            assert list(one.iterdump()) == list(other.iterdump())


def test_spider_is_read_where_it_is(folder, tmp_path, monkeypatch) -> None:
    train = {"db_id": "pets", "question": "How many?", "query": "SELECT 1", "extra": 1}
    val = [{"db_id": "shop", "question": "How much?", "query": "SELECT 2"}]
    write_parquet(tmp_path / "train_spider.parquet", train)
    (tmp_path / "dev.json").write_text(json.dumps(val))
    for kind, name in (("database", "pets"), ("test_database", "shop")):
        shutil.copytree(folder / "database" / name, tmp_path / kind / name)
    monkeypatch.setenv("VERL_SPIDER_DATA_DIR", str(tmp_path))
    [[one], [other]] = scripts.sql_tasks.load_tasks()
    assert (one["question"], other["question"]) == ("How many?", "How much?")
    assert scripts.sql_tasks.databases_of(one)[0] == tmp_path / "database/pets/pets.sqlite"
    assert scripts.sql_tasks.databases_of(other)[0] == tmp_path / "test_database/shop/shop.sqlite"


def test_spider_that_is_named_and_missing_is_an_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VERL_SPIDER_DATA_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"train_spider\.parquet"):
        scripts.sql_tasks.load_tasks()


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO pet VALUES (99, 'Evil', 'cat', 1.0, 1)",
        "UPDATE pet SET name = 'Evil'",
        "DELETE FROM pet",
        "DROP TABLE pet",
        "CREATE TABLE evil (x)",
        "CREATE TEMP TABLE evil (x)",
        "ATTACH DATABASE '{file}' AS other",
        "VACUUM INTO '{file}'",
        "PRAGMA query_only = OFF",
        "PRAGMA user_version = 7",
        "SELECT load_extension('{file}')",
        "SELECT 1; DROP TABLE pet",
        "WITH x AS (SELECT 1) DELETE FROM pet",
        "BEGIN",
        "",
        "-- nothing",
        "SELECT '\0'",
    ],
)
def test_only_reading_is_allowed(query: str, database: Path, tmp_path: Path) -> None:
    before = database.read_bytes()
    with pytest.raises(scripts.sql_execution.QueryError):
        scripts.sql_execution.run_query(database, query.format(file=tmp_path / "evil.sqlite"))
    assert database.read_bytes() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "SELECT count(*) FROM visit a, visit b, visit c, visit d, visit e, visit f",
        "SELECT * FROM visit a, visit b, visit c, visit d, visit e ORDER BY a.cost * b.cost DESC",
    ],
)
def test_long_query_is_broken_off(query: str, database: Path) -> None:
    start = time.monotonic()
    with pytest.raises(scripts.sql_execution.QueryError, match=r"stopped after 0\.3 seconds"):
        scripts.sql_execution.run_query(database, query, time_limit_seconds=0.3)
    assert time.monotonic() - start < 10


def test_sizes_are_limited(database: Path) -> None:
    with pytest.raises(scripts.sql_execution.QueryError, match="more than 100 rows"):
        scripts.sql_execution.run_query(database, "SELECT 1 FROM visit a, visit b", row_limit=100)
    with pytest.raises(scripts.sql_execution.QueryError, match="more than 10000000 bytes"):
        scripts.sql_execution.run_query(
            database, "SELECT hex(zeroblob(49000)) FROM visit a, visit b"
        )
    with pytest.raises(scripts.sql_execution.QueryError, match="too many columns"):
        scripts.sql_execution.run_query(database, f"SELECT {', '.join(['1'] * 501)}")
    for value in ("randomblob(1000000000)", "replace(hex(zeroblob(40000)), '0', '01')"):
        query = f"SELECT {value}"
        with pytest.raises(scripts.sql_execution.QueryError, match="too big"):
            scripts.sql_execution.run_query(database, query)


def test_missing_database_is_no_error_of_the_query(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scripts.sql_execution.run_query(tmp_path / "none.sqlite", "SELECT 1")
    assert not list(tmp_path.iterdir())


ROWS = [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("rows", "expected", "ordered", "same"),
    [
        (ROWS[::-1], ROWS, False, True),
        (ROWS[::-1], ROWS, True, False),
        ([(1, "a"), (2, "b")], ROWS, True, True),  # columns may change places,
        ([(2, "a"), (1, "b")], ROWS, False, False),  # but not their values
        ([("a", 1), ("a", 1), ("b", 2)], ROWS, False, False),
        ([("a",), ("b",)], ROWS, False, False),
        ([(0.1 + 0.2, None)], [(0.3, None)], True, True),
        ([(2.0,)], [(2,)], True, True),
        ([("2",)], [(2,)], True, False),
        ([], [], True, True),
        ([(1, 1, 2)], [(1, 2, 1)], True, True),
    ],
)
def test_results_are_compared_as_rows(rows, expected, ordered, same) -> None:
    assert scripts.sql_execution.same_rows(rows, expected, ordered=ordered) == same


def test_query_that_is_right_by_luck_in_one_database_is_wrong(folder: Path) -> None:
    first, second = sorted((folder / "database/pets").glob("*.sqlite"))
    reference = "SELECT name FROM pet ORDER BY weight DESC LIMIT 1"
    [(name,)] = scripts.sql_execution.run_query(first, reference).rows
    lucky = f"SELECT '{name}'"
    assert scripts.sql_execution.evaluate_query(lucky, reference, [first]) == 1
    assert scripts.sql_execution.evaluate_query(lucky, reference, [first, second]) == 0


def test_wrong_reference_is_no_reward(database: Path) -> None:
    with pytest.raises(RuntimeError, match="reference query fails"):
        scripts.sql_execution.evaluate_query("SELECT 1", "SELECT nothing FROM nowhere", [database])
    assert scripts.sql_execution.evaluate_query("SELECT nothing", "SELECT 1", [database]) == 0
    assert scripts.sql_execution.evaluate_query(None, "SELECT 1", [database]) == 0


def test_answers_are_read() -> None:
    agent, said = scripts.sql_agent, "Well:\n```sql\nSELECT 1\n```\nor\n```\nSELECT 2\n```."
    assert agent.find_query(said) == "SELECT 2"
    assert agent.find_query(" SELECT 3 ") == "SELECT 3"
    assert agent.says_correct("The query is correct.")
    assert not agent.says_correct("THE QUERY IS INCORRECT")
    assert not agent.says_correct("Not true: THE QUERY IS CORRECT; THE QUERY IS INCORRECT")
    assert not agent.says_correct("no idea")


def nodes(outcome: Any) -> list[str]:
    """Which nodes called the model, in order."""
    return [str(call.agent_name) for call in model_calls(outcome.spans)]


async def test_failed_query_is_rewritten_and_only_writing_is_learned_from(tasks):
    # every second one begins with an error
    agent = scripts.sql_agent.LitSQLAgent()
    outcome = await play(agent, tasks[1], scripts.scripted_llm.scripted_reply(tasks))
    assert outcome.rollout.status == "succeeded"
    assert outcome.reward == 1
    assert nodes(outcome) == ["write_query", "check_query", "rewrite_query", "check_query"]
    prompts = [request["messages"][-1]["content"] for request in outcome.requests]
    assert "no such table: the_" in prompts[1]
    assert "no such table: the_" in prompts[2]
    assert "no such table" not in prompts[3]

    result = TraceToRows(agent_match="write").adapt(outcome.spans)
    assert [row.agent_name for row in result.rows] == ["write_query", "rewrite_query"]
    assert [row.reward for row in result.rows] == [1, 1]
    assert result.ledger.reasons() == {"agent_not_selected": 2}
    assert len(TraceToRows(agent_match=None).adapt(outcome.spans).rows) == 4


async def test_right_query_ends_after_one_check(tasks: list[Any]) -> None:
    agent = scripts.sql_agent.LitSQLAgent()
    outcome = await play(agent, tasks[0], scripts.scripted_llm.scripted_reply(tasks))
    assert (outcome.reward, nodes(outcome)) == (1, ["write_query", "check_query"])


async def test_wrong_query_is_no_reward_and_turns_are_limited(tasks) -> None:
    def reply(request: dict[str, Any]) -> str:
        is_check = request["messages"][-1]["content"].startswith("You check")
        return "THE QUERY IS INCORRECT" if is_check else "SELECT name FROM singer"

    outcome = await play(scripts.sql_agent.LitSQLAgent(max_turns=3), tasks[0], reply)
    assert outcome.rollout.status == "succeeded"
    assert outcome.reward == 0
    assert nodes(outcome) == ["write_query", *["check_query", "rewrite_query"] * 2, "check_query"]
    # The reference stands in none of the prompts.
    assert not [r for r in outcome.requests if tasks[0]["private"]["query"] in json.dumps(r)]


async def test_harmful_query_is_answered_with_an_error(tasks: list[Any]) -> None:
    agent = scripts.sql_agent.LitSQLAgent(max_turns=1)
    outcome = await play(agent, tasks[0], lambda request: "DROP TABLE singer")
    assert outcome.reward == 0
    assert "not authorized" in outcome.requests[1]["messages"][-1]["content"]


async def test_model_that_cannot_be_reached_fails_the_attempt(tasks) -> None:
    agent = scripts.sql_agent.LitSQLAgent()
    outcome = await play(agent, tasks[0], lambda request: RawReply(500, b"{}"))
    assert outcome.rollout.status == "failed"
    assert outcome.reward is None


def test_agent_runs_alone(tasks: list[Any]) -> None:
    check_alone(FOLDER / "sql_agent.py", scripts.scripted_llm.scripted_reply(tasks))


def test_dev_runs_every_task_from_the_command_line() -> None:
    done = run_script(SCRIPT, "--dev", "--scripted", "--tasks", 6)
    lines = done.stdout.splitlines()
    assert lines[-1] == "6 of 6 tasks have a reward; 6 are right"
    rewritten = "learned: write_query, rewrite_query  left out: 2 agent_not_selected"
    assert sum(rewritten in line for line in lines) == 3


def test_dev_without_a_model_says_what_to_do() -> None:
    done = run_script(SCRIPT, "--dev", code=2)
    assert "OPENAI_BASE_URL" in done.stderr


def test_dev_takes_a_model_from_elsewhere(tasks: list[Any]) -> None:
    with EchoLLM(lambda request: "SELECT count(*) FROM flight") as llm:
        options = ("--dev", "--tasks", 2, "--model", "theirs")
        done = run_script(SCRIPT, *options, OPENAI_BASE_URL=llm.url)
    assert done.stdout.splitlines()[-1] == "2 of 2 tasks have a reward; 1 are right"
    assert {request["model"] for request in llm.requests} == {"theirs"}


@pytest.mark.slow
def test_tiny_model_learns_to_write_queries(tmp_path: Path) -> None:
    pytest.importorskip("agl_torch")
    run_script(SCRIPT, "tiny", "--steps", 10, "--out", tmp_path)
    steps = learned(tmp_path)
    assert len(steps) == 10
    for step in steps:  # every query that was written was checked
        assert step["calls/excluded/agent_not_selected"] == step["calls/total"] / 2
