"""A step of two rollouts of one task, with an answer of three tokens, as an algorithm leaves it."""

import functools

from agl.semconv import ModelCallAttributes as Call
from agl_runs.records import RunStart
from agl_runs.store import begin_run

from ..inspect.traces import account  # noqa: TID252
from .stores import call_span, filled, reward_span

TOKENS = {
    Call.PROMPT_TOKEN_IDS: [1, 2],
    Call.RESPONSE_TOKEN_IDS: [3, 4, 5],
    Call.RESPONSE_LOGPROBS: [-0.1, -2.0, -4.0],
}


def fill_with_group(path, told=None, **begun):
    """Rewards are 1 and 0; the id of the first.

    Args:
        path: Of the store's new file.
        told: What each advantage says of itself otherwise than that of GRPO.
        begun: More about the run.
    """
    return filled(path, functools.partial(_fill, told=told, begun=begun))


async def _fill(store, told, begun):
    given = {"algorithm": "toy", "config": {"algorithm": {}}, **begun}
    await begin_run(store, RunStart(run_id="r", **given))
    ended, about = [], {"group": 0, "step": 1}
    for value in (1.0, 0.0):
        rollout = await store.start_rollout("t", mode="train", worker_id="w", metadata=about)
        call = call_span(rollout, [{"role": "user", "content": "q"}], "abc", **TOKENS)
        await store.add_many_spans([call, reward_span(rollout, value)])
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        ended.append(await store.get_rollout_by_id(rollout.rollout_id))

    def train(ledger, row, advantages, place):
        ledger.train(row, [one.changed(**(told or {})) for one in advantages], 0)

    await account(store, [ended], train=train, run="r", generation=1)
    return ended[0].rollout_id
