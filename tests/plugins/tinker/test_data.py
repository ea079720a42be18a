"""What is sent for training: pure functions."""

import pytest
from tests.training_rows import training_row

from agl_tinker.data import batches, example_of_row, logprob_gap, shifted


def row():
    logprobs = [0.0, 0.0, -0.5, 0.0, -0.25]
    return training_row([5, 6, 7, 8, 9], [(2, 3), (4, 5)], logprobs=logprobs)


def test_sampled_tokens_get_their_advantage_and_the_sequence_is_shifted():
    example = example_of_row(row(), [1.5, -2.0])
    assert example["weights"] == [0, 0, 1.5, 0, -2.0]
    tokens, inputs = shifted(example, "importance_sampling")
    # Position i of the input predicts token i + 1.
    assert tokens == [5, 6, 7, 8]
    assert inputs == {
        "target_tokens": [6, 7, 8, 9],
        "logprobs": [0.0, -0.5, 0.0, -0.25],
        "advantages": [0, 1.5, 0, -2.0],
    }
    assert shifted(example, "cross_entropy")[1] == {
        "target_tokens": [6, 7, 8, 9],
        "weights": [0, 1.5, 0, -2.0],
    }


def test_what_follows_the_last_trained_call_is_not_paid_for():
    assert example_of_row(row().only([0]), [1.0])["token_ids"] == [5, 6, 7]


def test_the_gap_is_over_trained_tokens_only():
    example = example_of_row(row(), [1.0, 0.0])
    # Of the targets only token 7 is trained: |-0.5 - -0.75|.
    assert logprob_gap([example], [[-9.0, -0.75, -9.0, -9.0]]) == pytest.approx(0.25)
    assert logprob_gap([example_of_row(row(), [0.0, 0.0])], [[0.0] * 4]) is None


def test_every_epoch_has_every_example_once():
    examples = [{"id": number} for number in range(5)]
    steps = list(batches(examples, 2, 2, "seed"))
    assert [len(step) for step in steps] == [2, 2, 1] * 2
    first, second = (
        [one["id"] for step in half for one in step] for half in (steps[:3], steps[3:])
    )
    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second
    assert list(batches(examples, 2, 2, "seed")) == steps
    assert [len(step) for step in batches(examples, 2, None, "seed")] == [5, 5]
