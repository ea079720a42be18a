"""Which answers are paired, and what becomes of the others."""

import pytest

from agl_unsloth.pairs import no_pairs, select_pairs


def pairs(collected, **options):
    given = {"pairing": "matched", "min_gap": 0.0, "max_length": None, "seed": "0"}
    return select_pairs(collected, **{**given, **options})


def test_answers_are_paired_by_their_own_reward_and_not_by_that_of_their_rows(ended, collected):
    # The first calls differ, and a's was the better one; the later ones turn the means round.
    one = collected(
        ended("a", 0, [([1], [5], 1.0), ([2], [6], -9.0)]),
        ended("b", 0, [([1], [7], 0.0), ([2], [8], 9.0)]),
    )
    (pair,) = pairs(one)
    assert (pair["prompt_ids"], pair["chosen_ids"], pair["rejected_ids"]) == ([1], [5], [7])
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (1.0, 0.0)
    assert sorted(trained.call_id for trained in one.ledger.trained) == ["a-0", "b-0"]
    assert one.ledger.reasons() == {"not_paired": 2}


def test_answers_to_one_prompt_are_paired_best_with_worst(ended, collected):
    rollouts = [
        ended(f"r{n}", 0, [([1, 2], [answer], reward)])
        for n, (answer, reward) in enumerate([(10, 1.0), (11, 0.75), (12, 0.25), (13, 0.0)])
    ]
    other_task = ended("other", 1, [([1, 2], [14], 0.5)])
    one = collected(*rollouts, other_task)
    made = pairs(one)
    assert sorted((p["chosen_ids"], p["rejected_ids"]) for p in made) == [
        ([10], [13]),
        ([11], [12]),
    ]
    assert all(p["prompt_ids"] == [1, 2] for p in made)
    assert one.ledger.reasons() == {"not_paired": 1}  # nobody else had its task
    one.ledger.check()


@pytest.mark.parametrize(("pairing", "count"), [("best", 1), ("matched", 2), ("all", 6)])
def test_how_many_pairs_a_prompt_makes(ended, collected, pairing, count):
    rollouts = [ended(f"r{n}", 0, [([1], [n + 2], float(n))]) for n in range(4)]
    made = pairs(collected(*rollouts), pairing=pairing)
    assert len(made) == count
    assert all(pair["chosen_reward"] > pair["rejected_reward"] for pair in made)


def test_later_calls_are_paired_where_the_ways_are_still_the_same(ended, collected):
    rollouts = [
        ended("a", 0, [([1], [5], 1.0), ([2], [6], 1.0)]),
        ended("b", 0, [([1], [5], 0.0), ([2], [7], 0.0)]),
        ended("c", 0, [([1], [8], 0.0), ([2], [9], 0.0)]),
    ]
    one = collected(*rollouts)
    made = pairs(one, pairing="all")
    assert sorted((p["prompt_ids"], p["chosen_ids"], p["rejected_ids"]) for p in made) == [
        ([1], [5], [8]),
        ([1, 5, 2], [6], [7]),
    ]
    # b's first call said the same as a's, and c's second call answered a prompt of its own.
    assert one.ledger.reasons() == {"not_paired": 2}
    one.ledger.check()


def test_no_pair_is_told_with_what_there_was(ended, collected):
    one = collected(*(ended(f"r{n}", 0, [([1], [2], float(n))]) for n in range(2)))
    assert pairs(one) == []
    text = str(no_pairs(one, 1))
    assert "there is no preference pair: 2 rollouts, 2 succeeded" in text
    assert "raise the temperature" in text


def test_answers_that_are_too_long_or_too_near_make_no_pair(ended, collected):
    rollouts = [ended(f"r{n}", 0, [([1], [2] * (n + 1), n / 10)]) for n in range(3)]
    one = collected(*rollouts)
    assert pairs(one, max_length=3, min_gap=0.1) == []
    assert one.ledger.reasons() == {"over_length": 1, "not_paired": 2}
