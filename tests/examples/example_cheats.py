"""A solution and cheats for a task of an example, whose folder is to be on the path.

    python example_cheats.py STRATEGY ISOLATION CHEAT ...   # ISOLATION is JSON; prints rewards
    python example_cheats.py alone                          # the same where each scores itself

What is imported here loads no tasks: behind a wall the module is imported again.
"""

import gc
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import agl


@dataclass(frozen=True)
class Example:
    """What there is to know of one."""

    agent: agl.LitAgent[Any]
    load: Callable[[], list[Any]]
    solve: Callable[[Any], Any]
    """Task without its key -> the right answer."""
    say: Callable[[Any], Any]
    """Key -> the right answer, as its grader wants it."""
    wrong: str


def calc_x() -> Example:
    from calc_agent import calc_agent
    from calc_tasks import small_tasks
    from calculator import calculate

    return Example(
        agent=calc_agent,
        load=lambda: [
            task for task in small_tasks()[0] if task["question"].startswith("What is (")
        ],
        solve=lambda task: f"### ANSWER: {calculate(task['question'][8:-1])} ###",
        say=lambda private: f"### ANSWER: {private['result']} ###",
        wrong="### ANSWER: 123456789 ###",
    )


def unsloth() -> Example:
    from math_agent import math_agent, math_problem

    return Example(
        agent=math_agent,
        load=lambda: [math_problem("What is 17 + 25 ?", 42)],
        solve=lambda task: f"### {sum(map(int, task['input'].split()[2:5:2]))} ###",
        say=lambda private: f"### {private['target']} ###",
        wrong="### 123456789 ###",
    )


def spider() -> Example:
    from sql_agent import LitSQLAgent
    from sql_tasks import load_small_tasks

    return Example(
        agent=LitSQLAgent(),
        load=lambda: load_small_tasks()[0],  # "How many singers are there?"
        solve=lambda task: f"SELECT count(*) FROM {task['question'].split()[2][:-1]}",
        say=lambda private: private["query"],
        wrong="SELECT 'no idea'",
    )


def apo() -> Example:
    from room_selector import load_tasks, right_room, room_selector

    return Example(
        agent=room_selector,
        load=lambda: [*load_tasks()[0]],
        solve=lambda task: right_room(task["task_input"]),
        say=lambda private: private["expected_choice"],
        wrong="The moon",
    )


BY_MODULE = {"calc_agent": calc_x, "math_agent": unsloth, "sql_agent": spider, "room_selector": apo}
MODULE, EXAMPLE = next((name, make()) for name, make in BY_MODULE.items() if find_spec(name))
FOLDER = Path(sys.modules[MODULE].__file__ or "").parent
grade: Any = EXAMPLE.agent.grade_method()
solved: list[Any] = []


def solution(task: Any, rollout: Any) -> Any:
    solved.append(EXAMPLE.solve(task))
    return solved[0]


def solution_again(task: Any, rollout: Any) -> Any:
    """After cheats which have broken what the solution calls, unless there is a wall."""
    return solved[0] if solved else EXAMPLE.solve(task)


def reads_its_task(task: Any, rollout: Any) -> Any:
    return EXAMPLE.say(task["private"]) if "private" in task else EXAMPLE.wrong


def reads_its_rollout(task: Any, rollout: Any) -> Any:
    given = rollout.input
    return EXAMPLE.say(given["private"]) if "private" in given else EXAMPLE.wrong


def rewrites_its_task(task: Any, rollout: Any) -> Any:
    key = {"result": "1", "target": 1.0, "query": "SELECT 1", "expected_choice": "The moon"}
    task["private"] = rollout.input["private"] = key
    return EXAMPLE.say(key)


def patches_what_scores(task: Any, rollout: Any) -> Any:
    math.isclose = lambda *_, **__: True
    for module in own_modules():
        for name, value in vars(module).items():
            if callable(value) and not isinstance(value, type):
                setattr(module, name, lambda *_, **__: 1.0)
    globals()["grade"] = lambda *_: 1.0
    return EXAMPLE.wrong


def patches_in_place(task: Any, rollout: Any) -> Any:
    function = getattr(grade, "__func__", grade)
    function.__code__ = (lambda *_: 1.0).__code__
    return EXAMPLE.wrong


