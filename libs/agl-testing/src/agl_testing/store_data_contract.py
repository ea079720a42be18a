"""The part of the store contract about other records: rollouts, resources, workers, counters."""

import asyncio
from functools import partial
from typing import Any

import pytest

from agl.emitter import reward_attributes
from agl.errors import InvalidQueryError, UnknownRecordError
from agl.store.base import LightningStore
from agl.types import (
    LLM,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Span,
)
from agl_testing.store_steps import claim, column, enqueue, ids_of, report, span_of, work_of

PROMPT: NamedResources = {"prompt": PromptTemplate(template="Hi {name}", engine="f-string")}
SENSELESS = {"limit": 0}, {"limit": -2}, {"offset": -1}, {"sort_by": "colour"}, {"sort_order": "up"}


class StoreDataContract:
    """Queries, resources, workers, counters."""

    # --- queries of rollouts and attempts

    async def test_query_rollouts_in_order_of_enqueueing(self, store: LightningStore) -> None:
        rollouts = await enqueue(store, 4)
        await claim(store)
        found = await store.query_rollouts()
        assert [rollout.input for rollout in found] == [0, 1, 2, 3]
        assert found.total == 4
        first = found[0]
        assert isinstance(first, AttemptedRollout)
        assert first.attempt.sequence_id == 1
        assert type(found[1]) is Rollout
        newest = await store.query_rollouts(sort_order="desc", limit=1)
        assert [one.rollout_id for one in newest] == [rollouts[3].rollout_id]

    async def test_query_rollouts_filters(self, store: LightningStore) -> None:
        abouts = enumerate([{"run": "r"}, None, {"run": "r", "step": 1}])
        requests = [EnqueueRolloutRequest(input=i, metadata=about) for i, about in abouts]
        a, b, c = await store.enqueue_many_rollouts(requests)
        await report(store, await claim(store), "succeeded")
        found = partial(column, store.query_rollouts, "input")
        ids = [c.rollout_id, a.rollout_id, "ro-none"]
        assert await found(status_in=["queuing"]) == [1, 2]
        assert await found(status_in=["succeeded", "queuing"]) == [0, 1, 2]
        assert await found(status=["succeeded"]) == [0]
        assert await found(rollout_id_in=ids) == [0, 2]
        assert await found(rollout_ids=ids) == [0, 2]
        assert await found(rollout_id_contains=b.rollout_id[3:]) == [1]
        assert await found(status_in=["queuing"], rollout_id_in=ids) == [2]
        assert await found(
            status_in=["succeeded"], rollout_id_in=[b.rollout_id], filter_logic="or"
        ) == [0, 1]
        assert [await found(run=name) for name in ("r", "s")] == [[0, 2], []]
        assert await found(run="r", status_in=["queuing"]) == [2]
        assert await found(status_in=[]) == await found(rollout_id_in=[]) == []

    async def test_query_rollouts_sorts_and_pages(self, store: LightningStore) -> None:
        for index, mode in enumerate(["val", None, "test", "train"]):
            await store.enqueue_rollout(index, mode=mode)  # type: ignore[arg-type]
        await report(store, await claim(store), "succeeded")
        found = partial(column, store.query_rollouts, "input")
        assert await found(sort_by="mode") == [1, 2, 3, 0]
        assert await found(sort_by="mode", sort_order="desc") == [0, 3, 2, 1]
        assert await found(sort_by="end_time") == [0, 1, 2, 3]
        assert await found(sort_by="end_time", sort_order="desc") == [3, 2, 1, 0]
        assert await found(offset=3) == [3]
        assert await found(offset=9) == []
        page = await store.query_rollouts(status_in=["queuing"], limit=2, offset=1)
        assert ([one.input for one in page], page.total) == ([2, 3], 3)

    async def test_query_rollouts_behind_one(self, store: LightningStore) -> None:
        modes = ["val", None, "val", "train", "val"]
        ids = [
            (await store.enqueue_rollout(index, mode=mode)).rollout_id  # type: ignore[arg-type]
            for index, mode in enumerate(modes)
        ]
        found = partial(_page, store)
        assert await found(mode="val") == ([0, 2, 4], 3)
        assert await found(mode="val", after=ids[0]) == ([2, 4], 3)
        assert await found(after=ids[1], limit=2) == ([2, 3], 5)
        assert await found(after=ids[3], sort_order="desc", limit=2) == ([2, 1], 5)
        assert await found(after=ids[4]) == ([], 5)
        by_mode = {"sort_by": "mode", "limit": 2}
        assert await found(**by_mode, after=ids[3]) == ([0, 2], 5)
        assert await found(**by_mode, after=ids[2], sort_order="desc") == ([0, 3], 5)

    async def test_query_rollouts_by_reward(self, store: LightningStore) -> None:
        ends: list[tuple[float | None, RolloutMode, AttemptStatus]] = [
            (0.5, "train", "succeeded"),
            (None, "train", "succeeded"),
            (1.0, "val", "succeeded"),
            (0.25, "train", "failed"),
            (0.5, "val", "succeeded"),
            (-2.0, "train", "succeeded"),
        ]
        ids: list[str] = []
        for number, (reward, mode, status) in enumerate(ends):
            rollout = await store.start_rollout(number, mode=mode)
            ids.append(rollout.rollout_id)
            if reward is not None:
                await store.add_span(span_of(rollout, attributes=reward_attributes(reward)))
            await report(store, rollout, status)
        found = partial(_page, store)
        given = await store.query_rollouts()
        assert [one.reward for one in given] == [0.5, None, 1.0, None, 0.5, -2.0]
        assert [one.attempt.reward for one in given if isinstance(one, AttemptedRollout)] == [
            reward for reward, *_ in ends
        ]
        assert await found(sort_by="reward") == ([5, 0, 4, 2], 4)
        down: dict[str, Any] = {"sort_by": "reward", "sort_order": "desc"}
        assert await found(**down, limit=2) == ([2, 4], 4)
        assert await found(**down, limit=2, after=ids[4]) == ([0, 5], 4)
        assert await found(sort_by="reward", after=ids[0]) == ([4, 2], 4)
        assert await found(reward_below=0.5) == ([5], 1)
        assert await found(reward_above=-2, reward_below=1.0) == ([0, 4], 2)
        assert await found(reward_below=0.6, sort_order="desc", after=ids[4]) == ([0], 3)
        assert await found(reward_below=0.6, mode="train") == ([0, 5], 2)
        assert await found(reward_above=0.6, mode="train", filter_logic="or") == (
            [0, 1, 2, 3, 5],
            5,
        )
        assert await found(reward_below=0.6, status_in=["succeeded"], **down) == ([4, 0, 5], 3)
        assert await found(sort_by="reward", status_in=["failed"]) == ([], 0)

    async def test_get_rollout_by_id(self, store: LightningStore) -> None:
        assert await store.get_rollout_by_id("ro-none") is None
        started = await store.start_rollout("task")
        assert await store.get_rollout_by_id(started.rollout_id) == started
        stranger = started.rollout_id[:-1] + ("0" if started.rollout_id[-1] != "0" else "1")
        assert await store.get_rollout_by_id(stranger) is None

    async def test_query_attempts(self, store: LightningStore) -> None:
        first = await store.start_rollout("task", worker_id="b")
        second = await store.start_attempt(first.rollout_id, worker_id="a")
        await store.start_rollout("other")

        found = partial(column, store.query_attempts, "sequence_id", first.rollout_id)
        assert list(await store.query_attempts(first.rollout_id)) == [first.attempt, second.attempt]
        assert await found(sort_order="desc") == [2, 1]
        assert await found(sort_by="worker_id") == [2, 1]
        assert await found(limit=1, offset=1) == [2]
        assert (await store.query_attempts(first.rollout_id, limit=1)).total == 2
        assert (await store.query_attempts("ro-none")).total == 0
        assert await store.get_latest_attempt("ro-none") is None
        queued = await store.enqueue_rollout("third")
        assert await store.get_latest_attempt(queued.rollout_id) is None

    @pytest.mark.parametrize("options", SENSELESS)
    async def test_senseless_query_is_refused(self, store: LightningStore, options: Any) -> None:
        for query in (store.query_rollouts, store.query_resources, store.query_workers):
            with pytest.raises(InvalidQueryError):
                await query(**options)
        for query in (store.query_attempts, store.query_spans):
            with pytest.raises(InvalidQueryError):
                await query("ro-none", **options)

    async def test_status_that_there_is_not_is_refused_by_name(self, store: LightningStore) -> None:
        bogus: Any = ["succeeded", "bogus"]
        for option in ("status_in", "status"):
            with pytest.raises(InvalidQueryError, match="no status 'bogus'; expected one of queu"):
                await store.query_rollouts(**{option: bogus})
        bad: Any = ["idel"]
        with pytest.raises(InvalidQueryError, match="Did you mean 'idle'"):
            await store.query_workers(status_in=bad)
        with pytest.raises(InvalidQueryError, match="Did you mean 'start_time'"):
            await store.query_rollouts(sort_by="starttime")

    # --- resources

    async def test_resources_come_back_as_they_were(self, store: LightningStore) -> None:
        resources: NamedResources = {
            **PROMPT,
            "llm": LLM(endpoint="http://x/v1", model="m", sampling_parameters={"top_p": 0.5}),
            "proxy": ProxyLLM(endpoint="http://y/v1", model="m", api_key="k"),
        }
        update = await store.add_resources(resources)
        assert update.resources == resources
        assert isinstance(update.resources["proxy"], ProxyLLM)
        assert (update.version, update.create_time) == (1, update.update_time)
        assert await store.get_resources_by_id(update.resources_id) == update
        assert await store.get_resources_by_id("rs-none") is None

    async def test_resources_in_the_store_are_copies(self, store: LightningStore) -> None:
        model = LLM(endpoint="http://x/v1", model="m", sampling_parameters={"top_p": 0.5})
        before: NamedResources = {"llm": model.model_copy(deep=True)}
        update = await store.add_resources({"llm": model})
        model.sampling_parameters["top_p"] = 2
        found = await store.get_resources_by_id(update.resources_id)
        for one in (update, found, await store.get_latest_resources()):
            assert one is not None
            mine = one.resources["llm"]
            assert isinstance(mine, LLM)
            mine.sampling_parameters["n"] = 2
        assert [one.resources for one in await store.query_resources()] == [before]

    async def test_latest_resources_are_those_touched_last(self, store: LightningStore) -> None:
        assert await store.get_latest_resources() is None
        first = await store.add_resources(PROMPT)
        second = await store.add_resources({})
        assert await store.get_latest_resources() == second
        replaced = await store.update_resources(first.resources_id, {})
        assert (replaced.version, replaced.resources) == (2, {})
        assert replaced.create_time == first.create_time
        assert await store.get_latest_resources() == replaced
        named = await store.update_resources("v0", PROMPT)
        assert (named.resources_id, named.version) == ("v0", 1)
        assert await store.get_latest_resources() == named

    async def test_rollout_gets_the_resources_of_its_moment(self, store: LightningStore) -> None:
        assert (await store.enqueue_rollout(0)).resources_id is None
        await store.update_resources("v1", PROMPT)
        assert (await store.enqueue_rollout(1)).resources_id == "v1"
        await store.update_resources("v2", PROMPT)
        assert (await store.start_rollout(2)).resources_id == "v2"
        assert (await store.enqueue_rollout(3, resources_id="v1")).resources_id == "v1"
        with pytest.raises(UnknownRecordError, match="v9"):
            await store.start_rollout(4, resources_id="v9")

    async def test_query_resources(self, store: LightningStore) -> None:
        for name in ("base", "best-1", "best-2"):
            await store.update_resources(name, {})
        await store.update_resources("base", {})

        found = partial(column, store.query_resources, "resources_id")

        assert await found() == ["base", "best-1", "best-2"]
        assert await found(resources_id="best-1") == ["best-1"]
        assert await found(resources_id_contains="best") == ["best-1", "best-2"]
        assert await found(sort_by="version", sort_order="desc") == ["base", "best-2", "best-1"]
        assert await found(sort_by="update_time", sort_order="desc", limit=1) == ["base"]
        assert (await store.query_resources(limit=1)).total == 3

    # --- workers

    async def test_worker_is_busy_while_it_works(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        claimed = await claim(store, "w1")
        assert await work_of(store, "w1") == ("busy", *ids_of(claimed))
        (worker,) = await store.query_workers()
        assert worker.last_dequeue_time is not None
        assert worker.last_busy_time is not None
        await report(store, claimed, "succeeded")
        assert await work_of(store, "w1") == ("idle", None, None)

    async def test_worker_that_finds_nothing_is_idle(self, store: LightningStore) -> None:
        assert await store.get_worker_by_id("w1") is None
        assert await store.dequeue_rollout("w1") is None
        (worker,) = await store.query_workers()
        assert (worker.worker_id, worker.status) == ("w1", "idle")
        assert worker.last_dequeue_time is not None

    @pytest.mark.parametrize("status", ["timeout", "unresponsive"])
    async def test_worker_that_is_lost_is_unknown(self, store: LightningStore, status: Any) -> None:
        started = await store.start_rollout("task", worker_id="w1")
        await report(store, started, status)
        assert await work_of(store, "w1") == ("unknown", None, None)

    async def test_worker_is_busy_until_its_last_attempt_ends(self, store: LightningStore) -> None:
        one, two = [await store.start_rollout(i, worker_id="w1") for i in range(2)]
        await report(store, two, "succeeded")
        assert await work_of(store, "w1") == ("busy", *ids_of(one))
        await report(store, one, "failed")
        assert await work_of(store, "w1") == ("idle", None, None)

    async def test_attempt_given_to_another_worker(self, store: LightningStore) -> None:
        started = await store.start_rollout("task", worker_id="w1")
        await store.update_attempt(started.rollout_id, "latest", worker_id="w2")
        workers = {one.worker_id: one.status for one in await store.query_workers()}
        assert workers == {"w1": "idle", "w2": "busy"}

    async def test_worker_heartbeat(self, store: LightningStore) -> None:
        worker = await store.update_worker("w1", heartbeat_stats={"cpu": 0.5})
        assert worker.heartbeat_stats == {"cpu": 0.5}
        assert worker.last_heartbeat_time is not None
        again = await store.update_worker("w1")
        assert again.heartbeat_stats == {"cpu": 0.5}
        assert await store.get_worker_by_id("w1") == again

    async def test_query_workers(self, store: LightningStore) -> None:
        await store.start_rollout("task", worker_id="b-2")
        await store.update_worker("a-1")
        await store.dequeue_rollout("b-1")

        found = partial(column, store.query_workers, "worker_id")

        assert await found() == ["b-2", "a-1", "b-1"]
        assert await found(sort_by="worker_id") == ["a-1", "b-1", "b-2"]
        assert await found(status_in=["busy"]) == ["b-2"]
        assert await found(worker_id_contains="b-") == ["b-2", "b-1"]
        assert await found(status_in=["unknown"], worker_id_contains="-2", filter_logic="or") == [
            "b-2",
            "a-1",
        ]
        assert await found(status_in=[]) == []
        assert (await store.query_workers(limit=1, offset=1)).total == 3

    # --- counters and closing

    async def test_statistics_count_everything(self, store: LightningStore) -> None:
        await store.add_resources(PROMPT)
        await store.enqueue_rollout("task")
        started = await store.start_rollout("task", worker_id="w1")
        await store.start_attempt(started.rollout_id)
        await store.add_many_spans([span_of(started), span_of(started)])
        statistics = await store.statistics()
        assert {key: statistics.get(key) for key in statistics if key.startswith("total_")} == {
            "total_rollouts": 2,
            "total_attempts": 2,
            "total_spans": 2,
            "total_resources": 1,
            "total_workers": 1,
        }
        assert statistics.get("uptime", -1.0) >= 0

    async def test_closing_twice_is_harmless(self, store: LightningStore) -> None:
        await store.start_rollout("task", config=RolloutConfig(timeout_seconds=30))
        await store.close()
        await store.close()

    async def test_many_operations_at_once(self, store: LightningStore) -> None:
        async def cycle(index: int) -> list[Span]:
            started = await store.start_rollout(index)
            await store.add_many_spans([span_of(started) for _ in range(3)])
            await report(store, started, "succeeded")
            return list(await store.query_spans(started.rollout_id))

        found = await asyncio.gather(*(cycle(index) for index in range(30)))
        assert all([span.sequence_id for span in spans] == [1, 2, 3] for spans in found)
        assert (await store.query_rollouts(status_in=["succeeded"])).total == 30


async def _page(store: LightningStore, **options: Any) -> tuple[list[Any], int]:
    """The inputs of the rollouts on a page, and how many the query has on all pages."""
    page = await store.query_rollouts(**options)
    return [rollout.input for rollout in page], page.total
