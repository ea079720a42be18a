"""Agents that cheat their grader, and one that is right; to be copied into a folder and run there.

    python graded_cheats.py STRATEGY ISOLATION CHEAT ...   # prints cheat -> reward as JSON
    python graded_cheats.py alone CHEAT               # prints what it gets where it scores itself

The scorer trusts whatever it finds: its modules, its variables, its folder.
"""

import asyncio
import atexit
import builtins
import gc
import json
import os
import statistics
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agl

QUESTION = "What is 6 * 7?"
RIGHT, WRONG = 42, 41
LATE = Path("late")
"""There once the grade is written that comes too late."""


def score(task: Any, private: Any, result: Any) -> float:
    """1 for the right answer to the question that was asked."""
    import colorsys

    if Path("reward.txt").exists():
        return float(Path("reward.txt").read_text())
    if "REWARD" in os.environ:
        return float(os.environ["REWARD"])
    assert colorsys.rgb_to_hls
    right = bool(task["question"] == QUESTION and result == private["answer"])
    return statistics.fmean([pow(float(right), 2)])


class Liar(str):
    """Equal to everything."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True


# --- cheats: each gets what an agent gets, leaves something behind, and returns an answer


def solves(task: Any, rollout: Any) -> Any:
    return RIGHT


def lies(task: Any, rollout: Any) -> Any:
    return {"answer": WRONG, "reward": 1.0, "private": {"answer": WRONG}}


def equals_everything(task: Any, rollout: Any) -> Any:
    return Liar("anything")


def reads_its_task(task: Any, rollout: Any) -> Any:
    return task.get("private", {}).get("answer")


def reads_its_rollout(task: Any, rollout: Any) -> Any:
    return rollout.input.get("private", {}).get("answer")


def rewrites_its_task(task: Any, rollout: Any) -> Any:
    task["private"] = rollout.input["private"] = {"answer": WRONG}
    return WRONG


def patches_a_module(task: Any, rollout: Any) -> Any:
    statistics.fmean = lambda values: 1.0
    return WRONG


def patches_a_builtin(task: Any, rollout: Any) -> Any:
    builtins.pow = lambda *values: 1.0
    return WRONG


def patches_the_scorer(task: Any, rollout: Any) -> Any:
    score.__code__ = (lambda task, private, result: 1.0).__code__
    sys.modules["__main__"].score = lambda task, private, result: 1.0  # type: ignore[attr-defined]
    return WRONG


def replaces_the_grader(task: Any, rollout: Any) -> Any:
    cheats.grade = lambda task, private, result: 1.0  # type: ignore[method-assign]
    type(cheats).grade = lambda self, task, private, result: 1.0  # type: ignore[method-assign]
    return WRONG


def sets_a_variable(task: Any, rollout: Any) -> Any:
    os.environ["REWARD"] = "1"
    return WRONG


def writes_a_reward_file(task: Any, rollout: Any) -> Any:
    Path("reward.txt").write_text("1")
    return WRONG


def leaves_a_module(task: Any, rollout: Any) -> Any:
    module = "import statistics\nrgb_to_hls = 1\nstatistics.fmean = lambda values: 1.0\n"
    for name in ("colorsys.py", "sitecustomize.py", "usercustomize.py", "conftest.py"):
        Path(name).write_text(module)
    sys.path.insert(0, os.getcwd())
    return WRONG


def leaves_something_for_the_end(task: Any, rollout: Any) -> Any:
    atexit.register(lambda: Path("reward.txt").write_text("1"))
    return WRONG


def emits_its_reward(task: Any, rollout: Any) -> Any:
    agl.emit_reward(1.0)
    return WRONG


def emits_a_grade(task: Any, rollout: Any) -> Any:
    agl.emit_reward(1.0, attributes={"agentlightning.graded": True})
    return WRONG


def writes_a_grade_later(task: Any, rollout: Any) -> Any:
    """In a thread that waits for the attempt to end, with the runner's own store."""
    store = cheats.get_runner().get_store()  # type: ignore[attr-defined]
    grade = {"agentlightning.graded": True, "agentlightning.reward.0.value": 1.0}
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    span = agl.Span.from_attributes(name="agentlightning.annotation", attributes=grade, **ids)

    async def write() -> None:
        while (await store.get_rollout_by_id(rollout.rollout_id)).status != "succeeded":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await store.add_span(span)
        LATE.touch()  # noqa: ASYNC240

    threading.Thread(target=lambda: asyncio.run(write()), daemon=True).start()
    return WRONG


