"""What came of a step then and now: accounts are compared item by item."""

from agl.types import EnqueueRolloutRequest, Rollout
from agl_learning.advantages.weighing import WeighingOptions, weigh
from agl_learning.collect.step_metrics import Totals, collected_metrics
from agl_learning.trainer.comparison import Replay
from agl_records.ledger.ledger import Ledger, save_ledger

from .rollouts_by_hand import leave_out, make_collected, make_ended


def of_step(ids, *calls):
    pairs = zip(ids, (1.0, 0.0), strict=True)
    batch = make_collected(*(make_ended(name, 0, [([1], [7], reward)]) for name, reward in pairs))
    for call_id in calls:
        leave_out(batch.ledger, call_id, "judge", ids[0])
    weigh(batch, WeighingOptions())
    return batch


async def test_what_only_one_of_two_accounts_has_is_named(memory_store):
    rollouts = await memory_store.enqueue_many_rollouts([EnqueueRolloutRequest(input=None)] * 2)
    ids = [one.rollout_id for one in rollouts]
    before = of_step(ids, "gone")
    await save_ledger(memory_store, before.ledger, before.rollouts, step=4, run="run")
    totals = await Totals.counting(memory_store, "run")
    totals.add([Rollout(rollout_id="c", input=None, start_time=0.0, status="failed")], Ledger())
    sums = {"rollouts": 3, "rollouts_failed": 1, "calls": 3, "calls_trained": 2}
    assert totals.summary() == {**sums, "calls_excluded": {"judge": 1}}
    for now, place in (of_step(ids, "gone"), ""), (of_step(ids), f"gone of rollout {ids[0]}"):
        told = Replay(4, 3, True)
        await told.compare_accounts(memory_store, "run", now)
        assert {one.same for one in told.compared} == {not place}
        assert place in told.compared[0].where
    assert "'judge' then, 'not there' now; 1 differ" in told.compared[0].where


async def test_what_came_late_since_makes_no_difference(memory_store):
    rollouts = await memory_store.enqueue_many_rollouts([EnqueueRolloutRequest(input=None)] * 2)
    ids = [one.rollout_id for one in rollouts]
    before, now = of_step(ids), of_step(ids)
    await save_ledger(memory_store, before.ledger, before.rollouts, step=4, run="run")
    leave_out(now.ledger, "after", "late", ids[0])
    told = Replay(4, 3, True)
    await told.compare_accounts(memory_store, "run", now)
    told.compare_metrics(collected_metrics(before), collected_metrics(now))
    assert {one.same for one in told.compared} == {True}
