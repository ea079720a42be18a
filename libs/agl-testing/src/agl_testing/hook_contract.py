"""What every hook and hook plugin must do, as a pytest class over a small run."""

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agl.agent.function import rollout
from agl.algorithm.base import FunctionalAlgorithm
from agl.plugins.hooks import HookManager, load_plugin
from agl.plugins.registry import GROUPS, find, names_in
from agl.trainer import Trainer
from agl_testing.contract import Contract


@rollout
def succeed_or_fail(task: int) -> float:
    """An agent: it fails at 0."""
    return 1 / task


class HookContract(Contract):
    """Claims of ``agl.plugins.hookspecs``."""

    kind = "hook"

    @pytest.fixture
    def hook(self) -> Any:
        """The hook to test, or the hook plugin of that name."""
        if self.component in names_in(GROUPS["plugin"]):
            return load_plugin(find(GROUPS["plugin"], self.component))
        return self.build()

    def test_its_methods_are_hooks(self, hook: Any) -> None:
        """Each has the name of a hook, and takes arguments that the hook has."""
        HookManager().register(hook)

    def test_it_raises_nothing_and_changes_nothing(
        self, hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a run with a rollout that fails; what it is given is for others as well."""
        monkeypatch.setenv("AGL_STRICT_PLUGINS", "1")
        monkeypatch.chdir(tmp_path)
        metrics: dict[str, Any] = {"reward/mean": 0.5, "nothing": None}

        async def learn(train_dataset: Any, store: Any) -> None:
            rollouts = [await store.enqueue_rollout(task) for task in train_dataset]
            await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in rollouts])
            await algorithm.publish_resources({})
            await algorithm.tell("on_update_start", step=1, rows=[])
            await algorithm.tell("on_step_end", step=1, metrics=metrics)
            await algorithm.tell("on_evaluation_end", step=1, metrics=metrics)
            await algorithm.tell("on_checkpoint_saved", step=1, path=tmp_path)

        algorithm = FunctionalAlgorithm(learn)
        given = [] if self.component in names_in(GROUPS["plugin"]) else [hook]  # that is in it
        Trainer(algorithm=algorithm, strategy="shm", hooks=given).fit(succeed_or_fail, [0, 1])
        assert metrics == {"reward/mean": 0.5, "nothing": None}

    def test_runners_in_other_processes_get_a_copy(self, hook: Any) -> None:
        """It pickles; a module need not, as each process loads its own."""
        if not isinstance(hook, ModuleType):
            pickle.loads(pickle.dumps(hook))
