"""What of a task its agent need not see."""

import pytest

from agl.types import private_of, without_private


@pytest.mark.parametrize(
    ("task", "public", "private"),
    [
        ({"question": "6 * 7?", "private": {"answer": 42}}, {"question": "6 * 7?"}, {"answer": 42}),
        ({"private": None}, {}, None),
        ({"a": {"private": 1}}, {"a": {"private": 1}}, None),
        (["private"], ["private"], None),
        ("private", "private", None),
        (None, None, None),
    ],
)
def test_private_is_a_key_of_the_task_itself(task, public, private):
    before = repr(task)
    assert without_private(task) == public
    assert private_of(task) == private
    assert repr(task) == before
