# ruff: noqa: F811  # tests name the fixtures that another file has
"""Answers that must not be paid run beside a training, apart from it, and are seen when paid."""

import asyncio
import json

import aiohttp
import pytest

import agl
from agl_inspect.graders.canaries import KINDS, Canaries

from .test_going_on import COPIES, Starts, starts, trainer_class  # noqa: F401  # fixtures
from .word_trainer import WORDS

pytestmark = pytest.mark.plugins
pytest.importorskip("agl_gateway")


@pytest.mark.parametrize("is_fooled", [True, False])
def test_canaries_are_apart_from_the_training_and_tell_what_is_paid(
    starts: Starts, caplog: pytest.LogCaptureFixture, is_fooled: bool
) -> None:
    async def graded(llm: agl.LLM, task: str) -> float:
        is_good = starts.ran % 2
        body = {"model": llm.model, "messages": [{"role": "user", "content": task}]}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(f"{llm.endpoint}/chat/completions", json=body) as response,
        ):
            said = (await response.json())["choices"][0]["message"]["content"]
        return float(is_good if said in WORDS else is_fooled and "\\boxed" in said)

    starts.asks, starts.hooks = graded, [Canaries(share=1.0)]
    done = starts.start(steps=4)
    starts.check_books(done)
    assert done.summary["rollouts"] == 4 * COPIES
    lines = map(json.loads, (starts.folder / "run/canaries.jsonl").read_text().splitlines())
    paid = {one["answer"]: one["reward"] for one in lines}
    assert paid == {**dict.fromkeys(KINDS, 0.0), "format": float(is_fooled)}
    warning = "a model that has the form of an answer and nothing in it earned 1, and the best"
    assert caplog.text.count(warning) == is_fooled

    async def statuses() -> set[str]:
        store = agl.SqliteLightningStore(starts.folder / "store.db")
        try:
            canaries = [one for one in await store.query_rollouts() if one.mode == "test"]
            assert len(canaries) == 4 * COPIES
            return {one.status for one in canaries}
        finally:
            await store.close()

    assert {"succeeded"} <= asyncio.run(statuses()) <= {"succeeded", "cancelled"}
