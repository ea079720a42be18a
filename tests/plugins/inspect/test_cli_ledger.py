"""``agl ledger``: sums per step out of a real store."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.run_project import succeeds

from agl import Credit, Exclusion, Ledger, LedgerPart, ModelCall, TrainingRow
from agl.algorithm.run_result import RunResult
from agl.store.base import LightningStore
from agl_learning.hooks import run_summary
from agl_records.ledger import tables
from agl_records.ledger.documents import put_parts
from agl_records.ledger.ledger import save_ledger
from agl_records.types import LedgerItem
from agl_runs.records import RunStart
from agl_runs.store import begin_run

from .traces import add, filled, ids_of


async def one_step(
    store: LightningStore, step: int, trained: int, excluded: int, run: str = "r"
) -> None:
    """A step of one rollout with so many trained and excluded calls."""
    about = {"run": run, "step": step}
    ended = await add(store, [], task="x", metadata=about)
    ledger, ids = Ledger(), ids_of(ended)
    for number in range(trained + excluded):
        call_id = f"{number:016x}"
        ledger.add_call(ModelCall(call_id=call_id, sequence_id=number + 1, **ids))
        if number < trained:
            tokens = {"token_ids": [1, 2], "loss_mask": [0, 1], "logprobs": [0.0, -0.5]}
            of_call = {"call_ids": [call_id], "call_ranges": [(1, 2)]}
            ledger.train(TrainingRow(**tokens, **of_call, credits=[Credit(reward=1.0)], **ids))
        else:
            detail = "the answer has no token ids"
            ledger.exclude(Exclusion(call_id=call_id, reason="no_token_ids", detail=detail, **ids))
    await save_ledger(store, ledger, [ended], step=step, algorithm="toy", run=run)


def make_store(folder: Path, steps: int = 2) -> Path:
    async def fill(store: Any) -> None:
        for step in range(1, steps + 1):
            await one_step(store, step, trained=2, excluded=step)
        await store.enqueue_rollout("never run")

    folder.mkdir(exist_ok=True)
    filled(fill, folder / "store.db")
    return folder


def test_rollouts_in_no_account_are_counted(agl, tmp_path):
    said = succeeds(agl, "ledger", str(make_store(tmp_path))).err
    said = " ".join(said.split())
    assert "1 rollouts that no step has counted: 1 of no step. See: agl rollouts --step N" in said


def test_a_run_whose_algorithm_keeps_no_ledger_is_told_as_that(agl, tmp_path):
    filled(lambda store: store.enqueue_rollout("never run"), tmp_path / "store.db")
    _, out, err = succeeds(agl, "ledger", str(tmp_path))
    assert (out, err[:46]) == ("", "1 rollouts, and none is in an account: an algo")


def test_lost_accounts_and_earlier_rollouts_are_told_beside_those_in_none(agl, here, monkeypatch):
    async def fill(store: Any) -> None:
        for _ in range(2):
            await store.enqueue_rollout("never run")
        ended = await add(store, [], task="x")
        item = LedgerItem(kind="rollout", rollout_id=ended.rollout_id)
        part = {"rollout_id": ended.rollout_id, "run": "r", "step": 1, "lost": True}
        await put_parts(store, [LedgerPart(**part, items=[item])])

    filled(fill, here / "s.db")
    err = succeeds(agl, "ledger", "--path", "s.db").err
    assert "2 rollouts that no step has counted: 2 of no step." in err
    assert "1 accounts are in no sum" in err
    monkeypatch.setattr(tables, "MOST_ACCOUNTS", 1)
    err = succeeds(agl, "ledger", "--path", "s.db", "--all").err
    assert "2 rollouts that no step has counted: 2 of earlier rollouts." in err


async def test_end_of_a_run_counts_steps_it_does_not_read(memory_store, monkeypatch, capsys):
    monkeypatch.setattr(tables, "MOST_ACCOUNTS", 12)
    for step in range(1, 23):
        await one_step(memory_store, step, trained=1, excluded=0)
    await memory_store.enqueue_rollout("never run")
    said = ((await tables.Accounts.read_newest(memory_store)).ending() or "").splitlines()
    assert said[0] == "ledger       the last 10 of 22 steps"
    assert [line.split()[0] for line in said[3:]] == [*map(str, range(13, 23)), "these"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("most", [1000, 3])
def test_of_several_runs_in_a_store_one_can_be_asked_for(agl, here, monkeypatch, most):
    monkeypatch.setattr(tables, "MOST_ACCOUNTS", most)
    ended: list[str] = []

    async def fill(store: Any) -> None:
        for name, excluded in (("run-one", 1), ("run-two", 2)):
            await begin_run(store, RunStart(run_id=name, algorithm="toy"))
            for step in (1, 2):
                await one_step(store, step, trained=1, excluded=excluded, run=name)
            await store.enqueue_rollout("never run", metadata={"run": name})
        await run_summary(store, RunResult(run_id="run-one"), ended)

    filled(fill, here / "all.db")
    for name, calls in (("run-one", "4 2 2 2"), ("run-two", "6 2 4 4")):
        _, out, err = succeeds(agl, "ledger", name, "--path", "all.db")
        assert "1 rollouts that no step has counted" in err
        total = " ".join(out.splitlines()[-1].split())
        assert f" 2 2 {calls} no_token_ids" in total, out
    assert " 2 2 4 2 2 " in " ".join(ended[-1].splitlines()[-1].split())


def test_the_rollouts_of_each_row_add_up(agl, tmp_path):
    async def fill(store: Any) -> None:
        await one_step(store, 1, trained=1, excluded=1)
        for reason in ("failed_attempt", "not_run", "failed_attempt"):  # before any call
            rollout = await store.start_rollout(input="y", mode="train")
            ledger = Ledger()
            ledger.add_rollout(rollout.rollout_id)
            exclusion = Exclusion(kind="rollout", rollout_id=rollout.rollout_id, reason=reason)
            ledger.exclude(exclusion)
            await save_ledger(store, ledger, [rollout], step=1, algorithm="toy", run="r")

    filled(fill, tmp_path / "store.db")
    lines = agl("ledger", str(tmp_path)).out.splitlines()
    assert [" ".join(line.split()) for line in lines[2:]] == [
        f"{step} 4 1 2 1 1 1 no_token_ids; rollouts: 2 failed_attempt, 1 not_run"
        for step in ("1 train", "total")
    ]


def test_one_step_lists_each_excluded_call(agl, tmp_path):
    result = agl("ledger", str(make_store(tmp_path) / "store.db"), "--step", "2")
    listed = [line for line in result.out.splitlines() if "the answer has no token ids" in line]
    assert len(listed) == 2
    assert all(line.startswith("ro-") for line in listed)


def test_json_has_sums_and_parts(agl, tmp_path):
    value = json.loads(agl("ledger", str(make_store(tmp_path)), "--step", "1", "--json").out)
    (step,) = value["steps"]
    assert (step["algorithm"], step["step"], step["mode"]) == ("toy", 1, "train")
    assert step["calls"] == {"total": 3, "trained": 2, "excluded": {"no_token_ids": 1}}
    (part,) = value["parts"]
    assert len(part["items"]) == 4  # three calls and their rollout


def test_a_step_that_is_not_there_is_a_wrong_request(agl, tmp_path):
    result = agl("ledger", str(make_store(tmp_path)), "--step", "9")
    said = "agl: the store has no account of step 9, which has not ended, or is none. Its rollouts"
    assert result == (2, "", f"{said}, if it has some: agl rollouts --step 9\n")


def test_a_stored_imbalance_is_an_error_that_shows_both_sides(agl, tmp_path):
    folder = make_store(tmp_path)

    async def add_wrong_part(store: Any) -> None:
        rollout = await store.start_rollout(input="x")
        wrong = LedgerItem(rollout_id=rollout.rollout_id, attempt_id="at", call_id="c")
        part = LedgerPart(rollout_id=rollout.rollout_id, step=3, items=[wrong])
        await put_parts(store, [part])

    filled(add_wrong_part, folder / "store.db")
    result = agl("ledger", str(folder))
    assert result.code == 1
    assert "ledger does not balance: 1 calls, 0 trained, 0 excluded" in result.err
    assert "total" in result.out  # the others are shown all the same
