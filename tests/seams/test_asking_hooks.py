# ruff: noqa: F811  # tests name the fixtures that another file has
"""Hooks that ask a run to end, to save or to evaluate, and keep a state in its checkpoints."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

import agl
from agl_learning import EarlyStopping

from .test_going_on import Starts, starts, trainer_class  # noqa: F401  # fixtures

pytestmark = pytest.mark.plugins
pytest.importorskip("agl_gateway")


class Counting(agl.Hook):
    """Counts the steps that it hears of, and asks after some."""

    def __init__(self, **asks: int) -> None:
        self.asks, self.heard, self.rows = asks, 0, []

    def on_update_start(self, step: int, rows: list[Any]) -> None:
        self.rows.append((step, {one.advantages[0].value > 0 for one in rows}))

    def on_step_end(self, algorithm: Any, step: int) -> None:
        self.heard += 1
        for what in (what for what, when in self.asks.items() if when == step):
            getattr(algorithm, f"ask_to_{what}")()


class Keeping(Counting):
    """And keeps the count, if it has no other state."""

    state: Any = None

    def state_dict(self) -> dict[str, Any]:
        return self.state or {"heard": self.heard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


def test_a_hook_saves_evaluates_and_ends_a_run_and_sees_rows_before_they_are_trained(
    starts: Starts,
) -> None:
    starts.hooks = [hook := Keeping(save=1, evaluate=2, end=3)]
    starts.start(steps=9, val=["held out"])
    lines = map(json.loads, (starts.folder / "run/metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "val/reward/mean" in line] == [0, 2, 3]
    saved = (starts.folder / "run/checkpoints").glob("step-*")
    assert sorted(path.name for path in saved) == ["step-000001", "step-000003"]
    assert hook.rows == [(step, {True, False}) for step in (1, 2, 3)]
    # It stays ended while the hook is there, and has the state of then.
    starts.hooks = [again := Keeping()]
    starts.start(steps=9, val=["held out"])
    assert (starts.steps(), again.heard, again.rows) == ([1, 2, 3], 3, [])
    starts.hooks = []
    starts.check_books(starts.start(steps=9, val=["held out"]))
    assert starts.steps() == [*range(1, 10)]


def test_a_hook_with_a_state_hears_again_of_what_comes_after_its_checkpoint(
    starts: Starts,
) -> None:
    starts.hooks, starts.dies_at_version = [Keeping(save=1)], 2
    with pytest.raises(agl.AglError, match="the machine dies"):
        starts.start()
    starts.hooks, starts.dies_at_version = [keeping := Keeping(), other := Counting()], None
    starts.check_books(starts.start())
    assert (keeping.heard, other.heard) == (3, 1)


def test_early_stopping_ends_a_run_whose_rewards_get_no_better(starts: Starts) -> None:
    starts.hooks = [EarlyStopping(patience=2, min_delta=0.5)]
    starts.start(steps=20, val=["held out"], evaluation=1)
    assert starts.steps() == [1, 2]


def test_a_run_that_a_hook_without_a_state_ended_goes_on(starts: Starts, caplog: Any) -> None:
    starts.hooks = [Counting(end=1), wrong := Keeping()]
    wrong.state = {"heard": object()}
    starts.start()
    assert (starts.steps(), "its state is not in the checkpoint" in caplog.text) == ([1], True)
    starts.hooks = []
    starts.check_books(starts.start())
    assert starts.steps() == [1, 2, 3]


@pytest.mark.parametrize(
    ("mode", "values", "ends"),
    [("max", [1, 2, 3, 3, 3], 5), ("min", [3, 2, None, 2], 4), ("max", [None, None], 2)],
)
def test_early_stopping_counts_values_that_are_no_better(mode: Any, values: Any, ends: int) -> None:
    asked: list[int] = []
    hook = EarlyStopping(metric="loss", patience=2, mode=mode)
    for number, value in enumerate(values, 1):
        algorithm: Any = SimpleNamespace(ask_to_end=lambda at=number: asked.append(at))
        hook.on_step_end(algorithm, {"loss": value})
        hook.on_evaluation_end(algorithm, {"loss": 0.0})
    assert asked == [ends]
