"""One run with odd metrics takes nothing away: not its own page, nor the list of all runs."""

import json

import pytest

from agl_ui.charts import chart

from .stores import begin, page_of

ODD = {
    "extremes": [{"step": 0, "reward/mean": 1e308}, {"step": 1, "reward/mean": -1e308}],
    "the smallest": [{"step": 0, "reward/mean": 0.0}, {"step": 1, "reward/mean": 5e-324}],
    "whole numbers beyond all floats": [
        {"step": 0, "reward/mean": 10**400, "calls/total": 10**400}
    ],
    "steps beyond all floats": [{"step": 10**400, "entropy": 1}, {"step": 1, "entropy": 2}],
    "a step of a thousand million": [{"step": 10**9, "reward/mean": 1}],
    "texts": [
        {"step": "a", "entropy": 1},
        {"step": 1, "entropy": "x", "reward/mean": [1], "val/reward/mean": "y"},
        {"step": 2, "entropy": {}, "reward/mean": "z", "val/reward/mean": 1, "calls/total": "3"},
        {"step": 3, "time/step": "x", "rollouts/succeeded": 3, "rollouts/failed": []},
    ],
    "nothing": [{"step": None, "reward/mean": None, "calls/total": None, "time/step": 0}],
    "no line": [[1], "x", 3],
    "a line without a bottom": ["[" * 100_000],
}


@pytest.mark.parametrize("odd", ODD)
def test_a_run_of_odd_metrics_breaks_no_page(here, serve, odd):
    config = {"gateway": {"run_budget": {"tokens": None, "calls": "many"}}}
    good = [{"step": 0, "reward/mean": 0.0}, {"step": 1, "reward/mean": 0.5}]
    for name, given in (("good", good), ("odd", ODD[odd])):
        folder = here / "agl-runs" / name
        folder.mkdir(parents=True)
        begin(folder / "store.db", name, folder=str(folder), config=config)
        lines = (one if isinstance(one, str) else json.dumps(one) for one in given)
        (folder / "metrics.jsonl").write_text("".join(f"{one}\n" for one in lines))
    address = serve()
    for path in ("/", "/s/odd/run/odd", "/compare?run=good/good&run=odd/odd"):
        assert "odd" in page_of(address + path)


@pytest.mark.parametrize("values", [(1e308, -1e308), (0.0, 5e-324), (1e15, 1e15 + 0.125), (1, 1.0)])
def test_any_two_numbers_are_drawn_within_the_axes(values):
    drawn = chart("t", [("train", "train", dict(enumerate(values)))])
    assert drawn is not None
    for x, y, _ in drawn.lines[0].dots:
        assert drawn.left <= x <= drawn.right
        assert 0 <= y <= drawn.bottom


def test_small_numbers_have_ticks_of_their_own():
    drawn = chart("t", [("train", "train", {0: 1e-13, 1: 3e-13})])
    assert drawn is not None
    assert len({label for _, label in drawn.y_ticks}) == len(drawn.y_ticks) > 2
