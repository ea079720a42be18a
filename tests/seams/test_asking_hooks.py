# ruff: noqa: F811  # tests name the fixtures that another file has
"""Hooks that ask a run to end, to save or to evaluate, and keep a state in its checkpoints."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import agl
from agl.errors import AlgorithmError, ConfigError
from agl_learning import EarlyStopping
from agl_learning.run.checkpoint import Progress
from agl_learning.trainer.learned import check_names, read_update
from agl_learning.trainer.session import Requests

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


def test_a_hook_saves_evaluates_and_ends_a_run_and_sees_rows_before_they_are_trained(starts):
    starts.hooks = [hook := Keeping(save=1, evaluate=2, end=3)]
    starts.start(steps=9, val=["held out"])
    evaluated = [line["step"] for line in starts.metrics() if "val/reward/mean" in line]
    assert evaluated == [0, 2, 3]
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


def test_a_hook_with_a_state_hears_again_of_what_comes_after_its_checkpoint(starts) -> None:
    starts.hooks = [Keeping(save=1)]
    starts.die(2)
    starts.hooks = [keeping := Keeping(), other := Counting()]
    starts.check_books(starts.start())
    assert (keeping.heard, other.heard) == (3, 1)


def test_an_evaluation_without_validation_tasks_is_told_once(starts: Starts, caplog: Any) -> None:
    class Asking(agl.Hook):
        def on_step_end(self, algorithm: Any) -> None:
            algorithm.ask_to_evaluate()

    starts.hooks = [Asking()]
    starts.start()
    assert caplog.text.count("there are no validation tasks, so there is none. Give some: val") == 1


class EndingAsItSaves(Keeping):
    """Ends the run when its first checkpoint is there."""

    def on_checkpoint_saved(self, algorithm: Any) -> None:
        self.heard += 10
        algorithm.ask_to_end()


def test_a_run_that_ended_as_its_checkpoint_was_saved_stays_ended(starts: Starts) -> None:
    starts.hooks = [EndingAsItSaves(save=2)]
    starts.start(steps=6)
    starts.hooks = [again := EndingAsItSaves(save=2)]
    starts.start(steps=6)
    assert (starts.steps(), again.heard) == ([1, 2], 12)


class Spoiling(agl.Hook):
    """Changes all that it is shown."""

    def on_update_start(self, rows: list[Any]) -> None:
        for one in rows:
            for each in (one.advantages, one.row.token_ids, one.row.call_ids):
                each.clear()
        rows.clear()

    def on_step_end(self, metrics: dict[str, Any]) -> None:
        metrics.clear()


def test_a_hook_that_changes_what_it_sees_changes_nothing(starts: Starts) -> None:
    given: list[int] = []

    def look(rows: list[Any]) -> list[Any]:
        given.extend(len(one.advantages) * len(one.row.call_ids) for one in rows)
        return rows

    starts.hooks, starts.takes = [Spoiling()], look
    starts.start()
    (starts.folder / "run/metrics.jsonl").unlink()  # what the store knows of steps comes back
    starts.check_books(done := starts.start(steps=4))
    assert [line["rows"] for line in starts.metrics()] == [4] * 4
    assert (given, done.summary["calls_trained"]) == ([1] * 16, 16)


def test_early_stopping_ends_a_run_whose_rewards_get_no_better(starts: Starts, caplog: Any) -> None:
    starts.hooks = [EarlyStopping(patience=2, min_delta=0.5)]
    done = starts.start(steps=20, val=["held out"], evaluation=1)
    assert starts.steps() == [1, 2]
    why = done.summary["ended"]
    who = (
        "after step 2, agl_learning.early_stopping.EarlyStopping asked the run to end: val/reward/"
    )
    assert (why[: len(who)], why[-17:]) == (who, " 2 times in a row")
    assert why in caplog.text
    assert f"because {why}" in " ".join(starts.result.summary.split())


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (
            "reward/meen",
            r"no metric 'reward/meen', so it ends nothing. Did you mean 'reward/mean'\?",
        ),
        ("val/reward/mean", "'val/reward/mean', and there are no validation tasks"),
    ],
)
def test_early_stopping_refuses_a_metric_that_is_not_there(starts, metric, words) -> None:
    starts.hooks = [EarlyStopping(metric=metric)]
    with pytest.raises(agl.AglError, match=words):
        starts.start()
    with pytest.raises(ConfigError, match="metric must be"):
        EarlyStopping(metric="")


def test_early_stopping_refuses_evaluations_that_can_end_nothing(starts: Starts) -> None:
    starts.hooks = [EarlyStopping(patience=1)]
    with pytest.raises(agl.AglError, match=r"before the first .* Give evaluation.every to Mortal"):
        starts.start(val=["held out"])
    assert starts.ran == 0


def test_an_algorithm_that_cannot_be_asked_says_so() -> None:
    class Asking(agl.Hook):
        def on_run_start(self, algorithm: Any) -> None:
            algorithm.ask_to_evaluate()

    def fit(hook: agl.Hook) -> None:
        trainer = agl.Trainer(algorithm=agl.Baseline(), strategy="shm", hooks=[hook])
        trainer.fit(agl.rollout(lambda task: 1.0), ["a task"])

    with pytest.raises(ConfigError, match=r"EarlyStopping cannot end a run of Baseline, as it"):
        fit(EarlyStopping())
    words = "on_run_start raised ConfigError: Baseline cannot be asked to end, save or evaluate by"
    with pytest.raises(agl.AglError, match=words):
        fit(Asking())


@pytest.mark.parametrize(
    ("metric", "every", "steps", "is_enough"),
    [
        *(("val/reward/mean", 1, 2, False), ("val/reward/mean", 1, 3, True)),
        *(("val/reward/mean", 2, 4, False), ("val/reward/mean", 2, 5, True)),
        *(("reward/mean", None, 3, False), ("reward/mean", None, 4, True)),
    ],
)
def test_early_stopping_warns_of_too_few_values(starts, caplog, metric, every, steps, is_enough):
    starts.hooks = [EarlyStopping(metric=metric, patience=2, min_delta=2.0)]
    done = starts.start(val=["held out"], steps=steps, evaluation={"every": every})
    assert ("ends nothing in this run: patience is 2, and" in caplog.text) != is_enough
    assert (done.summary["ended"] is not None, done.summary["steps"] < steps) == (True, is_enough)


class Ending(agl.Hook):
    """Asks for the end when ``hook`` tells of step 3."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_step_end(self, algorithm: Any, step: int) -> None:
        if (self.hook, step) == ("step", 3):
            algorithm.ask_to_end("no better")

    def on_evaluation_end(self, algorithm: Any, step: int) -> None:
        if (self.hook, step) == ("evaluation", 3):
            algorithm.ask_to_end("no better")


