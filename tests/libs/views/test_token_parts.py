"""What a token adds to the objective, term by term; by hand."""

from dataclasses import replace
from typing import Any

import pytest

from agl_views.explanations.explanation import CallLine
from agl_views.explanations.token_parts import Bin, Group, Step, TokenExplanation, terms_of
from agl_views.explanations.trace_reader import RewardLine

EVENT = RewardLine("s", 1, 1.0, "primary", "at-1")
GROUP = Group("", (), 0.4, 0.5)
ADVANTAGE = 0.6 / 0.500001
COUNTS = {"num_trained": 2, "num_rollouts": 4, "num_tokens": 5}
STEP = Step("r", "grpo", 3, 1, sampled_by="2", made="3", **COUNTS)
ESTIMATED = {"estimator": "grpo", "advantage_because": "1 against mean 0.4, std 0.5 of 4"}
RULE = {"rule": "final", "because": "the last reward of the attempt is 1", "reward": 1.0}
CALL = CallLine("c", "at-1", None, advantage=ADVANTAGE, **RULE, **ESTIMATED)
TOKEN = {"place": 0, "token_id": 7, "logprob": -0.1, "bin": Bin("trained", row=0, position=2)}
OF_CALL = {"events": (EVENT,), "group": GROUP, "num_shared": 1, "num_calls": 1}
WHY = TokenExplanation(rollout_id="ro-1", call=CALL, step=STEP, **TOKEN, **OF_CALL)
GRPO: dict[str, Any] = {
    **{"loss.type": "grpo", "epochs": 1, "max_tokens": 100},
    **{"clip.low": 0.2, "clip.high": 0.28, "clip.ratio_cap": 3.0},
}


def of_call(**about: Any) -> TokenExplanation:
    return replace(WHY, call=replace(CALL, **about))


def values(why: TokenExplanation = WHY, **options: Any) -> dict[str, float | None]:
    return {one.name: one.value for one in terms_of(why, {**GRPO, **options})}


def test_factors_are_told_as_what_they_are():
    factors = {one.name: one.factor for one in terms_of(WHY, GRPO)}
    assert factors == {
        **dict.fromkeys(("event", "rule", "baseline")),
        **dict.fromkeys(("mask", "staleness", "clip"), 1.0),
        "scale": pytest.approx(1 / 0.500001),
        "length": 1 / (5 * 4),
    }
    away = terms_of(replace(WHY, bin=Bin("excluded", because="long")), GRPO)[-1]
    assert (away.name, away.factor, away.value) == ("mask", 0.0, pytest.approx(-ADVANTAGE))


def test_terms_of_grpo_add_up_to_its_advantage_times_its_weight():
    found = values()
    assert found == {
        **{"event": 1.0, "rule": 0.0, "baseline": -0.4, "scale": pytest.approx(ADVANTAGE - 0.6)},
        **dict.fromkeys(("mask", "staleness", "clip"), 0.0),
        "length": pytest.approx(ADVANTAGE * (1 / 20 - 1)),
    }
    assert sum(one or 0.0 for one in found.values()) == pytest.approx(ADVANTAGE / 20)


def test_without_a_deviation_the_advantage_is_the_distance_and_a_rule_may_give_less():
    assert values(of_call(reward=0.25))["rule"] == -0.75
    found = values(of_call(advantage=0.6), **{"estimator.normalise_std": False})
    assert "scale" not in found
    assert found["length"] == pytest.approx(0.6 * (1 / 20 - 1))


def test_a_long_answer_costs_what_the_ledger_says():
    found = values(of_call(reward=0.5, overlong=-0.5), **{"overlong.buffer": 20})
    assert (found["event"], found["rule"], found["overlong"]) == (1.0, 0.0, -0.5)
    unsaid = values(of_call(reward=0.5), **{"overlong.buffer": 20})
    assert (unsaid["event"], unsaid["rule"], unsaid["overlong"]) == (1.0, -0.5, None)
    assert "overlong" not in values(of_call(overlong=0.0), **{"overlong.buffer": 20})


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"loss.type": "grpo"}, 1 / (5 * 4)),
        ({"loss.type": "dr_grpo", "loss.constant": 50}, 1 / (50 * 4)),
        ({"loss.type": "dapo"}, None),  # the tokens of the other rollouts are not read
        ({"loss.type": None}, None),  # of an engine that has no such option
        ({"minibatch_rows": 2}, None),  # which rows were beside it is not kept
    ],
)
def test_weight_of_a_token_is_that_of_the_loss(options, weight):
    expected = None if weight is None else pytest.approx(ADVANTAGE * (weight - 1))
    assert values(**options)["length"] == expected


def test_where_not_all_of_a_rollout_is_read_its_weight_is_not_known():
    assert values(replace(WHY, step=replace(STEP, num_tokens=None)))["length"] is None


@pytest.mark.parametrize(
    ("options", "sampled_by", "is_known"),
    [({}, "2", True), ({"epochs": 2}, "2", False), ({}, "1", False), ({}, None, False)],
)
def test_ratio_is_known_of_one_pass_with_the_weights_that_sampled(options, sampled_by, is_known):
    why = replace(WHY, step=replace(STEP, sampled_by=sampled_by))
    terms = {one.name: one for one in terms_of(why, {**GRPO, **options})}
    assert terms["clip"].value == (0.0 if is_known else None)
    assert ("with what is not kept as 0" in terms["length"].because) == (not is_known)
    if sampled_by == "1":
        assert "1 updates behind" in terms["staleness"].because


def test_what_is_not_trained_loses_all_of_it():
    why = replace(WHY, bin=Bin("excluded", "stale", "too old"))
    found = values(why)
    assert found["mask"] == -ADVANTAGE
    assert "length" not in found


@pytest.mark.parametrize("name", ["rloo", "mine:quarter"])
def test_another_estimator_stands_in_the_place_of_mean_and_deviation(name):
    because = f"{name} (leave one out); its reward: 1"
    why = of_call(advantage=0.7, advantage_because=because, estimator=name)
    found = {one.name: one for one in terms_of(why, {})}
    assert found["estimator"].value == pytest.approx(-0.3)
    assert found["estimator"].because.count(name) == (2 if name == "rloo" else 1)
    assert not {"baseline", "scale", "clip"} & found.keys()  # no option of the loss bounds a ratio


def test_a_mean_over_tokens_has_no_terms_of_its_own():
    found = values(replace(WHY, num_shared=0))
    assert (found["estimator"], found["length"]) == (None, None)
