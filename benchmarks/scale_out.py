"""What PostgreSQL carries: the embedded one, with servers before it, all on this machine.

    rates    cycles/s of one server on SQLite and of one on PostgreSQL, in turn, see store_cycle.py
    starts   from the request that queues a rollout at one server until a runner has it at another;
             ``--tree old=FOLDER`` has servers of another checkout take part
    full     CPU and rate of a cycle before an empty and a full database, in turn
    idle     three servers with 11,000 runners that wait, and then work for 1,000 of them

Runners of ``idle`` are coroutines that claim, work, beat and end as ``LitAgentRunner`` does. Their
rollouts have eight spans of 1 KB. Each runner has one connection for its claims; heartbeats share
some.

    python benchmarks/scale_out.py rates --rounds 5
    python benchmarks/scale_out.py full --rollouts 1000000 --spans 30
    python benchmarks/scale_out.py idle --runners 11000 --busy 1000
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import uvloop
from checkouts import checkout, run_from
from startup import idle_starts
from store_cycle import Connection, Runner, cpu_seconds, measure, serve, spans

import agl
from agl.cli.shared import print_table
from agl_bench.server import own_command
from agl_postgres.embedded import EmbeddedServer
from agl_postgres.store import PostgresLightningStore

BEAT_CONNECTIONS = 16
"""For the heartbeats of all runners of a server."""
STARTS_IN_A_ROW = 20
"""Before it is another tree's turn."""
PIECE = 50_000
"""So many rollouts are put into a database at once."""


class Postgres:
    """A PostgreSQL of its own, and servers before it.

    Args:
        folder: Of its files, and of logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = EmbeddedServer(folder / "postgres")
        pid = (folder / "postgres" / "data" / "postmaster.pid").read_text().split()[0]
        self.process = psutil.Process(int(pid))

    def database(self, name: str) -> str:
        """The address of a new database."""
        if not ask(self.server.url, "SELECT 1 FROM pg_database WHERE datname = %s", name):
            ask(self.server.url, f'CREATE DATABASE "{name}"')
        return self.server.url.replace("/postgres?", f"/{name}?")

    def cpu_seconds(self) -> float:
        """Of all its processes so far."""
        return cpu_seconds(self.process)

    def memory_mb(self) -> float:
        """Of all its processes, with what they share counted once."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(process.memory_full_info().pss for process in processes) / 1e6


