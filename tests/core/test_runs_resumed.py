"""Runs that go on: where, with what, and what is refused instead."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.errors import ConfigError

from .toy_runs import Toy, Writing, agent, fit, runs_of

pytestmark = pytest.mark.usefixtures("here")


def test_run_that_goes_on_has_the_folder_that_it_had(store, tmp_path):
    fit(store, run="a", run_dir="elsewhere")
    assert fit(store, run="a", resume=True).seen[0][2] == tmp_path / "elsewhere"


async def test_trainer_in_a_running_loop_says_what_to_do():
    toy, tasks = Toy(), [1, 2]
    trainer = agl.Trainer(algorithm=toy, strategy="shm")
    with pytest.raises(ConfigError, match=r"await asyncio\.to_thread\(trainer\.fit"):
        trainer.fit(agent, tasks)
    await asyncio.to_thread(trainer.fit, agent, tasks)
    assert len(toy.seen) == 1


def test_new_run_of_a_name_that_there_is_is_refused(store):
    fit(store, run="a")
    with pytest.raises(ConfigError, match=r"'a' is in the store already .finished.*resume=True"):
        fit(store, run="a")
    assert [len(run.generations) for run in runs_of(store)] == [1]


def test_going_on_with_what_there_is_not_names_what_there_is(store):
    fit(store, run="a")
    with pytest.raises(ConfigError, match=r"no run 'b' in this store.*newest here: a"):
        fit(store, run="b", resume=True)
    fit(run="c")
    with pytest.raises(ConfigError, match=r"no run 'b' to go on with.*Runs here: c"):
        fit(run="b", resume=True)
    assert not Path("agl-runs/b").exists()
    with pytest.raises(ConfigError, match="resume=True needs the id"):
        fit(store, resume=True)


@pytest.mark.parametrize("run_id", ["a/b", "", "..", "-x"])
def test_id_that_names_no_folder_is_refused(run_id):
    with pytest.raises(ConfigError, match="the id of a run names its folder"):
        fit(run=run_id)


def test_run_of_another_algorithm_is_refused(store):
    fit(store, run="a")
    with pytest.raises(ConfigError, match="run 'a' is one of 'toy', and this is 'baseline'"):
        fit(store, agl.Baseline(), run="a", resume=True)


def test_folder_says_which_run_goes_on_where_nobody_else_does(caplog):
    Path("out").mkdir()
    Path("out/run.json").write_text('{"run": "other", "generation": 2}')
    with pytest.raises(ConfigError, match="holds run 'other'"):
        fit(run="a", run_dir="out")
    # A store in memory knows of no earlier starts.
    assert fit(run_dir="out").seen[0][:2] == ("other", 3)
    assert "the store has no record of run other" in caplog.text


def test_folder_that_an_algorithm_names_is_made_by_it():
    class Making(agl.Algorithm):
        run_dir = "own"

        def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            Path(self.run_dir).mkdir()

    fit(algorithm=Making())
    assert Path("own").is_dir()


def test_run_that_its_folder_names_is_refused_where_it_would_be_another(store):
    fit(store, Writing(), run_dir="out")
    with pytest.raises(ConfigError, match=r"seed: 7 then, 8 now.*give another run_dir, or go on"):
        fit(store, Writing(seed=8), run_dir="out")
    assert [len(run.generations) for run in runs_of(store)] == [1]
    assert fit(store, Writing(seed=8), run_dir="out", force=True).seen[0][1] == 2
    (run,) = runs_of(store)
    assert run.seed == 8
    assert run.generations[1].differences[0] == "algorithm.seed: 7 then, 8 now"


def test_store_that_keeps_no_runs_is_used_all_the_same():
    class Older(agl.LightningStore):
        def __init__(self) -> None:
            self.inside = agl.InMemoryLightningStore()

        async def call(self, operation: Any, arguments: dict[str, Any]) -> Any:
            if "_documents" in operation:
                return await super().call(operation, arguments)
            return await getattr(self.inside, operation)(**arguments)

    class Unasking(Toy):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            self.seen.append(self.get_run())

    store = Older()
    assert fit(store, Unasking()).seen[0][1] == 1
    with pytest.raises(agl.AglError, match="Older has no query_documents"):
        fit(store, Unasking(), run="a")


def test_folder_of_what_was_not_started_is_not_left(tmp_path):
    class Refuses(Toy):
        async def clear_leftovers(self, store: Any) -> None:
            raise ConfigError("not so")

    with pytest.raises(ConfigError, match="not so"):
        fit(agl.InMemoryLightningStore(), Refuses(), run_dir="out")
    assert not (tmp_path / "out").exists()
