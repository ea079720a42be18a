"""What is listed by the indexes of a store's file is what reading all of it gives."""

import asyncio
import json
import math
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.stores import opened

from agl.errors import InvalidQueryError
from agl.types import Rollout
from agl_views.tables import rollout_table
from agl_views.tables.rollout_table import Wanted, ids_in, listed

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from filling import world, writing

pytestmark = pytest.mark.plugins


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path: Path = tmp_path_factory.mktemp("filled") / "store.db"
    writing.fill_store(path, world.Shape(rollouts=240, spans=4, runs=2, groups=2, group_size=5))
    asyncio.run(never_ended(path))
    return path


async def never_ended(path: Path) -> None:
    async with opened(path) as store:
        for number in range(9):
            await store.enqueue_rollout(number, mode=("train", "val")[number % 2])


@pytest.fixture
async def store(file):
    async with opened(file) as store:
        yield store


CASES = [
    Wanted(statuses=["failed", "cancelled"], most=5),
    Wanted(step=2, run="filled-00-2", mode="train", statuses=["succeeded"]),
    Wanted(step=10, mode="val", most=3),
    Wanted(task='"id": "shop-00'),
    Wanted(task="candles each", most=2),
    Wanted(below=0.3, most=5),
    Wanted(above=0.2, below=0.9, mode="train", statuses=["failed", "succeeded"]),
    Wanted(above=0.5, step=2, is_least=True, most=3),
    Wanted(sort="reward", most=6),
    Wanted(sort="reward", most=6, is_least=True, mode="train"),
    Wanted(sort="reward", below=0.7, step=2),
    Wanted(sort="reward", run="filled-00-1", most=4),
    Wanted(sort="seconds", most=4),
    Wanted(sort="seconds", most=4, is_least=True),
]


def most_first(rollouts: list[Rollout], wanted: Wanted) -> list[Rollout]:
    """In the plainest words: those that fit, the most first, or the least."""
    fitting = [one for one in rollouts if wanted.fits(one)]
    if wanted.sort == "reward":
        fitting.sort(key=lambda one: one.reward or 0.0)
    if wanted.sort == "seconds":
        fitting.sort(key=lambda one: (one.end_time or 0.0) - one.start_time)
    fitting = fitting if wanted.is_least else fitting[::-1]
    return fitting[: wanted.most]


@pytest.mark.parametrize("wanted", CASES, ids=repr)
async def test_listed_rollouts_are_those_that_reading_all_gives(store, wanted):
    every = list(await store.query_rollouts())
    expected = [one.rollout_id for one in most_first(every, wanted)]
    by_index = await listed(store, wanted)
    by_page = await rollout_table._by_contract(store, wanted)
    assert [one.rollout_id for one in by_index.rollouts] == expected
    assert [one.rollout_id for one in by_page.rollouts] == expected
    assert by_index.total in (None, sum(map(wanted.fits, every)))


async def no_file(store: object, question: object) -> None:
    return None


@pytest.mark.parametrize("is_file", [True, False])
async def test_what_has_no_reward_that_counts_is_not_sorted_by_it(store, monkeypatch, is_file):
    if not is_file:
        monkeypatch.setattr(rollout_table, "ask_file", no_file)
    wanted = Wanted(statuses=["failed", "cancelled"], sort="reward", most=5)
    with pytest.raises(InvalidQueryError, match=r"failed or cancelled have no reward"):
        await listed(store, wanted)
    assert (await listed(store, replace(wanted, statuses=["failed", "succeeded"]))).rollouts


def plans(connection: sqlite3.Connection, wanted: Wanted) -> str:
    """What SQLite says of how it goes about a list."""
    said, asked = list[str](), list[str]()
    connection.set_trace_callback(asked.append)
    ids_in(connection, wanted)
    connection.set_trace_callback(None)
    for sql in asked:
        if sql.startswith("SELECT"):
            said += [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
    return json.dumps(said)


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Wanted(step=2, run="filled-00-1", mode="train", most=20), "rollout_step"),
        (Wanted(step=2, statuses=["failed"], most=20), "rollout_step"),
        (Wanted(run="filled-00-1", most=20), "rollout_run"),
        (Wanted(run="filled-00-1", statuses=["succeeded"], most=20), "rollout_run"),
        (Wanted(mode="val", most=20), "rollout_mode"),
        (Wanted(statuses=["failed"], most=20), "rollout_status"),
        (Wanted(sort="reward", mode="val", most=2), "rollout_reward"),
        (Wanted(below=0.2, mode="val", most=2), "COVERING INDEX rollout_reward"),
        (Wanted(below=0.2, step=2, most=2), "rollout_step"),
        (Wanted(statuses=["failed"], beginning="ro-1", most=2), "PRIMARY KEY (rowid>? AND"),
    ],
    ids=repr,
)
def test_lists_go_by_an_index(file, wanted, index):
    with closing(sqlite3.connect(file)) as connection:
        assert index in plans(connection, wanted)


