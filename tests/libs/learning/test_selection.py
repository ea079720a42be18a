"""Which rows are trained, which tokens of them, and what becomes of the others."""

import pytest

from agl.errors import AglError
from agl_learning.selection import select_best

from .rollouts_by_hand import leave_out


def best(collected, iteration=1, **options):
    given = {"keep_fraction": 1.0, "min_reward": None, "max_length": None, "seed": 0}
    return select_best(collected, iteration, **{**given, **options})


def test_only_what_was_sampled_has_labels_in_a_row_of_several_calls(ended, collected):
    one = collected(ended("a", 0, [([1, 2], [3, 4], 1.0), ([5], [6], 1.0)]))
    (example,) = best(one)
    assert example["input_ids"] == [1, 2, 3, 4, 5, 6]
    assert example["labels"] == [-100, -100, 3, 4, -100, 6]
    assert (example["reward"], example["rollout_id"]) == (1.0, "a")


def test_the_best_stay_and_the_others_are_counted_with_their_reason(ended, collected):
    rewards = [0.1, 0.9, 0.5, 0.7]
    rollouts = [ended(f"r{n}", n, [([1], [2], reward)]) for n, reward in enumerate(rewards)]
    long = ended("long", 9, [([1] * 9, [2], 1.0)])
    failed = ended("failed", 8, [([1], [2], 1.0)], status="failed")
    no_reward = ended("none", 7, [([1], [2], None)])
    one = collected(*rollouts, long, failed, no_reward)
    kept = best(one, keep_fraction=0.5, min_reward=0.2, max_length=5)
    assert [example["rollout_id"] for example in kept] == ["r1"]
    single = dict.fromkeys(("below_threshold", "over_length", "failed_attempt", "no_reward"), 1)
    assert one.ledger.reasons() == {**single, "not_selected": 2}
    one.ledger.check()


def test_a_call_is_trained_for_its_own_reward_and_not_for_that_of_its_row(ended, collected):
    # Means: 2/3 and -1/3. Before, all of the first row was trained, and nothing of the second.
    rows = [
        ended("good", 0, [([1], [2], 1.0), ([3], [4], 1.0), ([5], [6], 0.0)]),
        ended("bad", 1, [([1], [7], -1.0), ([3], [8], -1.0), ([5], [9], 1.0)]),
    ]
    one = collected(*rows)
    made = {example["rollout_id"]: example for example in best(one, min_reward=0.5)}
    # The call with 0 is not imitated; what comes after the last trained token is left out.
    assert made["good"]["input_ids"] == [1, 2, 3, 4]
    assert made["good"]["labels"] == [-100, 2, -100, 4]
    # The good call of the worse row is.
    assert made["bad"]["input_ids"] == [1, 7, 3, 8, 5, 9]
    assert made["bad"]["labels"] == [-100, -100, -100, -100, -100, 9]
    assert [example["reward"] for example in made.values()] == [1.0, 1.0]
    assert sorted(call.call_id for call in one.ledger.trained) == ["bad-2", "good-0", "good-1"]
    left_out = {e.call_id: e.detail for e in one.ledger.exclusions}
    rewards = {"good-2": "0", "bad-0": "-1", "bad-1": "-1"}
    assert left_out == {n: f"its reward is {r}, min_reward is 0.5" for n, r in rewards.items()}
    assert one.ledger.reasons() == {"below_threshold": 3}
    one.ledger.check()


def test_what_is_penalised_is_never_imitated(ended, collected):
    penalised = ended("late", 1, [([1], [7], -1.0)])
    penalised.penalty = -1.0
    one = collected(ended("good", 0, [([1], [2], -2.0)]), penalised)
    assert [example["rollout_id"] for example in best(one, keep_fraction=1.0)] == ["good"]
    assert one.ledger.reasons() == {"failed_attempt": 1}
    one.ledger.check()


def test_of_calls_with_their_own_rewards_the_best_part_is_kept(ended, collected):
    # Parts, best first: a's 1.0 (two calls), b's 0.5, a's 0.25, b's 0.0. Half of four are two.
    one = collected(
        ended("a", 0, [([1], [2], 1.0), ([3], [4], 0.25), ([5], [6], 1.0)]),
        ended("b", 1, [([1], [7], 0.0), ([3], [8], 0.5)]),
    )
    made = {e["rollout_id"]: e["labels"] for e in best(one, keep_fraction=0.5)}
    assert made == {"a": [-100, 2, -100, -100, -100, 6], "b": [-100, -100, -100, 8]}
    assert one.ledger.reasons() == {"not_selected": 2}
    one.ledger.check()


@pytest.mark.parametrize(("number", "part", "kept"), [(100, 0.29, 29), (10, 0.3, 3), (3, 0.5, 1)])
def test_the_part_that_is_kept_is_that_which_is_written(ended, collected, number, part, kept):
    one = collected(*(ended(f"r{n}", n, [([1], [2], 1.0)]) for n in range(number)))
    assert len(best(one, keep_fraction=part)) == kept


def test_equal_rewards_are_drawn_by_the_seed_and_the_same_again(ended, collected):
    def chosen(seed):
        rollouts = [ended(f"r{n}", n, [([1], [2], 1.0)]) for n in range(20)]
        return [e["rollout_id"] for e in best(collected(*rollouts), keep_fraction=0.25, seed=seed)]

    assert len(chosen(1)) == 5
    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


def test_a_threshold_that_nothing_reaches_is_told_with_the_rewards(ended, collected):
    one = collected(*(ended(f"r{n}", n, [([1], [2], n / 10)]) for n in range(4)))
    begin = "iteration 3: no rollout reached min_reward=0.9: of 4 rewards the best are 0.3, 0.2.*"
    with pytest.raises(AglError, match=rf"{begin}the mean is 0\.150, the lowest 0.*Lower min_rew"):
        best(one, 3, min_reward=0.9)
    one = collected(ended("bad", 0, [([1], [2], 0.0)]), ended("long", 0, [([1], [2, 3], 1.0)]))
    with pytest.raises(
        AglError, match=r"trained: .* below_threshold \(1\), over_length \(1\); mean"
    ):
        best(one, 3, min_reward=0.9, max_length=2)


def test_calls_without_token_ids_are_told_with_what_gives_them(ended, collected):
    one = collected(ended("a", 0, []))
    leave_out(one.ledger, "c", "no_token_ids")
    with pytest.raises(AglError, match=r"return_token_ids.*vLLM 0\.10\.2"):
        best(one)


def test_the_order_in_which_rows_were_recorded_changes_no_example(ended, collected):
    def examples(turn):
        rollouts = [ended("a", 0, [([1], [2], 1.0)]), ended("b", 1, [([1], [3], 1.0)])]
        rows = [row for one in rollouts for row in one.rows]
        more = [row.model_copy(update={"token_ids": [7, n]}) for n, row in enumerate(rows)]
        for one, row in zip(rollouts, more, strict=True):
            one.rows = [*one.rows, row][::turn]
        return [example["input_ids"] for example in best(collected(*rollouts))]

    assert examples(1) == examples(-1)


def test_row_of_tokens_whose_prompt_had_images_is_left_out_by_name(ended, collected):
    text, seen = (ended(name, 0, [([1], [2], 1.0)]) for name in ("text", "seen"))
    seen.rows[0].images = ["data:image/png;base64,AA=="]
    one = collected(text, seen)
    assert [example["rollout_id"] for example in best(one)] == ["text"]
    assert one.ledger.reasons() == {"images": 1}
    with pytest.raises(AglError, match=r"model calls excluded as .*images"):
        best(collected(seen))
