"""``tinker`` over the real line and Tinker's real SDK, against a local service that learns."""

import pytest

import agl

from .agents import ask

# The SDK leaves a connection of each of its clients to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

TASKS = ["one", "two", "three"]


@agl.rollout
async def says_red(task: str, llm: agl.LLM) -> float:
    """Reward for one word, whatever the task says."""
    return float((await ask(llm, task)).split()[:1] == ["red"])


async def test_reward_rises(service, tinker, line):
    algorithm = await line(
        says_red, tinker(iterations=6), TASKS, ["two"], adapter=agl.TraceToRows()
    )
    assert algorithm.summary["rewards"][-1] > 0.6
