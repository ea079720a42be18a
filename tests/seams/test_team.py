"""Several models in one run: what each of them keeps is found again."""

import asyncio

import pytest

import agl
from agl.errors import ConfigError

pytest.importorskip("torch")

from .team_run import agent_of, trainer_of


def train(folder, store=None, **options):
    trainer = trainer_of(folder, store or agl.InMemoryLightningStore(), **options)
    trainer.fit(agent_of(), ["red", "green"])
    return trainer.algorithm


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run of two models, one of which is compared with its start."""
    folder = tmp_path_factory.mktemp("team") / "run"
    store = agl.SqliteLightningStore(folder.parent / "store.db")
    train(folder, store, steps=2, checkpoint_every=1, deterministic=True)
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
        with pytest.raises(ConfigError, match=r"run/one' has the folder 'reference'. Set kl_coeff"):
            train(ended, steps=3, resume_from=str(ended), deterministic=True)
    finally:
        (tmp_path / "away").rename(ended / "one/reference")


@pytest.mark.parametrize(("step", "begun_at"), [(1, 0), (2, 1)])
def test_a_step_of_all_models_trained_again_is_equal_bit_for_bit(ended, step, begun_at):
    store = agl.SqliteLightningStore(ended.parent / "store.db")
    trainer = trainer_of(ended, store, steps=2, checkpoint_every=1, deterministic=True)
    found = trainer.replay(agent_of(), step)
    asyncio.run(store.close())
    assert (found.begun_at, found.is_exact, found.first_difference) == (begun_at, True, None)
    same = {one.what: one.same for one in found.compared}
    assert set(same.values()) == {True}
    compared = {"rows trained", "advantages", "one/loss/total", "other/grad_norm"}
    assert same.keys() >= {*compared, f"weights after step {step}"}
