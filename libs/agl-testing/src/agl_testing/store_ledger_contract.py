"""The part of the store contract about the ledger: accounts of rollouts, apart from spans."""

from typing import Any

import pytest

from agl.errors import InvalidQueryError, UnknownRecordError
from agl.store.base import LightningStore
from agl.types import Credit, Exclusion, LedgerItem, LedgerPart, Trained
from agl_testing.store_steps import span_of


def part_of(rollout_id: str, step: int | None = 1, **about: Any) -> LedgerPart:
    """An account of one trained call and one rollout."""
    call: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": "at", "call_id": "call"}
    return LedgerPart(
        rollout_id=rollout_id,
        step=step,
        mode="train",
        algorithm="toy",
        items=[LedgerItem(**call), LedgerItem(kind="rollout", rollout_id=rollout_id)],
        trained=[Trained(**call, row=0, credit=Credit(reward=1.0), model_version="3")],
        **about,
    )


class StoreLedgerContract:
    """Accounts of rollouts."""

    async def test_account_comes_back_as_it_was(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        part = part_of(rollout.rollout_id, run="a1", generation=2, version="4")
        excluded = Exclusion(kind="rollout", rollout_id=rollout.rollout_id, reason="no_calls")
        other = LedgerPart(rollout_id=rollout.rollout_id, excluded=[excluded], lost=True)
        await store.add_ledger_parts([part, other])
        assert list(await store.query_ledger_parts()) == [part, other]
        await store.add_ledger_parts([])
        assert (await store.query_ledger_parts()).total == 2

    async def test_account_that_is_added_again_is_there_once(self, store: LightningStore) -> None:
        rollout_id = (await store.enqueue_rollout("task")).rollout_id
        first, second = part_of(rollout_id, 1), part_of(rollout_id, 2)
        await store.add_ledger_parts([first, second])
        await store.add_ledger_parts([first])  # the answer was lost
        assert list(await store.query_ledger_parts()) == [first, second]
        changed = first.model_copy(update={"generation": 2, "trained": []})
        await store.add_ledger_parts([changed])
        assert list(await store.query_ledger_parts()) == [changed, second]
        await store.add_ledger_parts([first])  # late, of a process that was thought dead
        assert list(await store.query_ledger_parts()) == [changed, second]

    async def test_accounts_of_other_runs_algorithms_and_steps_stand_beside_it(
        self, store: LightningStore
    ) -> None:
        rollout_id = (await store.enqueue_rollout("task")).rollout_id
        part = part_of(rollout_id)
        others = [
            part.model_copy(update=change)
            for change in ({"run": "b"}, {"algorithm": None}, {"step": None}, {"step": 0})
        ]
        await store.add_ledger_parts([part, *others])
        assert list(await store.query_ledger_parts()) == [part, *others]

    async def test_accounts_are_added_all_or_none(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        with pytest.raises(UnknownRecordError, match="ro-none"):
            await store.add_ledger_parts([part_of(rollout.rollout_id), part_of("ro-none")])
        assert (await store.query_ledger_parts()).total == 0

    async def test_query_ledger_parts(self, store: LightningStore) -> None:
        one, two = [(await store.enqueue_rollout(number)).rollout_id for number in range(2)]
        parts = [
            part_of(one, 1, run="a", generation=1),
            part_of(two, 1, run="a", generation=1, lost=True),
            part_of(two, 2, run="b"),
        ]
        await store.add_ledger_parts(parts)

        async def found(**options: Any) -> list[int]:
            return [parts.index(part) for part in await store.query_ledger_parts(**options)]

        assert await found() == [0, 1, 2]
        assert await found(rollout_id_in=[two]) == [1, 2]
        assert await found(rollout_id_in=[]) == []
        assert await found(rollout_id_in=["ro-none"]) == []
        assert await found(run="a") == [0, 1]
        assert await found(step=1, lost=False) == [0]
        assert await found(lost=True) == [1]
        assert await found(limit=1, offset=1) == [1]
        assert (await store.query_ledger_parts(limit=1)).total == 3
        with pytest.raises(InvalidQueryError, match="limit"):
            await store.query_ledger_parts(limit=0)

    async def test_spans_are_no_accounts(self, store: LightningStore) -> None:
        started = await store.start_rollout("task")
        part = part_of(started.rollout_id)
        await store.add_span(
            span_of(started).model_copy(
                update={
                    "name": "agentlightning.ledger",
                    "attributes": {"agentlightning.ledger.part": part.model_dump_json()},
                }
            )
        )
        assert (await store.query_ledger_parts()).total == 0

    async def test_number_that_no_database_holds_is_refused(self, store: LightningStore) -> None:
        with pytest.raises(InvalidQueryError, match="expected at most"):
            await store.query_ledger_parts(step=10**30)
        with pytest.raises(ValueError, match="less than or equal"):
            part_of("ro-1", 10**30)
