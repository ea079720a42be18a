"""Rows of several models: each call, rollout and reward has one bin, whoever looks."""

from dataclasses import replace

import pytest

from agl.errors import ConfigError
from agl.semconv import ModelCallAttributes as Key
from agl_learning.team import RowsByModel, Team
from agl_learning.trainer.learned import leave_out as leave_unused
from agl_records.training_data import TrainedModel
from agl_runs.differences import options_that_shape

from .rollouts_by_hand import leave_out

agl_adapters = pytest.importorskip("agl_adapters")
pytestmark = pytest.mark.plugins

MODELS = [TrainedModel(name="asker"), TrainedModel(name="answerer")]


def rows_by_model(trace):
    return RowsByModel(agl_adapters.TraceToRows(), lambda: MODELS).adapt(trace.spans)


def called(trace, model, *tokens):
    span = trace.gateway(*tokens)
    span.attributes[Key.REQUEST_MODEL.value] = model


def test_calls_go_to_the_rows_of_their_model_and_those_of_others_to_a_bin(trace):
    called(trace, "asker", [1, 2], [3])
    called(trace, "answerer", [1, 2, 3, 4], [5])  # begins with the tokens of the other's row
    called(trace, "judge", [1], [9])
    called(trace, "asker", [1, 2, 3, 6], [7])
    trace.reward(1.0)
    found = rows_by_model(trace)
    assert [(row.model, len(row.call_ids), row.reward) for row in found.rows] == [
        ("asker", 2, 1.0),
        ("answerer", 1, 1.0),
    ]
    for row in found.rows:
        found.ledger.train(row)
    found.ledger.check()
    assert found.ledger.reasons() == {"other_model": 1}
    assert found.ledger.reasons("reward") == {}


def test_what_is_wrong_with_a_call_is_said_by_its_own_model(trace):
    called(trace, "answerer", None, None)
    called(trace, "asker", [1], [2])
    trace.reward(1.0)
    found = rows_by_model(trace)
    (row,) = found.rows
    found.ledger.train(row)
    found.ledger.check()
    assert found.ledger.reasons() == {"no_token_ids": 1}


GRPO = {"type": "grpo", "model": "nowhere"}


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"one": GRPO}, "two or more"),
        ({"one": GRPO, "two": {**GRPO, "steps": 3}}, "models.two: steps is of the run"),
        ({"one": GRPO, "two": {"model": "nowhere"}}, "models.two: type is missing"),
        ({"one": GRPO, "a b": GRPO}, "is a parameter of the agent"),
        ({"one": GRPO, "two": {**GRPO, "learing_rate": 1.0}}, "learning_rate"),
        ({"one": GRPO, "val": GRPO}, "models.val: metrics of a model begin with its name"),
    ],
)
def test_models_that_cannot_be_are_refused(models, message):
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=message):
        Team(models=models)


def test_refills_are_refused_where_the_algorithm_of_a_model_compares_no_groups():
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="max_refills is 2, and the estimator 'gae'"):
        Team(models={"one": GRPO, "two": {**GRPO, "type": "ppo"}}, max_refills=2)


def test_what_is_safe_to_change_of_a_model_s_algorithm_is_safe_of_the_team():
    pytest.importorskip("torch")
    one, other = (
        options_that_shape(Team(models={"one": {**GRPO, "memory": {"check": on}}, "two": GRPO}))
        for on in (True, False)
    )
    assert one == other
    assert one["models.two.model"] == GRPO["model"]


@pytest.fixture
def of_models(collected, ended):
    """Rollouts in which models were asked once each; per rollout, model -> reward of its call."""

    def build(*rewards, alone=False):
        each = []
        for number, by_model in enumerate(rewards):
            rows = []
            for model, reward in by_model.items():
                (row,) = ended(f"ro-{number}", 0, [([1], [7], reward)]).rows
                call = {"model": model, "call_ids": [f"{number}-{model}"]}
                rows.append(row.model_copy(update=call))
            each.append(replace(ended(f"ro-{number}", number if alone else 0, []), rows=rows))
        batch = collected(*each)
        batch.ledger.models = {
            (row.rollout_id, row.attempt_id, row.call_ids[0]): row.model
            for one in each
            for row in one.rows
        }
        return batch

    return build


