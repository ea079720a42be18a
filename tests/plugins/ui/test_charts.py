"""Curves say what they are of: gaps are gaps, and means are called so."""

from itertools import pairwise

from agl_records.ledger.tables import Sums
from agl_ui.charts import chart
from agl_ui.pages.run import _bars


def test_a_step_without_a_value_is_a_gap():
    drawn = chart("t", [("train", "train", {1: 0.0, 2: 1.0, 3: None, 4: 1.0, 5: float("nan")})])
    assert drawn is not None
    (line,) = drawn.lines
    assert [one[0] for one in line.path.split(" ") if one[0].isalpha()] == ["M", "L", "M"]
    assert len(line.dots) == 3
    assert drawn.remark == ""
    assert "to 1 at step 4" in drawn.says


def test_a_point_between_gaps_is_seen_in_a_long_curve():
    points = {step: 1.0 * step for step in range(300)} | {100: None, 102: None}
    drawn = chart("t", [("train", "train", points)])
    assert drawn is not None
    assert [says for _, _, says in drawn.lines[0].dots] == ["train, step 101: 101"]
    assert drawn.lines[0].path.count("M") == 3


def test_means_of_neighbours_are_called_so():
    drawn = chart("t", [("train", "train", dict.fromkeys(range(1_201), 1.0))])
    assert drawn is not None
    assert drawn.remark == "train: each point is the mean of up to 3 values"


def test_steps_that_are_asked_for_are_drawn_alone_and_each():
    points = {step: step / 4 for step in range(1_201)}
    drawn = chart("t", [("train", "train", points)], steps=(3, 5))
    assert drawn is not None
    for _, one in drawn.drawings:
        assert one.lines[0].at == "3:0.75 4:1 5:1.25"
        assert one.lines[0].path.count("L") == 2
    assert chart("t", [("train", "train", points)], steps=(2_000, None)) is None


def test_nothing_is_drawn_of_nothing():
    assert chart("t", [("train", "train", {1: None})]) is None


def test_no_two_reasons_of_the_ledger_have_one_colour_unsaid():
    reasons = [f"reason{number}" for number in range(9)]
    sums = Sums({("calls", name): 9 - number for number, name in enumerate(reasons)})
    sums |= Sums({("calls", "trained"): 5, ("calls", "total"): 50})
    sums |= Sums({("rollouts", "total"): 8, ("rollouts", "trained"): 4})
    sums |= Sums({("rollouts", "not_run"): 3, ("rollouts", "failed_attempt"): 1})
    (bar,), kinds = _bars({("r", "grpo", 1, "train"): sums}, "r")
    assert (bar.rollouts, bar.left_out) == (8, "3 not_run, 1 failed_attempt")  # 4 trained: all 8
    assert len(set(kinds.values())) == len(kinds) == 8
    assert list(kinds)[-1] == "others: reason6, reason7, reason8"
    assert [part.number for part in bar.parts] == [5, 9, 8, 7, 6, 5, 4, 3 + 2 + 1]


def test_a_wide_drawing_has_a_second_one_whose_numbers_a_phone_can_show():
    points = {step: float(step) for step in range(100)}
    drawn = chart("t", [("train", "train", points)])
    assert drawn is not None
    (_, broad), (_, narrow) = drawn.drawings
    assert (broad.width, narrow.width) == (900, 340)
    assert narrow.says == broad.says
    at = [x for x, _ in narrow.x_ticks]
    assert min(after - before for before, after in pairwise(at)) > 40
    small = chart("t", [("train", "train", points)], width=240)
    assert small is not None
    assert small.drawings == [("", small)]
