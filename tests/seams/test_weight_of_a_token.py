"""What a token is said to weigh in its step is what the learner gave it."""

import pytest

import agl
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.results import Collected
from agl_learning.collect.rollout_reader import Reader
from agl_records.ledger.ledger import Ledger, save_ledger
from agl_runs.failures import DEFAULT
from agl_runs.records import RunStart
from agl_runs.store import begin_run
from agl_views.explanations.rollout_view import show
from agl_views.explanations.token_explanation import explain_token

from ..plugins.ui.grouped import TOKENS  # noqa: TID252
from ..plugins.ui.stores import call_span, reward_span  # noqa: TID252

pytestmark = pytest.mark.plugins
# The second of the first task is no better and no worse than its siblings, and so are both of the
# second task; in which of the means they count depends on the estimator.
REWARDS = {"first": (1.0, 0.5, 0.0), "second": (0.5, 0.5)}


@pytest.mark.parametrize(
    ("estimator", "num_rollouts"), [("grpo", 3), ("reinforce_plus_plus", 5), ("rloo", 3)]
)
async def test_rollouts_without_advantage_count_in_the_means(tmp_path, estimator, num_rollouts):
    row_weights = pytest.importorskip("agl_torch.loss", exc_type=ImportError).row_weights
    store = agl.SqliteLightningStore(tmp_path / "store.db", durability="process")
    given = {"type": estimator, "estimator": {"type": estimator}, "loss": {"type": "grpo"}}
    await begin_run(store, RunStart(run_id="r", algorithm=estimator, config={"algorithm": given}))
    ledger, reader = Ledger(), Reader(store, agl.TraceToRows(), DEFAULT)
    ended, rollouts = [], []
    for group, (task, rewards) in enumerate(REWARDS.items()):
        for reward in rewards:
            about = {"mode": "train", "metadata": {"group": group, "step": 1}}
            rollout = await store.start_rollout(task, worker_id="w", **about)
            user = [{"role": "user", "content": "q"}]
            spans = [call_span(rollout, user, "abc", **TOKENS), reward_span(rollout, reward)]
            await store.add_many_spans(spans)
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
            rollouts.append(await store.get_rollout_by_id(rollout.rollout_id))
            ended.append(await reader.read(rollouts[-1], group, ledger))
    weighed = weigh(Collected(ended, ledger, 0.0), WeighingOptions(estimator=estimator))
    await save_ledger(store, ledger, rollouts, step=1, algorithm=estimator, run="r", generation=1)
    rows = [one.row for one in weighed]
    num_sampled = [row.num_sampled for row in rows]
    left_out = weighed[0].left_out
    weights = row_weights([row.rollout_id for row in rows], num_sampled, "grpo", left_out=left_out)
    assert weights[0].token == pytest.approx(1 / (3 * num_rollouts))

    rollout_id = rows[0].rollout_id
    chain = (await show(store, rollout_id)).chain
    told = await explain_token(store, chain, rows[0].call_ids[0], 1, again=True)
    assert [one.same for one in told.again.numbers] == [True] * 3, told.again
    terms = {term.name: term for term in told.terms}
    assert told.call.advantage is not None
    assert terms["length"].value == pytest.approx(told.call.advantage * (weights[0].token - 1))
    assert f"{num_rollouts} rollouts" in terms["length"].because
    await store.close()
