"""Rows of several models: each call, rollout and reward has one bin, whoever looks."""

import pytest

from agl.errors import ConfigError
from agl.semconv import ModelCallAttributes as Key
from agl_learning.by_model import RowsByModel
from agl_learning.records import TrainedModel
from agl_learning.team import Team

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
    ],
)
def test_models_that_cannot_be_are_refused(models, message):
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=message):
        Team(models=models)
