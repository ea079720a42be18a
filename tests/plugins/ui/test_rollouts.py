"""The table of rollouts: the same filter gives the same rows, in whatever order, of any store."""

import itertools

import pytest

from agl_ui.pages.rollouts import SORTS
from agl_views.tables.file_store import FileStore
from agl_views.tables.rollout_table import Wanted, _by_contract, listed

from .stores import filled, read, reward_span

FILTERS = {
    "all": Wanted(),
    "a step": Wanted(step=1),
    "a step of a run": Wanted(step=1, run="odd"),
    "a step and a mode": Wanted(step=1, mode="val"),
    "a mode": Wanted(mode="train"),
    "statuses": Wanted(["queuing", "succeeded"]),
    "both": Wanted(["queuing", "succeeded", "cancelled"], "train"),
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

    async def fill(store):
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

    filled(path, fill)
    return path


async def paged(ask, store, wanted, sort):
    """All pages of three rows, one after the other, and how many there are to be."""
    ids, totals, after = [], set(), None
    _, by, is_least = SORTS[sort]
    while True:
        page = {"most": 3, "sort": by, "is_least": is_least, "after": after}
        found = await ask(store, Wanted(**{**vars(wanted), **page}))
        totals.add(found.total)
        if not found.rollouts:
            assert len(totals) == 1
            return ids, totals.pop()
        ids += [one.rollout_id for one in found.rollouts]
        after = ids[-1]


@pytest.mark.parametrize("wanted", FILTERS)
async def test_each_order_has_the_same_rows_with_and_without_a_file(file, wanted):
    store = FileStore(file)
    whole = [one for one in await store.query_rollouts() if FILTERS[wanted].fits(one)]
    rows = {}
    for sort in SORTS:
        rows[sort], total = await paged(listed, store, FILTERS[wanted], sort)
        assert await paged(_by_contract, store, FILTERS[wanted], sort) == (rows[sort], total)
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
    await store.close()


async def test_large_stores_are_sorted_the_same(file, monkeypatch):
    store = FileStore(file)
    sorts = list(itertools.product(FILTERS, ("ended", "status", "reward", "lowest")))
    few = [(await paged(listed, store, FILTERS[one], sort))[0] for one, sort in sorts]
    monkeypatch.setattr("agl_views.tables.rollout_table.MANY", 2)
    many = [(await paged(listed, store, FILTERS[one], sort))[0] for one, sort in sorts]
    assert few == many
    await store.close()


async def test_an_id_is_looked_for_by_its_beginning_alone(file):
    store = FileStore(file)
    ids = [one.rollout_id for one in await store.query_rollouts()]
    one = ids[20]
    for given in (one, one[:5], one.removeprefix("ro-"), one[3:5], "ro", one[5:], "x"):
        full = given if "ro-".startswith(given) or given.startswith("ro-") else f"ro-{given}"
        expected = [each for each in ids if each.startswith(full)]
        for ask in (listed, _by_contract):
            found = await paged(ask, store, Wanted(beginning=given), "oldest")
            assert found == (expected, len(expected)), given
    await store.close()


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
    status, text = read(f"{serve(file)}/s/{file.parent.name}/rollouts?{query}")
    assert status == 400
    assert said in text
