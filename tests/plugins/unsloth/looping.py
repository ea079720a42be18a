"""A loop that trains nothing: what serves it answers from a list, and a version is a number."""

import contextlib
import random

from tests.plugins.agents import complete
from tests.plugins.line import run_line

import agl
from agl_learning.selection import select_best
from agl_learning.trainer.version import FineTuning
from agl_models.versions import Served, Version


async def ask(task: str, llm: agl.LLM) -> float:
    """1 for an answer with a 7 in it."""
    return float("7" in await complete(llm, {"role": "user", "content": task}))


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    """Asks once."""
    return await ask(task, llm)


def some_number(body):
    """What the model says: a number of two digits, by chance."""
    return str(random.randrange(10, 100))


class Counting(FineTuning):
    """Serves ``url`` for every version, and counts what it is asked to train."""

    name = "counting"
    is_prepared = False

    def __init__(self, url, *, min_reward=None, **options):
        super().__init__(show_progress=False, **options)
        self.url, self.min_reward, self.fails = url, min_reward, False
        self.served, self.trained, self.cleaned, self.measured = [], [], 0, {}

    async def prepare(self):
        self.is_prepared = True
        return Version(0, "start")

    @contextlib.asynccontextmanager
    async def serve(self, version):
        self.served.append(version.ref)
        yield Served({"model": "hosted_vllm/echo", "api_base": self.url})

    def select(self, collected, iteration):
        given = {"min_reward": self.min_reward, "max_length": None, "seed": self.seed}
        return select_best(collected, iteration, keep_fraction=1.0, **given)

    async def train(self, examples, version, number):
        if self.fails:
            raise OSError("the disk is full")
        lines = examples.read_text().splitlines()
        self.trained.append((version.ref, number, len(lines)))
        return Version(number, f"trained-{number}", {"lines": len(lines), **self.measured})

    async def clean_up(self):
        self.cleaned += 1


async def fit(algorithm, store, train, val=None, gateway=None, agent=agent):
    """Run it with one runner beside it, over the real gateway and adapter."""
    algorithm.set_adapter(agl.TraceToRows())
    algorithm.set_llm_proxy(gateway or agl.LLMProxy())
    return await run_line(algorithm, store, agent, train, val)
