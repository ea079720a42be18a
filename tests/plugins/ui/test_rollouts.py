"""What cannot be asked of the table of rollouts."""

import pytest

from .stores import read


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sort=ended&id=ro-1", "no index has both"),
        ("sort=reward&step=1&id=1", "no index has both"),
        ("sort=lowest&status=failed", "failed have no reward"),
        ("below=much", "expected a number"),
        ("above=nan", "expected a number"),
        ("after=nope", "the store has no such rollout"),
        ("after=nope&sort=status", "the store has no such rollout"),
        ("step=1&step=2", "step is given 2 times"),
        ("foo=bar", "there is no foo"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(serve, failures, query, said):
    status, text = read(f"{serve(failures)}/s/failures/rollouts?{query}")
    assert status == 400
    assert said in text