def ask(address: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement, and commit it."""
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(sql.encode(), values)
        return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def servers(
    folder: Path, places: dict[str, str], tree: Path | None = None
) -> Iterator[dict[str, tuple[str, int]]]:
    """``agl store``, of another checkout perhaps, on each place; name -> address and process."""
    with contextlib.ExitStack() as stack:
        running: dict[str, tuple[str, int]] = {}
        for name, place in places.items():
            command = own_command(place) if tree is None else run_from(tree, own_command(place))
            log = folder / f"{name}.log"
            running[name] = stack.enter_context(serve(command, log, is_agl=True))
        yield running


# --- rates, and an empty and a full database


def compare(postgres: Postgres, places: dict[str, str], options: argparse.Namespace) -> None:
    """Cycles of the ways, at all places in turn; the last compared to the first."""
    ways = options.ways.split(",")
    figures: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    with servers(postgres.folder, places) as running:
        for number in range(options.rounds):
            for way in ways:
                for name, (url, pid) in list(running.items())[:: -1 if number % 2 else 1]:
                    before, begin = postgres.cpu_seconds(), time.monotonic()
                    cpu, cycles = uvloop.run(measure(url, pid, way, 32, options.seconds))
                    took = time.monotonic() - begin
                    database = postgres.cpu_seconds() - before  # half a second longer than cpu
                    database *= options.seconds / took
                    each = cycles / options.seconds, 1e3 * cpu / cycles, 1e3 * database / cycles
                    figures.setdefault((way, name), []).append(each)
    rows = []
    for (way, name), rounds in figures.items():
        first = figures[way, next(iter(places))]
        ratio = statistics.median(a[0] / b[0] for a, b in zip(rounds, first, strict=True))
        cost = statistics.median(
            sum(a[1:]) / sum(b[1:]) for a, b in zip(rounds, first, strict=True)
        )
        medians = map(statistics.median, zip(*rounds, strict=True))
        numbers = (f"{one:.3g}" for one in (*medians, ratio, cost))
        rows.append([way, name, *numbers])
    head = ["way", "store", "cycles/s", "server CPU ms", "PostgreSQL CPU ms", "rate", "CPU"]
    print_table(head, rows)


def rates(postgres: Postgres, options: argparse.Namespace) -> None:
    """SQLite and PostgreSQL."""
    sqlite = str(postgres.folder / "store.db")
    compare(postgres, {"sqlite": sqlite, "postgres": postgres.database("rates")}, options)


def full(postgres: Postgres, options: argparse.Namespace) -> None:
    """An empty database and a full one."""
    places = {name: postgres.database(name) for name in ("empty", "full")}
    asyncio.run(fill(places["full"], options.rollouts, options.spans))
    sql = "SELECT (SELECT count(*) FROM rollout), count(*), pg_database_size('full') FROM span"
    ((rollouts, num_spans, size),) = ask(places["full"], sql)
    print(f"{rollouts:,} rollouts, {num_spans:,} spans, {size / 1e9:.1f} GB", flush=True)
    compare(postgres, places, options)


async def fill(address: str, rollouts: int, spans_each: int) -> None:
    """One rollout as a runner makes it, and so many copies of its rows; goes on where it was."""
    store = PostgresLightningStore(address)
    if (await store.statistics()).get("total_rollouts") == 0:
        await store.enqueue_rollout({"question": "What is six times seven?", "answer": 42})
        claimed = await store.dequeue_rollout("runner")
        assert claimed is not None
        ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}
        # Of few bytes, so that many fit on a disk.
        await store.add_many_spans([agl.Span.from_attributes(name="s", attributes={}, **ids)])
        await store.update_attempt(*ids.values(), status="succeeded")
    await store.close()
    while (
        first := ask(address, "SELECT greatest(100, max(n)) + 1 FROM rollout")[0][0]
    ) <= rollouts:
        last = min(rollouts, first + PIECE - 1)
        new_id = "to_hex(i) || substr(md5(i::text), 1, 8)"
        copied = "FROM {0} old, generate_series({1}, {2}) i, "
        copied += "jsonb_populate_record(old, jsonb_build_object('n', i, {3} || {4})) new"
        columns = "trace_id, parent_id, name, start_time, end_time, body"
        ask(
            address,
            f"""
            INSERT INTO rollout SELECT new.*
            {copied.format("rollout", first, last, "'rollout_id', 'ro-'", new_id)}
            WHERE old.n < 100;
            INSERT INTO attempt SELECT new.*
            {copied.format("attempt", first, last, "'a', i, 'attempt_id', 'at-'", new_id)}
            WHERE old.a < 100;
            INSERT INTO span (a, sequence_id, span_id, {columns})
            SELECT i, j, substr(md5(i::text || j), 1, 16), {columns} FROM span old,
            generate_series({first}, {last}) i, generate_series(1, {spans_each}) j
            WHERE old.a < 100;
            SELECT setval('rollouts', {last}), setval('attempts', {last})
            """,
        )
        print(f"{last:,} rollouts", file=sys.stderr, flush=True)
    ask(address, "VACUUM ANALYZE")
    ask(address, "CHECKPOINT")


# --- starts


def starts(postgres: Postgres, options: argparse.Namespace) -> None:
    """One that waits at one server for what is queued at another; trees are asked in turns."""
    trees: dict[str, Path | None] = {"ours": None, **dict(options.tree)}
    times: dict[str, list[list[float]]] = {name: [] for name in trees}
    with contextlib.ExitStack() as stack:
        pairs: dict[str, list[str]] = {}
        for name, tree in trees.items():
            place = postgres.database(f"starts_{name}")
            places = {f"{name} a": place, f"{name} b": place}
            running = stack.enter_context(servers(postgres.folder, places, tree))
            pairs[name] = [url for url, _ in running.values()]
        for _ in range(max(1, options.samples // STARTS_IN_A_ROW)):
            for name, (a, b) in pairs.items():
                times[name].append(asyncio.run(idle_starts(a, STARTS_IN_A_ROW, b)))
    for name, rounds in times.items():
        p50s = zip(
            map(statistics.median, rounds), map(statistics.median, times["ours"]), strict=True
        )
        ratio = statistics.median(one / ours for one, ours in p50s)
        every = sorted(itertools.chain.from_iterable(rounds))
        print(
            f"queued at one, started at another, {name}: p50 {statistics.median(every):.1f} ms, "
            f"p99 {every[len(every) * 99 // 100]:.1f}; {ratio:.2f} of ours (medians of rounds)"
        )


# --- many runners


class WaitingRunner(Runner):
    """One that waits for rollouts, and works on each for a while."""

    started: list[float]
    """Milliseconds from queue to start, of all runners."""
    ended = 0

    async def live(self, options: argparse.Namespace) -> None:
        """Go on until cancelled."""
        about = {"limit": 1, "worker_id": self.name}
        wait = json.dumps({**about, "wait_seconds": options.wait}).encode()
        while True:
            claimed = json.loads(await self.post("/v1/agl/queues/rollouts/dequeue", wait))
            while claimed:
                self.note(claimed)
                self.current = claimed[0]
                self.started.append(1e3 * (time.monotonic() - self.current["input"]["at"]))
                await asyncio.sleep(random.uniform(0.5, 1.5) * options.work)
                ids = {key: self.current[key] for key in ("rollout_id",)}
                ids["attempt_id"] = self.current["attempt"]["attempt_id"]
                end = json.dumps({"finish": {**ids, "status": "succeeded"}, "claim": about})
                body = b'{"spans":%s,%s' % (spans(self.current), end[1:].encode())
                self.current = None
                claimed = json.loads(await self.post("/v1/agl/turn", body))["claimed"]
                type(self).ended += 1

    async def beat(self, pool: "asyncio.Queue[Connection]", seconds: float) -> None:
        """Say at intervals that it lives, and what it works on."""
        await asyncio.sleep(random.uniform(0, seconds))
        while True:
            begin = time.monotonic()
            other = Runner(await pool.get(), self.name, self.admin)
            other.own = self.own
            try:
                stats = b'{"heartbeat_stats":{"cpu_percent":12.5,"memory_mb":812.0}}'
                await other.post(f"/v1/agl/workers/{self.name}", stats)
                if (current := self.current) is not None:
                    other.of_attempt = self.of_attempt
                    rollout, attempt = current["rollout_id"], current["attempt"]["attempt_id"]
                    body = json.dumps({"rollout_id_in": [rollout]}).encode()
                    await other.post("/v1/agl/rollouts/search", body)
                    alive = b'{"last_heartbeat_time":%f}' % time.time()
                    if self.current is current:
                        path = f"/v1/agl/rollouts/{rollout}/attempts/{attempt}"
                        await other.post(path, alive)
            finally:
                pool.put_nowait(other.connection)
            await asyncio.sleep(max(0.0, begin + seconds - time.monotonic()))


def idle(postgres: Postgres, options: argparse.Namespace) -> None:
    """Runners that wait, then work for some."""
    place = postgres.database("idle")
    names = [f"server{n}" for n in range(options.servers)]
    with servers(postgres.folder, dict.fromkeys(names, place)) as running:
        uvloop.run(many(postgres, place, list(running.values()), options))


async def many(
    postgres: Postgres, place: str, running: list[tuple[str, int]], options: argparse.Namespace
) -> None:
    """Measure nothing, runners that wait, and as many with work for some."""
    processes = [psutil.Process(pid) for _, pid in running]
    rows = [await phase(postgres, place, processes, options, "no runner")]
    WaitingRunner.started = []
    runners: list[WaitingRunner] = []
    tasks: list[asyncio.Task[None]] = []
    for url, _ in running:
        runners_here, pool = await connect(url, options.runners // len(running), len(runners))
        runners += runners_here
        tasks += [asyncio.create_task(one.live(options)) for one in runners_here]
        tasks += [asyncio.create_task(one.beat(pool, options.beat)) for one in runners_here]
    await asyncio.sleep(options.beat)
    rows.append(await phase(postgres, place, processes, options, f"{len(runners):,} idle"))
    tasks.append(asyncio.create_task(queue([url for url, _ in running], options)))
    await asyncio.sleep(2 * options.work)
    WaitingRunner.started.clear()
    rows.append(await phase(postgres, place, processes, options, f"{options.busy:,} of them busy"))
    times = sorted(WaitingRunner.started)
    busy = sum(one.current is not None for one in runners)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    head = ["", *("server MB", "PostgreSQL MB", "HTTP connections", "of PostgreSQL", "rollouts/s")]
    head += ["server cores", "PostgreSQL cores", "load cores", "database s/s", "ms/rollout"]
    print_table(head, rows)
    p50, p99 = statistics.median(times), times[len(times) * 99 // 100]
    print(f"{busy} busy at the end; queued to started: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


async def connect(
    url: str, count: int, first: int
) -> tuple[list[WaitingRunner], "asyncio.Queue[Connection]"]:
    """Runners of a server with their tokens, and connections for their heartbeats."""
    address, loop = urlsplit(url), asyncio.get_running_loop()

    async def one() -> Connection:
        place = address.hostname, address.port
        return (await loop.create_connection(Connection, *place))[1]

    pool: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(BEAT_CONNECTIONS):
        pool.put_nowait(await one())
    runners: list[WaitingRunner] = []
    for number in range(first, first + count):
        runners.append(WaitingRunner(await one(), f"runner-{number}", address.password))
        await runners[-1].begin()
    return runners, pool


async def queue(urls: list[str], options: argparse.Namespace) -> None:
    """Work for so many at a time, at all servers in turn."""
    at = [urlsplit(url) for url in urls]
    loop = asyncio.get_running_loop()
    ends = [
        Runner((await loop.create_connection(Connection, a.hostname, a.port))[1], "q", a.password)
        for a in at
    ]
    each = max(1, round(options.busy / options.work / 4))
    due = time.monotonic()
    for end in itertools.cycle(ends):
        body = {"rollouts": [{"input": {"at": time.monotonic()}}] * each}
        path = "/v1/agl/queues/rollouts/enqueue"
        await end.post(path, json.dumps(body).encode(), is_admin=True)
        due += each * options.work / options.busy
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def phase(
    postgres: Postgres,
    place: str,
    processes: list[psutil.Process],
    options: argparse.Namespace,
    name: str,
) -> list[str]:
    """A row of figures of some seconds."""

    def now() -> list[float]:
        sql = "SELECT active_time FROM pg_stat_database WHERE datname = current_database()"
        own = psutil.Process().cpu_times()
        return [
            WaitingRunner.ended,
            sum(map(cpu_seconds, processes)),
            postgres.cpu_seconds(),
            own.user + own.system,
            ask(place, sql)[0][0] / 1e3,
        ]

    before, begin = now(), time.monotonic()
    await asyncio.sleep(options.seconds)
    took = time.monotonic() - begin
    ended, server, database, load, active = (
        (b - a) / took for a, b in zip(before, now(), strict=True)
    )
    memory = "/".join(f"{one.memory_info().rss / 1e6:.0f}" for one in processes)
    held = sum(
        one.status == psutil.CONN_ESTABLISHED
        for process in processes
        for one in process.net_connections("tcp")
    )
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agl store'"
    numbers = (f"{one:.2f}" for one in (ended, server, database, load, active))
    row = [name, memory, f"{postgres.memory_mb():.0f}", str(held), str(ask(place, sql)[0][0])]
    row += [*numbers, f"{1e3 * active / ended:.1f}" if ended else ""]
    print(*row, sep="; ", flush=True)
    return row


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parts = {"rates": rates, "starts": starts, "full": full, "idle": idle}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--ways", default="batch,turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of one round, or phase")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--tree", action="append", type=checkout, default=[], metavar="NAME=FOLDER")
    parser.add_argument("--rollouts", type=int, default=1_000_000, help="in the full database")
    parser.add_argument("--spans", type=int, default=30, help="of each of them")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--runners", type=int, default=11_000)
    parser.add_argument("--busy", type=int, default=1_000)
    parser.add_argument("--work", type=float, default=20.0, help="seconds of a rollout")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds of a claim")
    parser.add_argument("--beat", type=float, default=10.0, help="seconds between heartbeats")
    parser.add_argument("--folder", type=Path, help="of PostgreSQL, which stays; else a new one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agl-scale-") as folder:
        postgres = Postgres(options.folder or Path(folder))
        try:
            parts[options.part](postgres, options)
        finally:
            postgres.server.stop()


if __name__ == "__main__":
    sys.exit(main())
