"""Differences of texts: both can be read off them again."""

import random

import pytest

from agl_ui.differences import differences

CHANCE = random.Random(0)
WORDS = ["".join(CHANCE.choices("abcdefgh", k=5)) for _ in range(400)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("", "Be brief."),
        ("Be brief, please.", "Be kind, please."),
        ("one\n\ntwo  three", "one\ntwo three\n"),
        (" ".join(CHANCE.choices(WORDS, k=5_000)), " ".join(CHANCE.choices(WORDS, k=5_000))),
        ("a " * 30_000, "a " * 20_000 + "b"),
    ],
)
def test_both_texts_are_in_it(old, new):
    pieces = differences(old, new)
    assert "".join(one.text for one in pieces if one.kind != "new") == old
    assert "".join(one.text for one in pieces if one.kind != "old") == new


def test_a_word_that_changed_is_the_only_difference_of_a_long_text():
    words = CHANCE.choices(WORDS, k=4_000)
    other = [*words[:2_000], "changed", *words[2_001:]]
    pieces = differences(" ".join(words), " ".join(other))
    assert [one.text for one in pieces if one.kind == "new"] == ["changed "]
