"""The load program does what it says, and notices a store that does not."""

import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from tests.stores import served

import agl
from agl.cli import main
from agl.errors import ConfigError
from agl.store.base import Turn
from agl.store.packed_span import unpacked
from agl.types import Span
from agl_bench.load import LoadProgram, Tally
from agl_bench.measure import report_of
from agl_bench.payloads import (
    REWARD,
    AttributePool,
    SpanDraft,
    json_span,
    otlp_request,
    reward_draft,
)
from agl_bench.protocols import best_way
from agl_bench.workloads import WORKLOADS, Workload, perfect_seconds, script_of
from agl_http.otlp import spans_of

TINY = Workload("tiny", "batch", 100, 10, 0, 4, 3, 0.002, 100)


class Forgetful(agl.InMemoryLightningStore):
    """Loses what it is told to lose, and notes what is queued."""

    lost = ""

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[tuple[int, int]] = []
        """Per request: how many were queued, and how many there were that had not ended."""

    async def enqueue_many_rollouts(self, rollouts):
        open_ = ["queuing", "preparing", "running"]
        unfinished = await self.query_rollouts(status_in=open_, limit=1)
        self.queued.append((len(rollouts), unfinished.total))
        return await super().enqueue_many_rollouts(rollouts)

    async def turn(self, spans: Any = (), **options: Any) -> Turn:
        kept = [
            span.model_copy(update={"attributes": {}}) if span.name == self.lost else span
            for span in unpacked(spans)
            if span.name != self.lost or self.lost != "round"
        ]
        return await super().turn(kept, **options)


@pytest.fixture
async def store():
    return Forgetful()


@pytest.fixture
async def url(store):
    async with served(store) as (server, _):
        yield server.endpoint


@pytest.mark.parametrize("way", ["wire", "single", "otlp", "batch", "turn", None])
async def test_every_way_finishes_and_checks_every_task(url, store, way):
    tally = await LoadProgram(TINY, url, 25, way=way).run()
    assert (tally.finished, tally.checked, tally.wrong) == (25, 25, [])
    assert (await store.query_rollouts(status_in=["succeeded"])).total == 25
    assert (await store.statistics())["total_spans"] == tally.spans > 25 * 5
    report = report_of(TINY, tally)
    assert report["tasks"] == len(tally.starts) == 25
    assert report["way"] == (way or "turn")
    assert 0 < report["share_of_perfect"] <= 1


def test_fastest_way_that_the_server_knows_is_taken():
    assert best_way(frozenset()) == "otlp"
    assert best_way(frozenset({"spans/batch", "idempotency"})) == "batch"
    assert best_way(frozenset({"spans/batch", "turn"})) == "turn"


async def test_way_that_the_server_does_not_know_is_refused():
    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})  # what 0.3 answers

    app = web.Application()
    app.router.add_get("/v1/agl/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        with pytest.raises(ConfigError, match="does not know 'spans/batch'"):
            await LoadProgram(TINY, f"http://127.0.0.1:{port}", 1, way="batch").run()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("lost", "problem"),
    [("round", "were sent"), ("final", "no span has bench.task="), ("annotation", "final reward")],
)
async def test_store_that_loses_something_is_noticed(url, store, lost, problem):
    store.lost = {"annotation": "agentlightning.annotation"}.get(lost, lost)
    tally = await LoadProgram(TINY, url, 3, way="otlp").run()
    assert len(tally.wrong) == 3
    assert all(problem in wrong for wrong in tally.wrong)


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [
        ("batch", [(6, 0), (6, 0), (6, 0), (2, 0)]),
        ("batch_partial", [(6, 0), (6, 2), (6, 2), (2, 2)]),
    ],
)
async def test_batches_are_queued_when_the_workload_says(url, store, mode, sizes):
    remaining = 2 if mode == "batch_partial" else 0
    workload = replace(TINY, mode=mode, batch=6, remaining=remaining, runners=1)
    tally = await LoadProgram(workload, url, 20).run()
    assert tally.checked == 20
    assert [size for size, _ in store.queued] == [size for size, _ in sizes]
    for (_, unfinished), (_, most) in zip(store.queued, sizes, strict=True):
        assert unfinished <= most


