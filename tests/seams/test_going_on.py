"""What a start cannot use of the one before is given up, and drawn anew, never fatal."""

import asyncio
import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import stores

import agl
from agl.errors import AlgorithmError, ConfigError, StoppedError
from agl_learning.collect.task_order import TaskOrder
from agl_learning.run.folder import read_generation
from agl_learning.trainer.comparison import Replay
from agl_learning.trainer.replay import checkpoint_before
from agl_records.ledger.ledger import Ledger

from .word_trainer import WORDS, ask, write_trainer

pytestmark = pytest.mark.plugins
pytest.importorskip("agl_gateway")

AGENT = """\
async def agent(task: str, llm: agl.LLM) -> float:
    starts.ran += 1
    return await starts.asks(llm, task)
"""
COPIES = 4
TASKS = ["greet me", "and me", "me too"]


@pytest.fixture(scope="module")
def trainer_class(tmp_path_factory: pytest.TempPathFactory) -> type[Any]:
    return write_trainer(tmp_path_factory.mktemp("trainer"))


class Starts:
    """Starts of one run, in a folder with a store; counts the agents that ran in the last one."""

    def __init__(self, folder: Path, trainer_class: type[Any]) -> None:
        self.folder = folder
        self._class = trainer_class
        self.ran = 0
        self.agent_source = AGENT
        self.dies_at_version: int | None = None
        """The update of these weights fails."""
        self.takes: Any = None
        """Which rows an update uses; None is all."""
        self.returns: Any = None
        """What an update returns of its metrics; None is these."""
        self.drains = False
        """Whether an update empties its list."""
        self.weighs: Any = list
        """Which of the rows that are weighed are trained."""
        self.result: Any = None
        """Of the last start."""
        self.run_dir = "run"
        self.hooks: list[agl.Hook] = []
        self.resources: Any = None
        """The initial ones."""
        self.asks: Any = self.every_second
        """What the agent does: an LLM and a task give a reward."""

    async def every_second(self, llm: agl.LLM, task: str) -> float:
        """Rewards that differ in every group, so that each step trains."""
        is_good = self.ran % 2
        await ask(llm, task)
        return float(is_good)

    def start(
        self,
        tasks: list[str] = TASKS,
        val: list[str] | None = None,
        in_memory: bool = False,
        force: bool = False,
        run: str | None = None,
        concurrency: int = 1,
        **options: Any,
    ) -> Any:
        """One start to its end; the algorithm."""
        self.ran = 0

        path = self.folder / "agent.py"
        path.write_text(self.agent_source)
        names: dict[str, Any] = {"agl": agl, "starts": self}
        exec(compile(self.agent_source, str(path), "exec"), names)
        given = {"steps": 3, "group_size": COPIES, "groups_per_step": 1, "show_progress": False}

        class Mortal(self._class):
            def weigh(algorithm, collected: Any) -> Any:
                return self.weighs(super().weigh(collected))

            def update(algorithm, rows: Any) -> Any:
                if algorithm.weights_version == self.dies_at_version:
                    raise OSError("the machine dies")
                if self.takes is None:
                    learned = super().update([*rows])
                    if self.drains:
                        rows.clear()
                    return learned if self.returns is None else self.returns(learned)
                used = self.takes(rows)
                return super().update(used), used

        algorithm = Mortal(words=WORDS, **{**given, **options})
        store = None
        if not in_memory:
            store = agl.SqliteLightningStore(self.folder / "store.db", durability="process")
        about = {"force": force, "run": run, "resume": run is not None, "hooks": self.hooks}
        about |= {"initial_resources": self.resources, "run_dir": self.folder / self.run_dir}
        given = {"algorithm": algorithm, "store": store, "concurrency": concurrency}
        trainer = agl.Trainer(strategy="shm", **given, **about)
        try:
            self.result = trainer.fit(agl.rollout(names["agent"]), tasks, val_dataset=val)
        finally:
            if store is not None:
                asyncio.run(store.close())
        return algorithm

    def die(self, at_version: int, **options: Any) -> None:
        """A start that dies in the update of these weights; the next one does not."""
        self.dies_at_version = at_version
        with pytest.raises(AlgorithmError, match="machine dies"):
            self.start(**options)
        self.dies_at_version = None

    def metrics(self) -> list[dict[str, Any]]:
        lines = (self.folder / "run/metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def steps(self) -> list[int]:
        """Those in the metrics."""
        return [line["step"] for line in self.metrics() if "reward/mean" in line]

    def ask_store(self, question: Any) -> Any:
        return stores.ask(self.folder / "store.db", question)

    def check_books(self, done: Any) -> None:
        """The ledger has each rollout once, and what the summary says."""

        parts = self.ask_store(agl.load_parts)
        ledger = Ledger.of_parts(parts)
        assert len({one.rollout_id for one in parts}) == len(parts) == done.summary["rollouts"]
        sums = [len(ledger.calls), len(ledger.trained)]
        assert sums == [done.summary[name] for name in ("calls", "calls_trained")]

    def redrawn(self) -> list[tuple[str, int]]:
        """From which places on all was drawn anew: mode, and after how many steps."""

        found = self.ask_store(lambda store: store.query_documents("step"))
        (places,) = [one.body["places"] for one in found if one.key.endswith("/redrawn")]
        return [("train" if place % 2 else "val", place // 2) for place in places]


@pytest.fixture
def starts(tmp_path: Path, trainer_class: type[Any]) -> Starts:
    return Starts(tmp_path, trainer_class)


async def offline(llm: agl.LLM, task: str) -> float:
    raise ConnectionError("the network is gone")


@pytest.mark.parametrize(("every", "is_stopped"), [(1, False), (None, False), (1, True)])
def test_after_an_outage_the_steps_that_it_idled_are_drawn_anew(starts, every, is_stopped) -> None:
    class Stop(agl.Hook):
        def on_step_end(self, step: int, algorithm: Any) -> None:
            if is_stopped and step == 4:
                algorithm.ask_to_stop()

    starts.hooks = [Stop()]
    options = {"steps": 4, "stopping": {"max_idle_steps": 2}, "checkpoints": every}
    starts.start(**{**options, "stopping": {"max_idle_steps": 2, "target_reward": 0.0}})  # 3 steps
    starts.asks = offline
    if is_stopped:
        with pytest.raises(StoppedError, match="after step 4"):
            starts.start(**{**options, "steps": 9})
    with pytest.raises(AlgorithmError, match=r"in 2 steps in a row.* they are drawn anew"):
        starts.start(**{**options, "steps": 9})
    starts.asks, starts.hooks = starts.every_second, []
    done = starts.start(**{**options, "steps": 9})
    assert starts.ran == 6 * COPIES  # those of steps 4 to 9, and nothing of before
    assert (done.summary["steps"], starts.steps()) == (9, [*range(1, 10)])


def test_what_fails_when_a_failed_run_cleans_up_does_not_hide_why_it_failed(
    starts, trainer_class, monkeypatch, caplog
):
    async def fail(algorithm: Any) -> None:
        raise OSError("a socket was gone")

    monkeypatch.setattr(trainer_class, "clean_up", fail)
    with pytest.raises(AlgorithmError, match="a socket was gone"):
        starts.start()
    starts.die(3, steps=4)
    assert "clean_up failed, after the run had" in caplog.text


def test_a_run_whose_checkpoint_finds_no_space_says_so_and_goes_on(
    starts, trainer_class, monkeypatch
):
    def fail(algorithm: Any, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(trainer_class, "save", fail)
        words = r"step-000002' could not be written, with .* No space left"
        with pytest.raises(AlgorithmError, match=words) as failed:
            starts.start(checkpoints=2)
    assert "What it has is kept: go on with Trainer(run=" in failed.value.__notes__[0]
    assert not [*(starts.folder / "run/checkpoints").glob("*")]
    starts.check_books(starts.start(checkpoints=2))
    # Nothing that had ended ran again.
    assert (starts.ran, starts.steps()) == (COPIES, [1, 2, 3])


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_run_draws_anew_what_its_store_has_not_any_more(starts, caplog, in_memory) -> None:
    """Store gone; or one rollout of step 2 deleted: steps 2 and 3 are drawn anew."""
    starts.die(2, in_memory=in_memory)  # in the update of step 3

    async def delete_one(store: agl.LightningStore) -> None:
        one = next(r for r in await store.query_rollouts() if (r.metadata or {}).get("step") == 2)
        await store.delete_rollouts([one.rollout_id])

    if not in_memory:
        starts.ask_store(delete_one)
    done = starts.start(in_memory=in_memory)
    words = "training rollouts that were collected after step 1 are not all in the store"
    assert (words in caplog.text) != in_memory
    ran = 3 if in_memory else 2
    assert (starts.ran, done.summary["steps"], starts.steps()) == (ran * COPIES, 3, [1, 2, 3])
    assert done.summary["calls_trained"] == 3 * COPIES
    if not in_memory:
        assert starts.redrawn() == [("train", 1)]


def test_other_tasks_take_the_place_of_those_that_a_start_left(starts, caplog) -> None:
    starts.die(0, val=["me"])
    starts.start(val=["me"], tasks=["greet them"], force=True)
    assert "train tasks: " in caplog.text
    assert starts.redrawn() == [("val", 0)]
    assert starts.steps() == [1, 2, 3]


class Turned(TaskOrder):
    """As given, but for where it begins."""

    first = 0

    def order(self, tasks, number, random):
        return [*range(self.first, len(tasks)), *range(self.first)]


def test_what_was_collected_of_other_tasks_is_given_up(starts, caplog, monkeypatch) -> None:
    starts.die(1, task_order=f"{__name__}:Turned")
    monkeypatch.setattr(Turned, "first", 1)
    starts.start(task_order=f"{__name__}:Turned")
    assert "training rollouts that were collected after step 0 had other tasks" in caplog.text
    assert (starts.redrawn(), starts.ran) == ([("train", 0)], 3 * COPIES)


def test_a_run_that_had_nothing_left_to_learn_takes_no_further_step(starts: Starts) -> None:
    async def always_right(llm: agl.LLM, task: str) -> float:
        number = starts.ran
        await ask(llm, task)
        return 1.0 if number > COPIES else float(number % 2)

    starts.asks = always_right
    options = {"steps": 20, "stopping": {"max_idle_steps": 2}}
    first = starts.start(**options)
    assert first.summary["steps"] < 20
    again = starts.start(**options)
    assert starts.ran == 0
    assert again.summary["steps"] == first.summary["steps"]


def test_the_ledger_says_trained_of_the_rows_that_an_update_used(starts: Starts) -> None:
    starts.takes = lambda rows: [one for one in rows if one.advantages[0].value > 0]
    done = starts.start()
    calls = Ledger.of_parts(starts.ask_store(lambda store: agl.load_parts(store, step=2)))
    trained = [one.advantage.value > 0 for one in calls.trained]
    left = [(one.reason, one.advantage.value < 0) for one in calls.exclusions]
    assert trained == [True] * (COPIES // 2)
    assert left == [("not_selected", True)] * (COPIES // 2)
    assert done.summary["calls_trained"] == done.summary["calls"] / 2 == 3 * COPIES / 2
    assert done.summary["calls_excluded"] == {"not_selected": 3 * COPIES / 2}
    assert [line["version"] for line in starts.metrics()] == [1, 2, 3]
    starts.takes = lambda rows: []  # after which the weights are what they were
    assert starts.start(steps=4).weights_version == 3
    starts.takes = lambda rows: [*rows, replace(rows[0])]
    with pytest.raises(AlgorithmError, match="update returned 1 rows that it was not given"):
        starts.start(steps=5)


def test_rows_of_an_update_that_failed_are_not_in_the_ledger_as_trained(starts: Starts) -> None:
    starts.die(1)  # in the update of step 2
    parts = starts.ask_store(agl.load_parts)
    trained = [part for part in parts if any(one.kind == "call" for one in part.trained)]
    assert {(part.step, part.version, part.generation) for part in trained} == {(1, "1", 1)}
    assert {part.step for part in parts if part.mode == "train"} == {1}


def test_an_update_that_drains_its_list_has_trained_its_rows(starts: Starts) -> None:
    starts.drains = True
    done = starts.start()
    starts.check_books(done)
    assert done.summary["calls_trained"] == 3 * COPIES
    assert [line["rows"] for line in starts.metrics()] == [COPIES] * 3


@pytest.mark.parametrize(
    ("weighs", "words"),
    [
        (lambda rows: None, "weigh of Mortal: expected a list of rows; got None"),
        (lambda rows: rows + rows[:1], "weigh of Mortal: 1 calls are in two rows"),
    ],
)
def test_what_weigh_returns_is_looked_at(starts: Starts, weighs: Any, words: str) -> None:
    starts.weighs = weighs
    with pytest.raises(AlgorithmError, match=words):
        starts.start()


@pytest.mark.parametrize(
    ("assign", "said"),
    [
        (lambda calls: [], "rule 'Wrong' gave 0 credits for 1 calls"),
        (lambda calls: {}["gone"], r"rule 'Wrong' \(.*Wrong\) raised KeyError: 'gone' on the 1"),
    ],
)
def test_a_credit_rule_that_is_wrong_is_named(starts: Starts, caplog, assign, said) -> None:
    class Wrong(agl.CreditRule):
        def assign(self, calls: Any, spans: Any) -> Any:
            return assign(calls)

    with pytest.raises(AlgorithmError, match=said) as failed:
        starts.start(credit=Wrong())
    assert "cannot be read" not in str(failed.value)
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    assert "base_url" not in caplog.text


def test_the_ledger_says_trained_of_the_rows_that_weigh_left(starts: Starts) -> None:
    starts.weighs = lambda rows: (one for one in rows if one.advantages[0].value > 0)
    done = starts.start()
    starts.check_books(done)
    assert done.summary["calls_excluded"] == {"not_selected": 3 * COPIES / 2}
    assert done.summary["calls_trained"] == 3 * COPIES / 2


def test_no_group_has_rollouts_of_two_agents(starts, caplog) -> None:
    starts.die(2, checkpoints=1)  # in the update of step 3
    starts.agent_source = f"mended = 1\n{AGENT}"
    with pytest.raises(ConfigError, match="the agent's source file"):
        starts.start(checkpoints=1)
    starts.start(checkpoints=1, force=True)
    assert starts.ran == COPIES  # of step 3, whose rollouts the other agent had done
    assert starts.redrawn() == [("val", 2)]
    assert "goes on after step 2 as what it was not: the agent's source file: " in caplog.text
    starts.start(checkpoints=1, steps=4, show_progress=True)
    assert starts.ran == COPIES
    assert len(starts.redrawn()) == 1  # more steps, and what is shown, change nothing


def test_metrics_that_a_machine_took_along_come_back_from_the_store(starts: Starts) -> None:
    starts.start(val=["me"], checkpoints=1)
    path = starts.folder / "run/metrics.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    assert len(whole) == 5
    path.write_bytes(whole[1] + b"\xff\xfe\n" + whole[3][:20])
    starts.start(val=["me"], checkpoints=1, steps=4)
    lines = starts.metrics()
    places = [(line["step"], "val/reward/mean" in line) for line in lines]
    trained = [(step, False) for step in (1, 2, 3)]
    assert places == [(0, True), *trained, (3, True), (4, False), (4, True)]
    assert lines[:5] == [json.loads(line) for line in whole]


def test_hooks_hear_once_of_each_step_and_evaluation(starts: Starts) -> None:
    told: list[tuple[str, int]] = []

    class Watch(agl.Hook):
        def on_update_start(self, step: int) -> None:
            told.append(("update", step))

        def on_step_end(self, step: int) -> None:
            told.append(("step", step))

        def on_evaluation_end(self, step: int) -> None:
            told.append(("evaluation", step))

    starts.hooks = [Watch()]
    starts.die(2, val=["me"])  # in the update of step 3
    starts.start(val=["me"])
    steps = [(what, step) for step in (1, 2, 3) for what in ("update", "step")]
    steps.insert(4, ("update", 3))  # in which the machine died
    assert told == [("evaluation", 0), *steps, ("evaluation", 3)]


@pytest.mark.parametrize("killed_in", ["set_aside", "mark_lost", "write_generation"])
def test_a_start_killed_as_it_goes_back_is_as_if_it_had_not_been(starts, monkeypatch, killed_in):
    starts.start(steps=4, checkpoints=2)
    starts.agent_source = f"mended = 1\n{AGENT}"
    back = {"force": True, "resume_from": str(starts.folder / "run/checkpoints/step-000002")}

    def kill(*args: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(f"agl_learning.trainer.opening.{killed_in}", kill)
        with pytest.raises(AlgorithmError, match="killed"):
            starts.start(steps=4, **back)
    again = back if killed_in == "write_generation" else {"force": True}
    done = starts.start(steps=5, checkpoints=2, **again)
    starts.check_books(done)
    after = 4 if killed_in == "set_aside" else 2
    assert {*starts.redrawn()} == {("val", after)}
    assert starts.ran == (5 - after) * COPIES
    for aside in (starts.folder / "run/checkpoints").glob("aside-*"):
        with pytest.raises(ConfigError, match=r"went back behind.*Give another run_dir"):
            starts.start(steps=6, force=True, resume_from=str(aside))


@pytest.mark.parametrize("left", ["{", None])
def test_the_file_with_the_run_s_id_is_written_again_from_its_checkpoint(starts, caplog, left):
    starts.start(checkpoints=1)
    path = starts.folder / "run/run.json"
    before = json.loads(path.read_text())
    path.unlink()
    if left is not None:
        path.write_text(left)
    starts.start(checkpoints=1, steps=4)
    assert "run.json is " in caplog.text
    after = json.loads(path.read_text())
    assert after["run"] == before["run"]
    assert after["generation"] > 2
    assert (starts.ran, starts.steps()) == (COPIES, [1, 2, 3, 4])


def test_a_run_from_another_run_s_checkpoint_has_its_own_folder_and_goes_on(starts: Starts) -> None:
    starts.start(checkpoints=1)
    before = (starts.folder / "run/metrics.jsonl").read_bytes()
    starts.run_dir = "other"
    origin = str(starts.folder / "run/checkpoints/step-000002")
    options = {"checkpoints": 1, "resume_from": origin}
    starts.die(2, **options, steps=4)  # before it has a checkpoint, or a line of metrics
    earlier = ({"resume_from": origin.replace("000002", "000001")}, "which began from")
    for change, words in (earlier, ({"seed": 1}, "other options: seed: 0 then, 1 now")):
        with pytest.raises(ConfigError, match=words):
            starts.start(in_memory=True, steps=4, **{**options, **change})
    done = starts.start(**options, steps=4)
    assert (starts.ran, done.summary["steps"]) == (COPIES, 4)
    assert done.summary["run_dir"] == str(starts.folder / "other")
    assert (starts.folder / "run/metrics.jsonl").read_bytes() == before
    run_id = json.loads((starts.folder / "other/run.json").read_text())["run"]
    done = starts.start(**options, steps=5, run=run_id)
    assert (starts.ran, done.summary["steps"]) == (COPIES, 5)
    assert done.summary["calls_trained"] == 3 * COPIES  # of its own, not of the other run's steps


def test_a_run_whose_checkpoints_are_all_damaged_says_how_it_can_go_on(starts: Starts) -> None:
    starts.start(checkpoints=2)
    checkpoints = starts.folder / "run/checkpoints"
    for manifest in checkpoints.glob("*/checkpoint.json"):
        manifest.write_text("{")
    words = r"2 checkpoints in .*of step-000003, checkpoint.json cannot be read.*or remove those"
    with pytest.raises(ConfigError, match=words):
        starts.start(steps=4)
    shutil.rmtree(checkpoints)
    done = starts.start(steps=4)
    assert (starts.ran, done.summary["steps"], starts.steps()) == (COPIES, 4, [1, 2, 3, 4])


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_folder_in_which_nothing_can_be_saved_is_refused_before_any_rollout(starts, kind) -> None:
    (place := starts.folder / "run/checkpoints").parent.mkdir()
    place.touch() if kind == "file" else place.symlink_to("gone")
    with pytest.raises(ConfigError, match=r"written into '.*run/checkpoints', .* or give another"):
        starts.start()
    place.unlink()
    assert (starts.ran, starts.start().summary["steps"]) == (0, 3)


def test_what_a_kill_left_of_checkpoints_is_removed_by_the_next_start(starts: Starts) -> None:
    starts.start()
    checkpoints = starts.folder / "run/checkpoints"
    for kind in ("gone", "partial"):
        (checkpoints / f".step-000001.{kind}/more").mkdir(parents=True)
    starts.start()  # which has no step left, and saves nothing
    assert [path.name for path in checkpoints.iterdir()] == ["step-000003"]


def test_a_run_from_a_folder_without_checkpoints_is_replayed_from_its_own_beginning(starts) -> None:
    starts.die(0)
    starts.run_dir = "other"
    other = starts.start(resume_from=str(starts.folder / "run"))
    starts.run_dir = "run"
    starts.start(checkpoints=1)
    begun = read_generation(starts.folder / "other")
    assert checkpoint_before(other, starts.folder / "other", 2, begun) is None


def test_a_replay_compares_metrics_whose_names_only_begin_like_places() -> None:
    names = ("step", "step_length/mean", "version", "version_lag", "time/step", "seconds")
    replay = Replay(1, 0, is_exact=True)
    replay.compare_metrics(dict.fromkeys(names, 1.0), dict.fromkeys(names, 2.0))
    assert [one.what for one in replay.compared] == ["step_length/mean", "version_lag"]
