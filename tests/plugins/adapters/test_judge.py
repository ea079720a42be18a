"""What a judge says, read as it is."""

import json

import pytest

from agl.errors import AdapterError
from agl_adapters.credit.judge import LONGEST_WHY, read_scores


def said(**of_first):
    first = {"attempt": 1, "why": "so", "score": 0.5, **of_first}
    return json.dumps({"scores": [first, {"attempt": 2, "why": "", "score": 1}]})


@pytest.mark.parametrize("score", [10**400, -(10**400), float("nan"), float("inf"), 1.01, "1"])
def test_a_number_that_is_no_score_is_an_answer_that_cannot_be_read(score):
    with pytest.raises(AdapterError, match="the score of attempt 1 is") as caught:
        read_scores(said(score=score), 2)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("why", ["\ud83d oh", "w" * 3_000_000, None])
def test_a_reason_can_be_stored_whatever_it_is(why):
    first, _ = read_scores(said(why=why), 2)
    first.because.encode()
    assert len(first.because) < LONGEST_WHY + 100