@pytest.mark.parametrize("ends", ["steps", "target", "step", "evaluation"])
def test_a_run_that_trained_nothing_fails_whoever_ends_it(starts: Starts, ends: str) -> None:
    async def calls_no_model(llm: agl.LLM, task: str) -> float:
        return 1.0

    starts.asks, starts.hooks = calls_no_model, [Ending(ends)]
    options: dict[str, Any] = {"steps": 3 if ends == "steps" else 9, "evaluation": 1}
    if ends == "target":
        options["stopping"] = {"target_reward": 0.9}
    with pytest.raises(
        AlgorithmError, match=r"in 3 steps in a row, up to step 3\. .*no model call"
    ):
        starts.start(val=["held out"], **options)
    # It goes on with rollouts drawn anew, and ends well once it trained.
    starts.asks, starts.hooks = starts.every_second, []
    done = starts.start(val=["held out"], **{**options, "steps": 9})
    starts.check_books(done)
    assert (starts.steps(), starts.ran) == ([*range(1, 10)], 9 * 4 + 9)
    assert done.summary["calls_trained"] == 9 * 4


def test_a_run_of_its_own_begins_where_another_ended(starts: Starts) -> None:
    starts.hooks = [Keeping(end=3)]
    starts.start(stopping={"target_reward": 0.0})
    origin, starts.run_dir = str(starts.folder / "run"), "other"
    starts.hooks = [again := Keeping()]
    options = {"steps": 9, "stopping": {"target_reward": 0.0}}
    assert starts.start(resume_from=origin, **options).summary["steps"] == 6
    assert again.heard == 3


def test_nothing_can_be_asked_of_a_run_that_has_not_begun(starts: Starts) -> None:
    class Early(agl.Hook):
        def on_run_start(self, algorithm: Any) -> None:
            algorithm.ask_to_end()

    starts.hooks = [Early()]
    with pytest.raises(agl.AglError, match=r"on_run_start raised .*Mortal is not running"):
        starts.start()