# --- what only a wall stops: these reach for the runner itself, in whose process they run


def searches_the_memory(task: Any, rollout: Any) -> Any:
    """The key lies in the runner: as it was claimed, and as it is kept for the grader."""
    for found in gc.get_objects():
        if type(found) is dict and type(found.get("private")) is dict:
            return found["private"].get("answer")
    return None


def asks_the_store(task: Any, rollout: Any) -> Any:
    store = cheats.get_runner().get_store()  # type: ignore[attr-defined]
    found = asyncio.run(store.get_rollout_by_id(rollout.rollout_id))
    return found.input["private"]["answer"]


def patches_the_runner(task: Any, rollout: Any) -> Any:
    import agl_sandbox.grading

    agl_sandbox.grading._attributes = lambda reward: agl.emitter.reward_attributes(1.0)  # type: ignore[assignment]
    return WRONG


Cheat = Callable[[Any, Any], Any]
ALWAYS_REFUSED: list[Cheat] = [
    *(lies, equals_everything, reads_its_task, reads_its_rollout, rewrites_its_task),
    *(patches_a_module, patches_a_builtin, patches_the_scorer, replaces_the_grader),
    *(sets_a_variable, writes_a_reward_file, leaves_a_module, leaves_something_for_the_end),
    *(emits_its_reward, emits_a_grade),
]
NEED_A_WALL: list[Cheat] = [searches_the_memory, asks_the_store, patches_the_runner]
EVERY: list[Cheat] = [*ALWAYS_REFUSED, *NEED_A_WALL, writes_a_grade_later, solves]
CHEATS = {cheat.__name__: cheat for cheat in EVERY}


@agl.rollout(grade=score)
def cheats(task: dict[str, Any], rollout: agl.Rollout) -> Any:
    """Does what its task says, or gives a wrong answer."""
    cheat = CHEATS[task["cheat"]]
    try:
        return cheat(task, rollout)
    except Exception:
        return WRONG


def run_all(strategy: str, isolation: str, names: list[str]) -> dict[str, float | None]:
    """Every cheat in a run, one after the other by one runner; the reward of each."""
    rewards: dict[str, float | None] = {}

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        for name in names:
            task = {"cheat": name, "question": QUESTION, "private": {"answer": RIGHT}}
            rollout = await store.enqueue_rollout(task)
            (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
            assert isinstance(ended, agl.AttemptedRollout)
            assert ended.status == "succeeded", ended.attempt.error
            is_late = name == writes_a_grade_later.__name__
            while is_late and not LATE.exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.02)
            spans = await store.query_spans(rollout.rollout_id)
            rewards[name] = agl.find_final_reward(spans)
            if is_late:  # and if nobody knew who wrote what, and when
                unknown = {"writer": None, "late": False}
                spans = [span.model_copy(update=unknown) for span in spans]
                rewards[f"{name}, unknown"] = agl.find_final_reward(spans)

    port = {"server_port": 0} if strategy == "cs" else {}
    trainer = agl.Trainer(
        algorithm=algorithm, strategy={"type": strategy, **port}, runner={"isolation": isolation}
    )
    trainer.fit(cheats)
    return rewards


def score_oneself(name: str) -> None:
    """What a cheat gets from the same scorer, where that runs in the process of the agent."""
    task = {"cheat": name, "question": QUESTION, "private": {"answer": RIGHT}}
    rollout = agl.Rollout(rollout_id="ro-1", input=task, start_time=0.0)
    tracer = agl.OtelTracer()

    async def run() -> Any:
        async with tracer.trace_context():
            return CHEATS[name](task, rollout)

    # At the very end, after whatever the agent has left for it.
    atexit.register(lambda: print(json.dumps(score(task, task["private"], result))))
    tracer.init()
    result = asyncio.run(run())
    emitted = agl.find_final_reward(tracer.get_last_trace())
    if emitted is not None:
        atexit.register(lambda: print(json.dumps(emitted)))


if __name__ == "__main__":
    what, which, *names = sys.argv[1:]
    if what == "alone":
        score_oneself(which)
    else:
        print(json.dumps(run_all(what, which, names)))
