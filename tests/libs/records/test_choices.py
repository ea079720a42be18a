"""Which of several calls a name of a choice means, where a server gives them one id."""

import agl
from agl.types import Span
from agl_records.calls.choices import decided
from agl_records.training_data import Choice, ModelCall


def call(number: int, start: float | None, end: float | None) -> ModelCall:
    ids = {"call_id": f"{number:016x}", "rollout_id": "ro-1", "attempt_id": "at-1"}
    choices = [Choice(response={"content": text}) for text in ("bad", "good")]
    about = {"sequence_id": number, "start_time": start, "end_time": end}
    return ModelCall(**ids, **about, response_id="same", choices=choices)


def named(number: int) -> Span:
    attributes = agl.emit_choice("same", 1, propagate=False).attributes
    return Span.from_attributes(attributes=attributes, sequence_id=number, name="annotation")


def chosen(calls: list[ModelCall]) -> list[int | None]:
    return [each.choice for each in decided(calls, [named(9)])]


def test_it_means_the_last_of_calls_one_after_the_other():
    assert chosen([call(1, 1.0, 2.0), call(2, 3.0, 4.0), call(10, 5.0, 6.0)]) == [None, 1, None]


def test_it_means_none_of_calls_at_once():
    calls = [call(1, 0.0, 0.5), call(2, 1.0, 3.0), call(3, 2.0, 4.0)]
    assert chosen(calls) == [None, None, None]
    said = [each.unchosen for each in decided(calls, [named(9)])]
    assert said[1] == said[2] == "the agent named an answer, and 2 calls may have been meant"
    assert "no later call goes on with one of its 2 answers" in said[0]


def test_it_means_none_of_several_without_times():
    assert chosen([call(1, None, None), call(2, None, None)]) == [None, None]
    assert chosen([call(1, None, None)]) == [1]


def test_it_means_none_of_several_that_came_after_it():
    found = decided([call(10, 1.0, 2.0), call(11, 3.0, 4.0)], [named(9)])
    why = "the agent named an answer, and 2 calls may have been meant"
    assert [(each.choice, each.unchosen) for each in found] == [(None, why)] * 2