@pytest.mark.parametrize(("many", "index"), [(1000, "rollout_run"), (2, "rollout_reward")])
def test_a_run_is_sorted_by_an_index(file, monkeypatch, many, index):
    monkeypatch.setattr(rollout_table, "MANY", many)
    wanted = Wanted(run="filled-00-1", most=3, sort="reward")
    with closing(sqlite3.connect(file)) as connection:
        page = plans(connection, wanted).rpartition("USING INDEX ")[2]
    assert page.startswith(index)


ORDERS = [
    *(("time", True), ("time", False), ("ended", False), ("status", True)),
    *(("reward", False), ("reward", True)),
]


async def paged(ask, store, wanted: Wanted, is_counted: bool = False) -> list[str]:
    """All pages of seven rows, one after the other."""
    ids: list[str] = []
    totals = set()
    while True:
        found = await ask(store, replace(wanted, most=7, after=ids[-1] if ids else None))
        totals.add(found.total)
        if not found.rollouts:
            assert totals in ({len(ids)}, {len(ids) if is_counted else None})
            return ids
        ids += [one.rollout_id for one in found.rollouts]


@pytest.mark.parametrize("many", [None, 2])
@pytest.mark.parametrize(
    "about",
    [
        *({}, {"mode": "train"}, {"statuses": ["queuing", "succeeded"]}, {"step": 99}),
        *({"run": "filled-00-1"}, {"statuses": ["failed", "succeeded"], "step": 2}),
        *(
            {"below": 0.6, "above": 0.1, "mode": "train"},
            {"step": 2, "mode": "train", "above": 0.0, "below": 0.8},
        ),
        {"statuses": ["succeeded"], "mode": "train", "run": "filled-00-1", "above": 0.0},
    ],
    ids=str,
)
async def test_each_order_has_the_same_rows_with_or_without_a_file(store, monkeypatch, about, many):
    if many:
        monkeypatch.setattr(rollout_table, "MANY", many)
    by_id = {one.rollout_id: one for one in await store.query_rollouts()}
    for sort, is_least in ORDERS:
        wanted = Wanted(**about, sort=sort, is_least=is_least)
        ids = await paged(listed, store, wanted, is_counted=not many and sort == "time")
        assert await paged(rollout_table._by_contract, store, wanted) == ids
        rows = [by_id[one] for one in ids]
        every = [one for one in by_id.values() if wanted.fits(one)]
        every = [one for one in every if sort != "reward" or one.reward is not None]
        assert sorted(ids) == sorted(one.rollout_id for one in every)
        assert sort != "time" or ids == sorted(ids, key=[*by_id].index, reverse=not is_least)
        keys = {
            "ended": [-(one.end_time or math.inf) for one in rows],
            "status": [one.status for one in rows],
            "reward": [(one.reward or 0.0) * (1 if is_least else -1) for one in rows],
        }.get(sort, [])
        assert keys == sorted(keys)


async def test_a_page_of_ids_with_a_beginning(store, file):
    ids = [one.rollout_id for one in await store.query_rollouts(sort_order="desc")]
    with closing(sqlite3.connect(file)) as connection:
        fixed = ("", "r", "ro-", "ro-1", "ro-a", "ro-2f", "ro-0", "x")
        for beginning in (*fixed, ids[3], ids[3][:-2]):
            is_whole = "ro-".startswith(beginning) or beginning.startswith("ro-")
            full = beginning if is_whole else f"ro-{beginning}"
            expected = [one for one in ids if one.startswith(full)]
            found = ids_in(connection, Wanted(beginning=beginning))
            assert found == (expected, len(expected)), beginning
            wanted = Wanted(beginning=beginning)
            assert await paged(rollout_table._by_contract, store, wanted) == expected, beginning
        failed = [one.rollout_id for one in await store.query_rollouts(status_in=["failed"])]
        wanted = Wanted(statuses=["failed"], most=3, beginning="ro-1", is_least=True)
        found = ids_in(connection, wanted)
        expected = [one for one in failed if one.startswith("ro-1")]
        assert found == (expected[:3], len(expected))


async def test_limits_of_rewards_are_not_among_them(store):
    every = [one.reward for one in await store.query_rollouts() if one.reward is not None]
    lowest, low, *_, high, highest = sorted(set(every))
    for wanted, expected in ((Wanted(below=low), lowest), (Wanted(above=high), highest)):
        assert {one.reward for one in (await listed(store, wanted)).rollouts} == {expected}


async def test_many_that_no_index_counts_are_not_counted(store, file, monkeypatch):
    monkeypatch.setattr(rollout_table, "MANY", 20)
    number = (await store.query_rollouts(status_in=["succeeded"])).total
    assert number > 20
    with closing(sqlite3.connect(file)) as connection:
        assert ids_in(connection, Wanted(statuses=["succeeded"], most=5))[1] == number
        assert ids_in(connection, Wanted(statuses=["succeeded"], mode="train", most=5))[1] is None
        number = (await store.query_rollouts(reward_above=0.0)).total
        assert number > 20
        assert ids_in(connection, Wanted(above=0.0, most=5))[1] == number
        assert ids_in(connection, Wanted(above=0.0, run="filled-00-1", most=5))[1] is None
