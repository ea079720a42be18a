"""Which accounts of a large store are read, and what is read again."""

import pytest

import agl
from agl_learning.run.folder import mark_lost
from agl_records.ledger.documents import put_parts
from agl_records.types import Credit, Exclusion, LedgerItem, LedgerPart
from agl_runs.records import RunStart
from agl_runs.store import begin_run
from agl_ui import accounts
from agl_ui.accounts import accounts_of
from agl_ui.data_sources import DataSource

RUN = "long"


@pytest.fixture
async def store():
    """A store with a run of 20 steps, each of four rollouts."""
    store = agl.InMemoryLightningStore()
    await begin_run(store, RunStart(run_id=RUN, algorithm="grpo"))
    for step in range(20):
        await add(store, step)
    return store


async def add(store, step, number=4):
    """Rollouts of a step, each with its account."""
    for _ in range(number):
        rollout = await store.enqueue_rollout("t", metadata={"run": RUN, "step": step})
        of, call = {"rollout_id": rollout.rollout_id}, {"kind": "call", "call_id": "c"}
        credit = Credit(reward=step / 20, rule="final")
        items = [LedgerItem(kind="rollout", **of), LedgerItem(**of, **call)]
        excluded = [Exclusion(**of, **call, reason="zero_advantage", credit=credit)]
        about = {"run": RUN, "algorithm": "grpo", "step": step, "mode": "train"}
        await put_parts(store, [LedgerPart(**of, **about, items=items, excluded=excluded)])


def steps_of(known):
    """The steps that are read, with how many calls."""
    return {step: sums["calls", "total"] for (_, _, step, _), sums in known.steps.items()}


async def test_the_newest_steps_come_first_and_then_those_before(store, monkeypatch):
    monkeypatch.setattr(accounts, "FEW", 10)
    monkeypatch.setattr(accounts, "AT_ONCE", 10)
    source = DataSource("s", "s", store)
    known = await accounts_of(source, RUN, None)
    assert known.problems == []
    assert steps_of(known) == {19: 4, 18: 4}
    assert known.rewards(RUN) == {18: pytest.approx(0.9), 19: pytest.approx(0.95)}
    read = known.num_read, known.num_stored, known.is_read, source.reading
    assert read == (8, 80, False, 1)
    # What comes meanwhile: more of the step that was the last, and another one.
    await add(store, 19, 1)
    await add(store, 20)
    known = await accounts_of(source, RUN, None)
    assert steps_of(known) == {20: 4, 19: 5, 18: 4}
    while not known.is_read:
        before = source.reading
        known = await accounts_of(source, RUN, None)
        assert source.reading > before or known.is_read
    assert known.num_read == known.num_stored == 85
    # And nothing twice.
    assert sum(steps_of(known).values()) == 85


async def test_of_a_long_run_only_the_newest_steps_are_read(store, monkeypatch):
    monkeypatch.setattr(accounts, "FEW", 10)
    monkeypatch.setattr(accounts, "BARS", 7)
    source = DataSource("s", "s", store)
    known = await accounts_of(source, RUN, 19)
    while not known.is_read:
        known = await accounts_of(source, RUN, 19)
    assert list(steps_of(known)) == [19, 18, 17, 16, 15, 14, 13]


async def test_a_small_store_is_read_whole_and_then_only_what_has_come(store):
    source = DataSource("s", "s", store)
    assert (await accounts_of(source, RUN, None)).num_read == 80
    await add(store, 20)
    known = await accounts_of(source, RUN, None)
    assert (known.num_read, steps_of(known)[20]) == (84, 4)


async def test_what_a_start_goes_back_behind_is_read_anew(store):
    source = DataSource("s", "s", store)
    await accounts_of(source, RUN, None)
    await begin_run(store, RunStart(run_id=RUN, algorithm="grpo"))
    await accounts_of(source, RUN, None)  # an open page looks before the start has marked them
    await mark_lost(store, RUN, lambda part: (part.step or 0) > 17)
    known = await accounts_of(source, RUN, None)
    assert steps_of(known) == dict.fromkeys(range(18), 4)
    assert known.lost == 8
