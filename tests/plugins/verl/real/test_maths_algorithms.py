"""One name chooses estimator, critic and loss; verl takes what it stands for."""

from typing import Any

import pytest

from agl.errors import ConfigError
from agl_verl.algorithms import (
    ALGORITHMS,
    ALIASES,
    LOSS_MEAN,
    REFUSED,
    translate_loss_mean,
    verl_algorithm,
)
from agl_verl.configuration import with_algorithm


def get(config: Any, path: str) -> Any:
    for key in path.split("."):
        config = config[key]
    return config


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_verls_names_mean_the_same(alias: str, name: str) -> None:
    assert verl_algorithm(alias) is ALGORITHMS[name]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_name_says_why(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is refused: .{20}"):
        verl_algorithm(name)


def test_no_name_is_in_two_lists() -> None:
    assert not set(ALGORITHMS) & set(ALIASES) | set(ALGORITHMS) & set(REFUSED)
    assert set(ALIASES.values()) <= set(ALGORITHMS)


def test_a_setting_that_makes_it_another_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dr_grpo.*norm_adv_by_std_in_grpo=False.*True"):
        with_algorithm({"algorithm": {"norm_adv_by_std_in_grpo": True}}, "dr_grpo")


def test_bounds_may_be_tuned() -> None:
    config = {"actor_rollout_ref": {"actor": {"clip_ratio_high": 0.01}}}
    with_algorithm(config, "gspo")
    assert config["actor_rollout_ref"]["actor"]["clip_ratio_high"] == 0.01
    assert config["actor_rollout_ref"]["actor"]["clip_ratio_low"] == 3e-4


@pytest.mark.parametrize(
    ("mode", "mean"),
    [
        ("token-mean", "token"),
        ("seq-mean-token-mean", "rollout"),
        ("seq-mean-token-sum-norm", "constant"),
    ],
)
def test_a_given_loss_agg_mode_is_taken_over_rollouts(mode: str, mean: str) -> None:
    config: dict[str, Any] = {"actor_rollout_ref": {"actor": {"loss_agg_mode": mode}}}
    with_algorithm(config, "grpo")
    assert get(config, LOSS_MEAN) == mean


def asking(mode: str, mean: str) -> dict[str, Any]:
    """For two ways at once."""
    rollout = {"custom": {"agl_loss_mean": mean}}
    return {"actor_rollout_ref": {"actor": {"loss_agg_mode": mode}, "rollout": rollout}}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"actor_rollout_ref": {"actor": {"loss_agg_mode": "token-sum"}}}, "no counterpart"),
        ({"critic": {"loss_agg_mode": "token-mean"}}, "weighs tokens as the actor does"),
        (asking("token-mean", "rollout"), "say it in one place"),
    ],
)
def test_a_loss_agg_mode_that_would_be_ignored_is_refused(config: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        translate_loss_mean(config)


def test_verls_own_weighing_can_be_asked_for() -> None:
    config = {**asking("token-sum", "verl"), "critic": {"loss_agg_mode": "token-mean"}}
    with_algorithm(config, "grpo")
    assert get(config, LOSS_MEAN) == "verl"
