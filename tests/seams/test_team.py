"""Several models in one run: what each of them keeps is found again."""

import aiohttp
import pytest

import agl
from agl.errors import ConfigError

pytest.importorskip("torch")

from .table_model import WORDS, build_model, build_tokenizer


@agl.rollout
async def both(task: str, one: agl.LLM, other: agl.LLM) -> float:
    async def ask(llm: agl.LLM) -> float:
        body = {"model": llm.model, "messages": [{"role": "user", "content": task}]}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
        ):
            answer = await response.json()
        return float(WORDS.index(answer["choices"][0]["message"]["content"].split()[0]))

    return await ask(one) + await ask(other)


def train(folder, **options):
    common = {"model": build_model, "tokenizer": build_tokenizer, "max_tokens": 1}
    common |= {"device": "cpu", "torch_threads": 1, "learning_rate": 1e-3}
    penalised = {"type": "grpo", "kl_coefficient": 0.01, **common}
    team = {
        "type": "agl_learning.team:Team",
        "models": {"one": penalised, "other": {"type": "reinforce++", **common}},
        "groups_per_step": 2,
        "group_size": 4,
        "show_progress": False,
        **options,
    }
    trainer = agl.Trainer(
        algorithm=team,
        store=agl.InMemoryLightningStore(),
        run_dir=folder,
        strategy="shm",
        n_runners=1,
        concurrency=8,
    )
    trainer.fit(both, ["red", "green"])
    return trainer.algorithm


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run of two models, one of which is compared with its start."""
    folder = tmp_path_factory.mktemp("team") / "run"
    train(folder, steps=2, checkpoint_every=1)
    return folder


def test_another_run_begins_from_a_checkpoint_with_the_start_of_each_model(ended, tmp_path):
    team = train(tmp_path / "other", steps=3, resume_from=str(ended / "checkpoints/step-000002"))
    assert team.summary["steps"] == 3
    assert (tmp_path / "other/one/reference/model.safetensors").is_file()


def test_a_start_that_is_gone_is_named_before_a_model_is_loaded(ended, tmp_path, monkeypatch):
    (ended / "one/reference").rename(tmp_path / "away")
    monkeypatch.setattr("agl_torch.models.load_model", None)
    try:
        with pytest.raises(ConfigError, match=r"run/one' has the folder 'reference'. Set kl_coeff"):
            train(ended, steps=3, resume_from=str(ended))
    finally:
        (tmp_path / "away").rename(ended / "one/reference")
