"""Every algorithm that is installed, made in Python with an option that it does not have."""

from inspect import signature

import pytest

import agl
from agl.errors import ConfigError, UnknownArgumentError
from agl.plugins.registry import load, names_in
from agl_learning import OnlineTraining

ASKED = {"base_url": "http://127.0.0.1:9/v1", "api_key": "k"}
OPTIONS = {
    "apo": ASKED,
    "gepa": ASKED,
    "baseline": {},
    "azure-sft": {
        "endpoint": "https://a.openai.azure.com",
        **{"base_deployment": "d", "base_model": "m", "subscription_id": "s"},
        "resource_group": "g",
    },
    "distillation": {"model": "org/m", "teacher": "org/m"},
    "team": {"models": {name: {"type": "grpo", "model": "org/m"} for name in "ab"}},
    "tinker": {"base_model": "m"},
    "verl": {"config": {}},
}
"""What those need that a model is not enough for."""


@pytest.mark.parametrize("name", names_in("agl.algorithms"))
def test_misspelt_option_is_refused_with_the_nearest(name):
    algorithm = load("agl.algorithms", name)
    option = max(signature(algorithm).parameters, key=len)
    expected = f"{algorithm.__name__}: unknown option '{option}x'. Did you mean '{option}'?"
    with pytest.raises(UnknownArgumentError) as found:
        algorithm(**{f"{option}x": 1})
    assert str(found.value) == expected


def test_misspelt_option_of_a_group_is_refused_with_the_nearest():
    evaluation = OnlineTraining.__dataclass_fields__["evaluation"].default
    with pytest.raises(UnknownArgumentError, match=r"option 'evry'. Did you mean 'every'\?"):
        type(evaluation)(evry=2)


@pytest.mark.parametrize("name", names_in("agl.algorithms"))
def test_run_without_tasks_is_refused_before_it_begins(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    algorithm = load("agl.algorithms", name)(**OPTIONS.get(name, {"model": "org/m"}))
    trainer = agl.Trainer(algorithm=algorithm, run="r")
    with pytest.raises(ConfigError, match=r"tasks|train_dataset"):
        trainer.fit(agl.rollout(lambda task: 1.0))
    assert not [*tmp_path.iterdir()]
