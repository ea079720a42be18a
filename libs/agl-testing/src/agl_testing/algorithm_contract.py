"""What every algorithm and trainer must do, as a pytest class over runs of a small agent.

Options that make a step small (``steps``, ``group_size``, ``groups_per_step``) are set, if it has
them. The agent calls the model, if the resources have one.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import Request, urlopen

import pytest

from agl.agent.base import LitAgent
from agl.agent.function import rollout
from agl.algorithm.base import Algorithm
from agl.errors import UnusedDatasetError
from agl.plugins.schema import schema_of
from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.trainer import Trainer
from agl.types import LLM, Rollout
from agl_testing.contract import Contract


@rollout
def pupil(task: str | None, llm: LLM | None = None) -> float:
    """An agent that fails at None; its reward is the number of letters that were said."""
    assert task is not None
    said = task
    if llm is not None:
        body = {"model": llm.model, "messages": [{"role": "user", "content": task}]}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {llm.api_key}"}
        url = f"{llm.endpoint}/chat/completions"
        with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
            said = json.load(answer)["choices"][0]["message"]["content"]
    return float(len(said))


class AlgorithmContract(Contract):
    """Claims of ``Algorithm``'s docstrings."""

    kind = "algorithm"
    expected_type = Algorithm
    agent: ClassVar[LitAgent[Any]] = pupil
    train: ClassVar[Sequence[Any]] = ("one", "two")
    val: ClassVar[Sequence[Any]] = ("three",)
    """Tasks to measure with; others than ``train``."""

    @pytest.fixture
    def algorithm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Algorithm:
        """The algorithm to test; what it writes goes to a folder of the test's."""
        monkeypatch.chdir(tmp_path)
        return self.build(steps=2, groups_per_step=1, group_size=2)

    def fit(self, algorithm: Algorithm, **given: Any) -> tuple[LightningStore, list[Rollout]]:
        """Run it to its end; the store of the run, and the rollouts there."""
        store = InMemoryLightningStore()
        trainer = Trainer(algorithm=algorithm, store=store, strategy="shm", n_runners=2)
        trainer.fit(self.agent, **{"train_dataset": self.train, **given})
        return store, list(asyncio.run(store.query_rollouts()))

    def test_all_rollouts_have_ended_at_its_end(self, algorithm: Algorithm) -> None:
        """Nothing is left queued or under way."""
        _, rollouts = self.fit(algorithm)
        ended = {"succeeded", "failed", "cancelled"}
        assert [one.status for one in rollouts if one.status not in ended] == []

    def test_failed_rollouts_do_not_end_the_run(self, algorithm: Algorithm) -> None:
        """They have no reward, and are data as any other."""
        self.fit(algorithm, train_dataset=[None, self.train[0]])

    def test_tasks_to_measure_with_are_used_or_refused(self, algorithm: Algorithm) -> None:
        """``check_datasets`` refuses those that ``run`` would leave unused."""
        try:
            _, rollouts = self.fit(algorithm, val_dataset=self.val)
        except UnusedDatasetError:
            return
        assert any(one.input in self.val for one in rollouts), "no rollout is of val's tasks"

    def test_it_runs_twice(self, algorithm: Algorithm) -> None:
        """What an earlier run had is forgotten."""
        assert len(self.fit(algorithm)[1]) == len(self.fit(algorithm)[1])

    def test_it_publishes_no_more_than_it_says(self, algorithm: Algorithm) -> None:
        """``publishes``, if it is set, has the kinds of all resources."""
        updates = asyncio.run(self.fit(algorithm)[0].query_resources())
        published = [one for update in updates for one in update.resources.values()]
        allowed = (object,) if algorithm.publishes is None else algorithm.publishes
        assert [one for one in published if not isinstance(one, allowed)] == []

    def test_options_that_may_change_are_its_own(self, algorithm: Algorithm) -> None:
        """``safe_options`` and ``growing_options`` are names of options."""
        named = type(algorithm).safe_options | type(algorithm).growing_options
        assert named - {option.name for option in schema_of(type(algorithm)).options} == set()
