"""Several models in one run: what each of them keeps is found again, also after a kill."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from tests import fork_server
from tests.step_records import step_records
from tests.stores import ask

import agl
from agl.errors import ConfigError
from agl_learning.reports.diagnostics import Finding
from agl_records.ledger.tables import Accounts
from agl_views.explanations.explanation import explain
from agl_views.explanations.token_explanation import explain_token

pytest.importorskip("torch")

from agl_runs.replay import replay
from agl_runs.store import query_runs

from .team_run import agent_of, trainer_of

SCRIPT = Path(__file__).with_name("team_run.py")
OF_A_STEP = 2 * 4


def train(folder, store=None, asks_both=True, **options):
    trainer = trainer_of(folder, store or agl.InMemoryLightningStore(), **options)
    trainer.fit(agent_of(asks_both=asks_both), ["red", "green"])
    return trainer.algorithm


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run of two models, one of which is compared with its start."""
    folder = tmp_path_factory.mktemp("team") / "run"
    store = agl.SqliteLightningStore(folder.parent / "store.db")
    train(folder, store, steps=2, checkpoints=1, deterministic=True)
    asyncio.run(store.close())
    return folder


def test_another_run_begins_from_a_checkpoint_with_the_start_of_each_model(ended, tmp_path):
    origin = str(ended / "checkpoints/step-000002")
    team = train(tmp_path / "other", steps=3, resume_from=origin, deterministic=True)
    assert team.summary["steps"] == 3
    assert (tmp_path / "other/one/reference/model.safetensors").is_file()


def test_a_start_that_is_gone_is_named_before_a_model_is_loaded(ended, tmp_path, monkeypatch):
    (ended / "one/reference").rename(tmp_path / "away")
    monkeypatch.setattr("agl_torch.models.load_model", None)
    try:
        with pytest.raises(ConfigError, match=r"run/one' has the folder 'reference'. Set kl.coeff"):
            train(ended, steps=3, resume_from=str(ended), deterministic=True)
    finally:
        (tmp_path / "away").rename(ended / "one/reference")


def test_a_model_that_is_never_asked_is_named_and_the_other_learns(tmp_path):
    train(tmp_path, steps=3, asks_both=False)
    found = [(one.code, one.model) for one in Finding.read(tmp_path)[0]]
    assert found == [("no_calls", "other")]
    *_, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (last["one/calls/total"], last["other/calls/total"]) == (OF_A_STEP, 0)
    assert (last["one/prompts/different"], last["one/prompts/as_tokens"]) == (2, 2)
    assert "other/prompts/different" not in last


@pytest.mark.parametrize(("step", "begun_at"), [(1, 0), (2, 1)])
def test_a_step_of_all_models_trained_again_is_equal_bit_for_bit(ended, step, begun_at):
    store = agl.SqliteLightningStore(ended.parent / "store.db")
    trainer = trainer_of(ended, store, steps=2, checkpoints=1, deterministic=True)
    found = replay(trainer, agent_of(), step)
    asyncio.run(store.close())
    assert (found.begun_at, found.is_exact, found.first_difference) == (begun_at, True, None)
    same = {one.what: one.same for one in found.compared}
    assert set(same.values()) == {True}
    compared = {"rows trained", "advantages", "one/loss/total", "other/grad_norm"}
    assert same.keys() >= {*compared, f"weights after step {step}"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_run_of_several_models_goes_on_and_comes_to_the_same(tmp_path):
    options = {"steps": 4, "checkpoints": 2, "deterministic": True}

    def run(folder, **more):
        folder.mkdir(exist_ok=True)
        return fork_server.run([SCRIPT, folder, json.dumps({**options, **more})])

    def weights(folder):
        records = asyncio.run(step_records(folder / "store.db"))
        return {place: one["weights"] for place, one in records.items() if place[0] == "t"}

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert (done := run(whole)).returncode == 0, done.stderr[-3000:]
    # In step 4: what step 3 had collected after the checkpoint is trained again.
    killed = run(cut, kill_at=2 * 3 * OF_A_STEP + 3)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert (done := run(cut)).returncode == 0, done.stderr[-3000:]
    assert weights(cut) == weights(whole)
    assert all("/" in one for one in weights(whole).values())  # of both models
    accounts = ask(cut / "store.db", Accounts.read)
    assert (accounts.problems, accounts.without) == ([], 0)
    summary = json.loads((cut / "run/summary.json").read_text())
    calls = accounts.total.as_json()["calls"]
    assert (calls["total"], calls["trained"]) == (summary["calls"], summary["calls_trained"])
    assert sum(calls["excluded"].values()) + calls["trained"] == calls["total"]


def test_a_token_is_explained_by_the_algorithm_of_its_model(tmp_path):
    store = agl.InMemoryLightningStore()
    train(tmp_path / "run", store, steps=1)

    async def terms_by_model():
        (run,) = await query_runs(store)
        recorded = run.config["algorithm"]["models"]["one"]
        assert recorded["model"].endswith("table_model.build_model")
        rollout = (await store.query_rollouts())[0]
        chain = await explain(store, rollout.rollout_id)
        return {
            call.served_model: {
                term.name: term.because
                for term in (await explain_token(store, chain, call.call_id, 0)).terms
            }
            for call in chain.calls.values()
        }

    told = asyncio.run(terms_by_model())
    assert "baseline" in told["one"], told
    assert "reinforce_plus_plus" in told["other"]["estimator"]
    for one in told.values():
        assert "the ratio is 1" in one["clip"]
        assert "its model alone" in one["length"]