async def test_single_keeps_a_number_in_flight(url, store):
    workload = replace(TINY, mode="single", batch=6, runners=3)
    await LoadProgram(workload, url, 30).run()
    assert store.queued[0] == (6, 0)
    assert len(store.queued) > 5
    assert all(size + unfinished <= 6 for size, unfinished in store.queued)


async def test_run_that_is_cut_short_says_how_far_it_came(url):
    slow = replace(TINY, max_sleep=0.2)
    tally, seconds = Tally(), 0.7
    while tally.finished == 0:  # on a busy machine so little time is too little
        tally = await LoadProgram(slow, url, 1000, max_seconds=seconds).run()
        seconds *= 3
    assert tally.finished < 1000
    assert report_of(slow, tally)["share_of_perfect"] is None


def test_perfect_run_waits_for_the_slowest_of_each_batch():
    work = replace(TINY, runners=2, batch=3)
    # Batch 1: 1 and 2 start, 1 ends at 1 and 3 starts, which ends at 4. Batch 2: from 4 to 5.
    assert perfect_seconds(work, [1.0, 2.0, 3.0, 1.0]) == 5.0
    # With one in hand: 4 is queued when 2 of the first 3 have ended (at 2), and runs from 2 to 3.
    partial = replace(work, mode="batch_partial", remaining=1)
    assert perfect_seconds(partial, [1.0, 2.0, 3.0, 1.0]) == 4.0
    # One at a time in flight: the sum.
    single = replace(work, mode="single", batch=1)
    assert perfect_seconds(single, [1.0, 2.0, 3.0, 1.0]) == 7.0


def test_published_parameters_give_the_published_ideal_rates():
    # From the table of 0.3; it rounds.
    published = {"minimal": 16.0, "medium": 166.7, "mid-high": 750, "large": 4000}
    published |= {"long-queue": 853, "in-flight": 1280, "heavy-trace": 46.5}
    assert {n: w.ideal_rate for n, w in WORKLOADS.items()} == pytest.approx(published, rel=2e-3)


def test_agents_sleep_as_long_as_expected():
    medium = WORKLOADS["medium"]
    busy = [script_of(medium, task, seed=1).busy_seconds for task in range(4000)]
    assert sum(busy) / len(busy) == pytest.approx(medium.busy_seconds, rel=0.03)


def test_json_and_otlp_say_the_same():
    pool = AttributePool(3)
    drafts = [
        SpanDraft("nested", "1" * 32, "2" * 16, "3" * 16, 1700000000.25, 1700000001.5, pool.pick()),
        reward_draft(0.25, "1" * 32, "4" * 16, 1700000002.0),
    ]
    in_json = [Span.model_validate_json(json_span(d, "ro-1", "at-1", 0)) for d in drafts]
    in_otlp, rejected = spans_of(otlp_request(drafts, "ro-1", "at-1"))
    assert rejected == []
    same = {"rollout_id", "attempt_id", "trace_id", "span_id", "parent_id", "name", "attributes"}
    same |= {"sequence_id", "status"}
    for one, other in zip(in_json, in_otlp, strict=True):
        assert one.model_dump(include=same) == other.model_dump(include=same)
        # OTLP counts nanoseconds, for which a float has too few digits.
        times = pytest.approx((other.start_time, other.end_time), abs=1e-6)
        assert (one.start_time, one.end_time) == times
    assert in_json[1].attributes[REWARD] == 0.25


def test_command_starts_a_server_and_reports(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "store", "--workload", "in-flight", "--tasks", "20", "--json"])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    (report,) = json.loads(captured.out)
    assert (report["tasks"], report["checked"], report["wrong"]) == (20, 20, 0)
    assert report["server_cpu_ms_per_rollout"] > 0
    assert report["server_mb_after"] > 10
    assert "in-flight: 20 tasks; published are 50000" in captured.err
