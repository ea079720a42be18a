"""A trainer or an algorithm that is used twice: the second run has nothing of the first one."""

from typing import Any

import pytest

import agl

pytest.importorskip("agl_adapters")


class Look(agl.Algorithm):
    """Notes what it was given."""

    default_adapter = "rows"

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, str, list[str] | None]] = []

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        adapter: Any = self.get_adapter()
        assert self.get_adapter() is adapter
        match, resources = adapter.agent_match, self.get_initial_resources()
        names = None if resources is None else sorted(resources)
        self.seen.append((match and match.pattern, adapter.truncated, names))


class Agent(agl.LitAgent[int]):
    def rollout(self, task: int, resources: Any, rollout: Any) -> float:
        return 1.0


def test_second_agent_of_a_trainer_says_which_of_its_agents_are_trained() -> None:
    look = Look()
    trainer = agl.Trainer(algorithm=look, strategy="shm")
    for name in ("writer", "critic", None):
        trainer.fit(Agent(trained_agents=name))
    assert [match for match, _, _ in look.seen] == ["writer", "critic", None]


def test_second_trainer_of_an_algorithm_gives_what_it_has_and_no_more() -> None:
    look = Look()
    prompt = agl.PromptTemplate(template="A {x}", engine="f-string")
    given: dict[str, Any] = {
        "adapter": {"type": "rows", "truncated": "exclude"},
        "initial_resources": {"prompt": prompt},
    }
    for options in (given, {}, given):
        agl.Trainer(algorithm=look, strategy="shm", **options).fit(Agent())
    first, second = (None, "exclude", ["prompt"]), (None, "train", None)
    assert look.seen == [first, second, first]
