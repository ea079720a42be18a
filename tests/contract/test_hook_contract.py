"""The contract of hooks over small ones, and hooks that break it."""

import threading

import pytest

import agl
from agl.errors import AglError
from agl_testing.hook_contract import HookContract


class Counts(agl.Hook):
    """The smallest third-party hook."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, step, metrics):
        self.steps.append(step)


class TestHook(HookContract):
    component = Counts


class Misspelt(agl.Hook):
    def on_steps_end(self, step):
        pass


class Raises(agl.Hook):
    def on_step_end(self, metrics):
        return 1 / metrics["reward/median"]


class RaisesAfterAFailure(agl.Hook):
    def on_rollout_end(self, rollout, spans):
        spans[-1].attributes["no such key"]


class Takes(agl.Hook):
    def on_step_end(self, metrics):
        metrics.pop("nothing")


class Locked(Counts):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("claim", "broken"),
    [
        ("its_methods_are_hooks", Misspelt),
        ("it_raises_nothing_and_changes_nothing", Raises),
        ("it_raises_nothing_and_changes_nothing", RaisesAfterAFailure),
        ("it_raises_nothing_and_changes_nothing", Takes),
        ("runners_in_other_processes_get_a_copy", Locked),
    ],
)
def test_a_hook_that_breaks_a_claim_is_caught(claim, broken, tmp_path, monkeypatch):
    needed = [tmp_path, monkeypatch] if claim.startswith("it_raises") else []
    with pytest.raises((AssertionError, AglError, TypeError)):
        getattr(HookContract(), f"test_{claim}")(broken(), *needed)
