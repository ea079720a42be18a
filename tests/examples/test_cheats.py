"""The grader of each example gives its solution 1, and 0 to what claims, lies or says nothing.

That nothing an agent leaves behind reaches a grader is ``tests/attack/test_graded_cheats.py``.
"""

from importlib import import_module
from typing import Any

import pytest

TASKS: dict[str, tuple[str, Any]] = {
    "calc_x": ("calc_agent:calc_agent", {"question": "What is 6 * 7?"}),
    "unsloth": ("math_agent:math_agent", {"input": "What is 17 + 25 ?"}),
    "spider": ("sql_agent:LitSQLAgent", "sql_tasks:load_small_tasks"),
    "apo": ("room_selector:room_selector", "room_selector:load_tasks"),
}
"""Example -> its agent, and a task or what loads them."""
KEYS: dict[str, Any] = {"calc_x": {"result": "42"}, "unsloth": {"target": 42}}
SOLUTIONS = {
    "calc_x": "### ANSWER: 42 ###",
    "unsloth": "### 42 ###",
    "spider": "SELECT count(*) FROM singer",
}
NONSENSE: list[Any] = [
    None,
    {"reward": 1.0, "result": 1.0, "private": {"result": "1"}, "score": [1.0]},
    "1.0 True nan ### ANSWER: nan ### ### nan ### ### inf ###",
]


def found(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("example", TASKS)
def test_solution_scores_one_and_every_claim_zero(example: str, use_example: Any) -> None:
    use_example(example)
    agent, task = TASKS[example]
    agent = found(agent)
    grade = (agent() if isinstance(agent, type) else agent).grade_method()
    if isinstance(task, str):
        task = dict(found(task)()[0][0])
    private = KEYS.get(example) or task.pop("private")
    solution = SOLUTIONS.get(example) or private["expected_choice"]
    assert grade(task, private, solution) == 1.0
    assert [grade(task, private, each) for each in NONSENSE] == [0.0] * len(NONSENSE)