def of(team, batch):
    """Whether a step of the batch trains anything, and if not, why."""
    trained = team.weigh(batch)
    batch.ledger.check()
    return bool(trained), team.idle_reason(batch)


async def test_what_is_left_to_learn_is_for_the_algorithm_of_each_model_to_say(of_models):
    pytest.importorskip("torch")
    across = {**GRPO, "type": "reinforce++"}
    team = Team(models={"one": across, "two": across}, group_size=1)
    equal, differs = {"one": 1.0, "two": 1.0}, {"one": 1.0, "two": 0.0}
    assert of(team, of_models(equal, equal, alone=True)) == (False, "solved")
    assert of(team, of_models(equal, differs, alone=True))[0]

    two_best = {**GRPO, "estimator": "grpo_passk"}
    team = Team(models={"one": GRPO, "two": two_best})
    # Of two, two are the best of three; of one all are equal.
    batch = of_models(equal, equal, differs)
    assert of(team, batch) == (False, "draw")
    await team.after_step(1, batch, False)
    assert team.progress()["idle_steps"] == 0
    assert of(team, of_models(equal, equal, equal)) == (False, "solved")
    assert of(team, of_models({"one": 1.0}, {"one": 1.0})) == (False, "solved")


def test_a_model_whose_calls_cannot_be_trained_has_not_learned_all(of_models):
    pytest.importorskip("torch")
    batch = of_models({"one": 1.0, "two": 1.0}, {"one": 1.0, "two": 1.0})
    for one in batch.ended:
        (lost,) = [row for row in one.rows if row.model == "two"]
        one.rows.remove(lost)
        batch.ledger.exclude_row(lost, "no_token_ids")
    team = Team(models={"one": GRPO, "two": GRPO})
    assert of(team, batch) == of(team, of_models()) == (False, "")


def test_why_a_row_was_left_out_is_said_by_the_algorithm_of_its_model(of_models):
    pytest.importorskip("torch")
    team = Team(models={"one": GRPO, "two": GRPO})
    for part in team.parts.values():
        part.update = lambda _: ({}, [])
    team.parts["two"].why_unused = "not_selected", "too long"
    batch = of_models({"one": 1.0, "two": 1.0}, {"one": 0.0, "two": 0.0})
    _, used = team.learn_now(rows := team.weigh(batch))
    leave_unused(batch.ledger, rows, used, team.why_unused_of)
    batch.ledger.check()
    assert batch.ledger.reasons() == {"rejected": 2, "not_selected": 2}


def test_an_answer_that_was_cut_off_costs_the_rows_of_its_own_model_alone(of_models):
    pytest.importorskip("torch")
    batch = of_models({"one": 1.0, "two": 1.0}, {"one": 1.0, "two": 0.0})
    leave_out(batch.ledger, "0-two-cut", "truncated", "ro-0")
    batch.ledger.models["ro-0", "at", "0-two-cut"] = "two"
    limits = {**GRPO, "max_tokens": 4, "overlong": 2, "estimator": {"normalise_std": False}}
    weighed = Team(models={"one": limits, "two": limits}).weigh(batch)
    batch.ledger.check()
    # One's rewards are 1 and 1, and two's 1 - 1 and 0: nothing is trained. Were one's less, too,
    # they would be 0 and 1.
    assert weighed == []


def test_which_model_made_a_call_is_known_though_its_row_is_gone(trace):
    called(trace, "asker", [1, 2], [3])
    called(trace, "answerer", None, None)
    called(trace, "judge", [1], [9])
    trace.reward(1.0)
    ledger = rows_by_model(trace).ledger
    assert sorted(ledger.models.values()) == ["answerer", "asker"]
    own = ledger.of_model("answerer")
    assert own.reasons() == {"no_token_ids": 1, "other_model": 1}
    assert len(own.calls) == 2
    assert ledger.of_model("asker").reasons() == {"other_model": 1}
