"""The table of rollouts: the same filter gives the same rows, in whatever order, of any store."""

import itertools
import urllib.error
import urllib.request

import pytest

import agl
from agl_ui.data_sources import DataSource
from agl_ui.pages.rollouts import SORTS, _by_contract, _by_index
from agl_ui.read_only_store import ReadOnlyStore
from agl_views.tables.file_store import FileStore
from agl_views.tables.rollout_table import Wanted

from .stores import apart, reward_span

FILTERS = {
    "all": Wanted(),
    "a step": Wanted(step=1),
    "a step of a run": Wanted(step=1, run="odd"),
    "a step and a mode": Wanted(step=1, mode="val"),
    "a mode": Wanted(mode="train"),
    "statuses": Wanted(["queuing", "succeeded"]),
    "both": Wanted(["queuing", "failed", "cancelled"], "train"),
    "none": Wanted(step=9),
    "low": Wanted(below=0.5),
    "a run": Wanted(run="odd"),
    "rewards of a run and a mode": Wanted(["succeeded"], "train", run="odd", above=0.0),
    "rewards of a step and a mode": Wanted(step=2, mode="train", above=0.0, below=0.8),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A store of 40 rollouts of each status and mode, in which nobody has accounted for any."""
    path = tmp_path_factory.mktemp("rollouts") / "store.db"

    async def fill():
        store = agl.SqliteLightningStore(path, durability="process")
        for number in range(40):
            about = {"mode": ("train", "val")[number % 3 == 0], "metadata": {"step": number % 4}}
            about["metadata"]["run"] = ("even", "odd")[number // 4 % 2]
            if number % 5 == 0:
                await store.enqueue_rollout(number, **about)
                continue
            rollout = await store.start_rollout(number, **about)
            if number % 5 < 3:
                status = ("succeeded", "failed")[number % 2]
                await store.add_span(reward_span(rollout, number % 3 / 2))
                await store.update_attempt(rollout.rollout_id, "latest", status=status)
            elif number % 5 == 3:
                await store.update_rollout(rollout.rollout_id, status="cancelled")
        await store.close()

    apart(fill())
    return path


async def paged(ask, source, wanted, sort, beginning=""):
    """All pages of three rows, one after the other, and how many there are to be."""
    ids, totals, after = [], set(), None
    by = "reward" if SORTS[sort][1] == "reward" else "time"
    while True:
        found = await ask(
            source, Wanted(**{**vars(wanted), "most": 3, "sort": by}), sort, beginning, after
        )
        totals.add(found.total)
        if not found.rollouts:
            assert len(totals) == 1
            return ids, totals.pop()
        ids += [one.rollout_id for one in found.rollouts]
        after = ids[-1]


@pytest.mark.parametrize("wanted", FILTERS)
async def test_each_order_has_the_same_rows_with_and_without_a_file(file, wanted):
    at_hand = FileStore(file)
    of_file = DataSource("f", "f", ReadOnlyStore(at_hand), file, at_hand)
    of_server = DataSource("s", "s", ReadOnlyStore(agl.SqliteLightningStore(file)))
    whole = [one for one in await of_file.store.query_rollouts() if FILTERS[wanted].fits(one)]
    rows = {}
    for sort in SORTS:
        rows[sort], total = await paged(_by_index, of_file, FILTERS[wanted], sort)
        assert await paged(_by_contract, of_server, FILTERS[wanted], sort) == (rows[sort], total)
        is_by_reward = sort in ("reward", "lowest")
        found = [one for one in whole if one.reward is not None or not is_by_reward]
        assert sorted(rows[sort]) == sorted(one.rollout_id for one in found)
        assert total == len(found)
    assert rows["newest"] == rows["oldest"][::-1]
    assert rows["reward"] == rows["lowest"][::-1]
    by_id = {one.rollout_id: one for one in whole}
    ends = [by_id[one].end_time or float("inf") for one in rows["ended"]]
    assert ends == sorted(ends, reverse=True)
    statuses = [by_id[one].status for one in rows["status"]]
    assert statuses == sorted(statuses)
    rewards = [by_id[one].reward for one in rows["lowest"]]
    assert rewards == sorted(rewards)
    for source in (of_file, of_server):
        await source.store.close()


async def test_large_stores_are_sorted_the_same(file, monkeypatch):
    at_hand = FileStore(file)
    source = DataSource("f", "f", ReadOnlyStore(at_hand), file, at_hand)
    sorts = list(itertools.product(FILTERS, ("ended", "status", "reward", "lowest")))
    few = [(await paged(_by_index, source, FILTERS[one], sort))[0] for one, sort in sorts]
    monkeypatch.setattr("agl_views.tables.rollout_table.MANY", 2)
    many = [(await paged(_by_index, source, FILTERS[one], sort))[0] for one, sort in sorts]
    assert few == many
    await source.store.close()


async def test_an_id_is_looked_for_by_its_beginning_alone(file):
    at_hand = FileStore(file)
    of_file = DataSource("f", "f", ReadOnlyStore(at_hand), file, at_hand)
    of_server = DataSource("s", "s", ReadOnlyStore(agl.SqliteLightningStore(file)))
    ids = [one.rollout_id for one in await of_file.store.query_rollouts()]
    one = ids[20]
    for given in (one, one[:5], one.removeprefix("ro-"), one[3:5], "ro", one[5:], "x"):
        full = given if "ro-".startswith(given) or given.startswith("ro-") else f"ro-{given}"
        expected = [each for each in ids if each.startswith(full)]
        for ask, source in ((_by_index, of_file), (_by_contract, of_server)):
            found = await paged(ask, source, Wanted(), "oldest", given)
            assert found == (expected, len(expected)), given
    for source in (of_file, of_server):
        await source.store.close()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sort=ended&id=ro-1", "no index has both"),
        ("sort=reward&step=1&id=1", "no index has both"),
        ("sort=lowest&status=failed", "failed have no reward"),
        ("below=much", "expected a number"),
        ("above=nan", "expected a number"),
        ("after=nope", "the store has no such rollout"),
        ("after=nope&sort=status", "the store has no such rollout"),
        ("step=1&step=2", "step is given 2 times"),
        ("foo=bar", "there is no foo"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(serve, file, query, said):
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{serve(file)}/s/{file.parent.name}/rollouts?{query}")
    assert told.value.code == 400
    assert said in told.value.read().decode()
