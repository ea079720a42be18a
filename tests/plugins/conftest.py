"""The real line: store, runner, gateway, adapter."""

import contextlib

import pytest
from tests.interpreter import Serving

from .line import run_line


@pytest.fixture
async def line():
    """Runs an algorithm, with its default adapter, and one runner beside it."""
    import agl
    from agl.algorithm.adapter import Adapter
    from agl.plugins.build import build_component

    store = agl.InMemoryLightningStore()

    async def run(agent, algorithm, train=None, val=None, gateway=None):
        algorithm.set_adapter(
            build_component(algorithm.default_adapter, group="agl.adapters", expected_type=Adapter)
        )
        algorithm.set_llm_proxy(gateway or agl.LLMProxy())
        return await run_line(algorithm, store, agent, train, val)

    run.store = store
    yield run
    await store.close()


@pytest.fixture
def start_agl():
    """Starts ``agl`` commands that serve; they end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*words, **options):
            served = Serving(*words, **options)
            stack.callback(served.process.__exit__, None, None, None)  # closes its pipe, too
            stack.callback(served.process.kill)
            return served

        yield start


async def everything_written(store, folder):
    """The texts of a run's files, and of what its store has."""
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    found = [*(await store.query_resources()).items, *(await store.query_rollouts()).items]
    found += [
        one for kind in ("run", "step", "ledger") for one in await store.query_documents(kind)
    ]
    for rollout in await store.query_rollouts():
        found += await store.query_spans(rollout.rollout_id)
    texts += [one.model_dump_json() for one in found]
    assert sum(map(len, texts)) > 10_000
    return texts