def leaves_files(task: Any, rollout: Any) -> Any:
    names = [module.__name__ for module in own_modules()]
    for name in (*names, "conftest", "sitecustomize", "sqlite3", "decimal"):
        Path(f"{name}.py").write_text("raise SystemExit('reward: 1.0')\n")
    Path("reward.txt").write_text("1.0")
    os.environ["REWARD"] = "1.0"
    return EXAMPLE.wrong


def emits_its_reward(task: Any, rollout: Any) -> Any:
    agl.emit_reward(1.0)
    agl.emit_reward(1.0, attributes={"agentlightning.graded": True})
    return EXAMPLE.wrong


def lies(task: Any, rollout: Any) -> Any:
    return {"reward": 1.0, "result": 1.0, "private": {"result": "1"}, "score": [1.0]}


def claims_everything(task: Any, rollout: Any) -> Any:
    return " ".join(["1.0 True nan ### ANSWER: nan ### ### nan ### ### inf ###", EXAMPLE.wrong])


def says_nothing(task: Any, rollout: Any) -> Any:
    return None


def searches_the_memory(task: Any, rollout: Any) -> Any:
    """Of the runner, in whose process it runs unless there is a wall."""
    for found in gc.get_objects():
        if type(found) is dict and type(found.get("private")) is dict and "cheat" in found:
            return EXAMPLE.say(found["private"])
    return EXAMPLE.wrong


def loads_the_tasks(task: Any, rollout: Any) -> Any:
    """As the run did: the file lies beside the module that has the agent."""
    return EXAMPLE.say(EXAMPLE.load()[0]["private"])


def own_modules() -> list[ModuleType]:
    return [
        module
        for module in list(sys.modules.values())
        if str(getattr(module, "__file__", None) or "").startswith(str(FOLDER))
    ]


Cheat = Callable[[Any, Any], Any]
WORK_ALONE: list[Cheat] = [
    reads_its_task,
    reads_its_rollout,
    rewrites_its_task,
    patches_what_scores,
    patches_in_place,
]
"""Those of the others that have a point without a grader work in ``tests/attack``."""
ALWAYS_REFUSED: list[Cheat] = [
    *WORK_ALONE,
    leaves_files,
    emits_its_reward,
    lies,
    claims_everything,
    says_nothing,
]
REACH_FOR_THE_RUNNER: list[Cheat] = [searches_the_memory, loads_the_tasks]
ALL = {
    each.__name__: each
    for each in (solution, solution_again, *ALWAYS_REFUSED, *REACH_FOR_THE_RUNNER)
}


@agl.rollout(grade=grade)
def cheats(task: dict[str, Any], rollout: agl.Rollout) -> Any:
    """Does what its task says, or says what is wrong."""
    cheat = ALL[task["cheat"]]
    try:
        return cheat(task, rollout)
    except Exception:
        return EXAMPLE.wrong


def run_all(strategy: str, isolation: str, names: list[str]) -> dict[str, float | None]:
    """Each in turn on the first task of the example, by one runner."""
    rewards: dict[str, float | None] = {}
    task = EXAMPLE.load()[0]

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        for name in names:
            rollout = await store.enqueue_rollout({**task, "cheat": name})
            (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            assert isinstance(ended, agl.AttemptedRollout)
            assert ended.status == "succeeded", ended.attempt.error
            rewards[name] = agl.find_final_reward(await store.query_spans(rollout.rollout_id))

    port = {"server_port": 0} if strategy == "cs" else {}
    trainer = agl.Trainer(
        algorithm=algorithm,
        strategy={"type": strategy, **port},
        runner={"isolation": json.loads(isolation)},
    )
    trainer.fit(cheats)
    return rewards


def score_alone(name: str) -> float:
    """What it gets where its example's scorer runs in its own process."""
    task = {**EXAMPLE.load()[0], "cheat": name}
    rollout = agl.Rollout(rollout_id="ro-1", input=task, start_time=0.0)
    result = ALL[name](task, rollout)
    return float(grade(task, task["private"], result))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "alone":
        context = multiprocessing.get_context("fork")
        found: dict[str, float | None] = {}
        for cheat in (solution, *WORK_ALONE):
            with context.Pool(1) as pool:
                found[cheat.__name__] = pool.apply(score_alone, (cheat.__name__,))
    else:
        isolation, *names = arguments
        found = run_all(what, isolation, names)
    print(json.dumps(found))