class Stateful(agl.Hook):
    """Keeps which hook had its state."""

    state = ""

    def state_dict(self) -> dict[str, Any]:
        return {"of": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = f"had {state['of']}"


@dataclass(eq=False)
class Named(Stateful):
    name: str
    api_key: str = "sk-of-then"

    def __post_init__(self) -> None:
        self.state = self.name


class Plain(Stateful):
    def __init__(self, name: str) -> None:
        self.state = name


@pytest.mark.parametrize(
    ("before", "after", "states", "lost"),
    [
        ("N:a N:b", "N:b N:a", ["had b", "had a"], ""),
        ("N:a N:b", "N:b N:c", ["had b", "c"], "Named(name='a', "),
        ("N:a N:a N:b", "N:b N:a", ["had b", "a"], "***'), 2 of 2"),
        ("P:a P:b", "P:c N:a P:d", ["had a", "a", "had b"], ""),
        ("P:a P:b", "P:b", ["b"], "Plain, 1 of 2"),
    ],
)
def test_a_state_goes_to_the_hook_that_it_is_of(caplog, before, after, states, lost) -> None:
    kinds: dict[str, Any] = {"N": Named, "P": Plain}
    first, second = ([kinds[one[0]](one[2:]) for one in s.split()] for s in (before, after))
    noted = Requests(first, Progress(0, 0)).progress()
    assert "sk-of-then" not in str(noted)
    for one in (one for one in second if isinstance(one, Named)):
        one.api_key = "sk-of-now"  # it is the same hook all the same
    asked = Requests(second, Progress(1, 1, hooks=noted["hooks"], ended="it was asked to end"))
    assert [one.state for one in second] == states
    assert (bool(asked.ends), "not loaded" in caplog.text) == (not lost, bool(lost))
    assert lost in caplog.text


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (lambda _: None, r"update of Mortal: expected a dict of metrics, or .*; got None"),
        (lambda _: {"calls/total": 1}, "update of Mortal: the loop has a metric 'calls/total' of"),
    ],
)
def test_what_an_update_returns_is_looked_at_before_its_step_is_kept(starts, returns, words):
    starts.returns = returns
    with pytest.raises(agl.AglError, match=words):
        starts.start()
    starts.returns = None
    starts.check_books(starts.start())


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([{}, []], r"expected a dict of metrics, or that and the rows used; got \[\{\}, \[\]\]"),
        (({}, [], 1), "expected a dict"),
        (({}, 1), "expected a dict"),
        ({"mine": np.ones(2)}, r"metric 'mine' is array.* \(ndarray\); expected a name and a n"),
        ({"mine": "much"}, r"metric 'mine' is 'much' \(str\)"),
        ({"mine": True}, r"metric 'mine' is True \(bool\)"),
        ({"mine": 10**400}, r"metric 'mine' is 1000.*\(int\)"),
        ({1: 0.5}, "metric 1 is 0.5"),
        *(({name: 1}, f"{name!r} of its own") for name in ("step", "version", "val/mine")),
    ],
)
def test_an_update_that_returns_something_else_is_refused_by_name(returned, words) -> None:
    with pytest.raises(AlgorithmError, match=f"update of Mine: .*{words}"):
        check_names("Mine", read_update("Mine", returned, [])[0], {"version": 1})


def test_metrics_of_an_update_are_numbers(starts: Starts, caplog: Any) -> None:
    own = {"of_numpy": np.float32(0.5), "none": float("nan"), "endless": np.inf}
    starts.returns = lambda learned: {**learned, **own}
    starts.check_books(starts.start(steps=1))
    (line,) = starts.metrics()
    assert (line["of_numpy"], line.keys() & {"none", "endless"}) == (0.5, set())
    assert "update of Mortal: metric 'none' is nan; it is left out" in caplog.text


@pytest.mark.parametrize(
    "state", [{"heard": object()}, {"heard": [{1: "a"}]}, {"heard": {"a": {1}}}, {"other": 1}, None]
)
def test_a_run_that_a_hook_without_a_state_ended_goes_on(starts, caplog, state) -> None:
    starts.hooks = [Counting(end=1), keeping := Keeping()]
    keeping.state = state
    starts.start()
    is_odd = state is not None and "heard" in state
    assert (starts.steps(), "its state is not in the checkpoint" in caplog.text) == ([1], is_odd)
    starts.hooks = [] if is_odd else [Keeping()]
    if state == {"other": 1}:
        with pytest.raises(agl.AglError, match=r"Keeping, 1 of 1' cannot load .*'heard'"):
            starts.start()
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
        algorithm: Any = SimpleNamespace(ask_to_end=lambda _, at=number: asked.append(at))
        hook.on_step_end(algorithm, {"loss": value})
        hook.on_evaluation_end(algorithm, {"loss": 0.0})
    assert asked == [ends]
