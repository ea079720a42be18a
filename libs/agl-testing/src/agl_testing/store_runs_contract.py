"""The part of the store contract about runs."""

import asyncio
from typing import Any

import pytest

from agl.errors import (
    InvalidQueryError,
    InvalidTransitionError,
    ReplacedError,
    StoreError,
    UnknownRecordError,
)
from agl.store import run_rules
from agl.store.base import LightningStore
from agl.types import DatasetDigest, LedgerPart, NamedResources, PromptTemplate, RunCode, RunStart
from agl_testing.store_steps import span_of


def start_of(run_id: str = "run-1", **about: Any) -> RunStart:
    """A start of a run with something in every field."""
    given: dict[str, Any] = {
        "algorithm": "toy",
        "seed": 7,
        "config": {"algorithm": {"type": "toy", "rate": 0.5}},
        "code": RunCode(versions={"python": "3.11"}, agent="a1", commit="c1"),
        "folder": f"/runs/{run_id}",
        "datasets": {"train": DatasetDigest(num_tasks=3, digest="d1")},
        "pid": 4711,
        "host": "here",
    }
    return RunStart(run_id=run_id, **{**given, **about})


class StoreRunsContract:
    """Runs: what was started, how each start ended, and what a run holds."""

    async def test_run_comes_back_as_it_was_begun(self, store: LightningStore) -> None:
        start = start_of()
        run = await store.begin_run(start)
        assert await store.get_run_by_id("run-1") == run
        assert list(await store.query_runs()) == [run]
        for name in ("algorithm", "seed", "config", "code", "folder", "datasets"):
            assert getattr(run, name) == getattr(start, name)
        (begun,) = run.generations
        assert (run.status, begun.number, begun.outcome) == ("running", 1, None)
        assert (begun.pid, begun.host, begun.end_time) == (4711, "here", None)
        assert begun.start_time == run.create_time > 1e9
        assert await store.get_run_by_id("run-2") is None

    async def test_next_start_is_the_next_generation(self, store: LightningStore) -> None:
        first = await store.begin_run(start_of())
        run = await store.begin_run(start_of(seed=8, differences=["seed: 7 then, 8 now"]))
        assert (run.seed, run.create_time) == (8, first.create_time)
        assert [each.number for each in run.generations] == [1, 2]
        # The first one never said how it ended.
        assert [each.outcome for each in run.generations] == ["died", None]
        assert run.generations[1].differences == ["seed: 7 then, 8 now"]

    async def test_starts_at_once_get_different_numbers(self, store: LightningStore) -> None:
        begun = await asyncio.gather(*(store.begin_run(start_of()) for _ in range(5)))
        assert sorted(run.generations[-1].number for run in begun) == [1, 2, 3, 4, 5]

    async def test_start_that_is_asked_for_again_begins_once(self, store: LightningStore) -> None:
        start = start_of(key="k")
        begun = await store.begin_run(start)
        assert await store.begin_run(start) == begun  # the answer was lost

    async def test_starts_that_the_folder_knows_of_are_counted(self, store: LightningStore) -> None:
        run = await store.begin_run(start_of(begun_before=3))
        assert [each.number for each in run.generations] == [4]

    async def test_run_of_another_algorithm_is_refused(self, store: LightningStore) -> None:
        begun = await store.begin_run(start_of())
        with pytest.raises(InvalidTransitionError, match="'toy', and this is 'other'"):
            await store.begin_run(start_of(algorithm="other"))
        assert await store.get_run_by_id("run-1") == begun

    @pytest.mark.parametrize("outcome", ["finished", "failed", "stopped"])
    async def test_end_of_the_last_generation_is_the_end_of_the_run(
        self, store: LightningStore, outcome: Any
    ) -> None:
        await store.begin_run(start_of())
        run = await store.end_run("run-1", 1, outcome, "because")
        assert await store.get_run_by_id("run-1") == run
        (ended,) = run.generations
        assert (run.status, ended.outcome, ended.error) == (outcome, outcome, "because")
        assert ended.end_time is not None
        assert ended.end_time >= ended.start_time

    async def test_first_report_of_an_end_counts(self, store: LightningStore) -> None:
        await store.begin_run(start_of())
        ended = await store.end_run("run-1", 1, "finished")
        assert await store.end_run("run-1", 1, "failed", "late") == ended

    async def test_late_end_of_an_older_generation_changes_no_status(
        self, store: LightningStore
    ) -> None:
        await store.begin_run(start_of())
        await store.begin_run(start_of())
        run = await store.end_run("run-1", 1, "failed", "it was not dead")
        assert (run.status, run.generations[0].outcome) == ("running", "failed")

    async def test_run_that_was_thought_dead_may_say_how_it_ended(
        self, store: LightningStore
    ) -> None:
        await store.begin_run(start_of())
        run = await store.end_run("run-1", 1, "died", "its process is gone")
        assert (run.status, run.generations[0].end_time) == ("died", None)
        assert (await store.end_run("run-1", 1, "finished")).status == "finished"

    async def test_start_that_another_one_has_replaced_writes_nothing(
        self, store: LightningStore
    ) -> None:
        """See ``run_rules.WRITER``: a store calls ``check_writer`` before it writes."""
        await store.begin_run(start_of())
        text: NamedResources = {"p": PromptTemplate(template="x", engine="f-string")}
        token = run_rules.WRITER.set(("run-1", 1))
        try:
            rollout = await store.enqueue_rollout(1)
            number, part = rollout.rollout_id, LedgerPart(rollout_id=rollout.rollout_id)
            run = await store.begin_run(start_of())
            for write in (
                lambda: store.enqueue_rollout(2),
                lambda: store.start_rollout(2),
                lambda: store.update_rollout(number, status="cancelled"),
                lambda: store.add_ledger_parts([part]),
                lambda: store.add_resources(text),
                lambda: store.update_resources("rs-1", text),
                lambda: store.end_run("run-1", 1, "finished"),
            ):
                with pytest.raises(ReplacedError, match="'run-1': start 2, process 4711 on here"):
                    await write()
            assert [*await store.query_rollouts()] == [rollout]
        finally:
            run_rules.WRITER.reset(token)
        assert not await store.query_resources()
        assert await store.get_run_by_id("run-1") == run
        await store.add_ledger_parts([part])

    async def test_end_of_what_was_not_begun_is_refused(self, store: LightningStore) -> None:
        with pytest.raises(UnknownRecordError, match="run-1"):
            await store.end_run("run-1", 1, "finished")
        await store.begin_run(start_of())
        with pytest.raises(UnknownRecordError, match="no generation 2"):
            await store.end_run("run-1", 2, "finished")

    async def test_end_of_a_kind_that_nobody_knows_is_refused(self, store: LightningStore) -> None:
        begun = await store.begin_run(start_of())
        outcome: Any = "completed"
        with pytest.raises(StoreError, match=r"completed.*stopped.*finished.*failed.*died") as told:
            await store.end_run("run-1", 1, outcome)
        assert isinstance(told.value, ValueError)
        assert [*await store.query_runs()] == [begun]

    async def test_query_runs(self, store: LightningStore) -> None:
        for run_id, algorithm in (("a-1", "toy"), ("b-1", "other"), ("b-2", "toy")):
            await store.begin_run(start_of(run_id, algorithm=algorithm))
        await store.end_run("b-2", 1, "finished")

        async def found(**options: Any) -> list[str]:
            return [run.run_id for run in await store.query_runs(**options)]

        assert await found() == ["a-1", "b-1", "b-2"]
        assert await found(status_in=["running"]) == ["a-1", "b-1"]
        assert await found(status_in=[]) == []
        assert await found(run_id_contains="b-") == ["b-1", "b-2"]
        assert await found(algorithm="toy", folder="/runs/b-2") == ["b-2"]
        assert await found(sort_by="run_id", sort_order="desc", limit=1, offset=1) == ["b-1"]
        assert (await store.query_runs(limit=1)).total == 3
        with pytest.raises(InvalidQueryError, match="no status 'runing'"):
            await store.query_runs(status_in=["runing"])  # type: ignore[list-item]
        with pytest.raises(InvalidQueryError, match="sort"):
            await store.query_runs(sort_by="config")

    @pytest.mark.parametrize("run_id", ["", "a/b", "..", "-a", "a b", "a" * 101])
    async def test_id_that_names_no_folder_is_refused(self, run_id: str) -> None:
        with pytest.raises(ValueError, match="run_id"):
            start_of(run_id)

    async def test_run_is_deleted_with_all_that_it_holds(self, store: LightningStore) -> None:
        await store.begin_run(start_of())
        other = await _hold(store, "other")
        held = await _hold(store, "run-1")
        latest = await store.add_resources({"p": PromptTemplate(template="latest")})
        await store.end_run("run-1", 1, "finished")
        spans_before = (await store.statistics()).get("total_spans")
        expected = {"resources": 1, "rollouts": 2, "attempts": 1, "ledger_parts": 1, "spans": 1}
        assert await store.delete_run("run-1", only_count=True) == expected
        assert await store.get_rollout_by_id(held[0]) is not None
        assert await store.delete_run("run-1") == expected
        assert await store.get_run_by_id("run-1") is None
        assert [one.rollout_id for one in await store.query_rollouts()] == other[:2]
        assert not (await store.query_spans(held[0])).items
        # A span without its attempt is seen by nobody, and takes its room for ever.
        spans_now = (await store.statistics()).get("total_spans")
        assert spans_before is None or spans_now == spans_before - 1
        assert [part.rollout_id for part in await store.query_ledger_parts()] == [other[0]]
        kept = [one.resources_id for one in await store.query_resources()]
        assert kept == [other[2], latest.resources_id]
        # What was queued is claimed by nobody, and what is left goes on.
        claimed = await store.dequeue_many_rollouts(limit=5)
        assert [one.rollout_id for one in claimed] == [other[1]]
        assert (await store.enqueue_rollout("more")).rollout_id not in (*held, *other)

    async def test_run_that_runs_is_not_deleted(self, store: LightningStore) -> None:
        await store.begin_run(start_of())
        held = await _hold(store, "run-1")
        with pytest.raises(InvalidTransitionError, match="running"):
            await store.delete_run("run-1")
        assert await store.get_rollout_by_id(held[0]) is not None
        await store.end_run("run-1", 1, "died")
        await store.delete_run("run-1")
        with pytest.raises(UnknownRecordError, match="run-1"):
            await store.delete_run("run-1")


async def _hold(store: LightningStore, run: str) -> list[str]:
    """Put an ended rollout and a queued one of a run into the store; their ids, and resources'."""
    resources = await store.add_resources({"p": PromptTemplate(template=run)})
    metadata = {"run": run, "generation": 1}
    started = await store.start_rollout(
        "task", resources_id=resources.resources_id, metadata=metadata
    )
    await store.add_span(span_of(started))
    await store.update_attempt(started.rollout_id, "latest", status="succeeded")
    await store.add_ledger_parts([LedgerPart(rollout_id=started.rollout_id, run=run)])
    queued = await store.enqueue_rollout("next", metadata=metadata)
    return [started.rollout_id, queued.rollout_id, resources.resources_id]
