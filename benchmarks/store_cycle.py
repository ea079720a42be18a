"""Server CPU per rollout, for each way to speak to a store server; another server beside it.

One cycle is: enqueue a rollout, claim it, store eight spans of about 1 KB, finish it. The ways:

    wire    as 0.3's client speaks: one request per operation, span numbers asked for first (19)
    single  one request per operation, numbers given by the server (11)
    otlp    the spans of a rollout in one OTLP request (4)
    batch   the spans of a rollout in one request (4)
    turn    spans, finish and the next claim in one request; 32 rollouts enqueued at once (1.03)

Our server runs with an SQLite file and ``durability="power"``. Each server is a process of its own,
the load comes from this one, by coroutines. Rounds are interleaved: every way and server in turn.
``--tree`` has servers of other checkouts take part.

    python benchmarks/store_cycle.py --seconds 10 --rounds 3
    python benchmarks/store_cycle.py --tree old=/path/to/old/checkout --rounds 9
    python benchmarks/store_cycle.py --peer /path/to/venv/bin/agl   # 0.3's, in an environment apart
"""

import argparse
import asyncio
import contextlib
import json
import re
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import psutil
import uvloop
from checkouts import checkout, run_from

SPANS = 8
TEXT = "The quick brown fox jumps over the lazy dog. " * 14


@dataclass
class Figures:
    """What rounds of one way on one server gave."""

    cpu_milliseconds: list[float] = field(default_factory=list)
    cycles_per_second: list[float] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """A kept HTTP connection, which costs little.

    The load runs on the machine that it measures, and aiohttp's client needs several times the
    time of the server that it asks.
    """

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.content: list[bytes] = []
        self.answered: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        if self.answered and not self.answered.done():
            self.answered.set_exception(exc or ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Keep a piece."""
        self.content.append(body)

    def on_message_complete(self) -> None:
        """Hand it over."""
        content, self.content = b"".join(self.content), []
        if not self.answered.done():  # who asked was cancelled
            self.answered.set_result(content)

    async def post(
        self, path: str, body: bytes, content_type: str, headers: str = ""
    ) -> tuple[int, bytes]:
        """One request; status and content of its answer."""
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s"
            b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
            % (path.encode(), headers.encode(), content_type.encode(), len(body), body)
        )
        content = await self.answered
        return self.parser.get_status_code(), content


class Runner:
    """One client of a server: speaks each way, in bytes, so that the load costs little."""

    def __init__(self, connection: Connection, name: str, admin: str | None) -> None:
        self.connection = connection
        self.name = name
        self.current: dict | None = None
        self.admin, self.own, self.of_attempt = admin, "", ""

    async def begin(self) -> None:
        """Get a token of its own, where the server asks for one."""
        if self.admin:
            body = b'{"role":"runner"}'
            self.own = json.loads(await self.post("/v1/agl/tokens", body, is_admin=True))

    def note(self, claimed: list[dict]) -> None:
        """Show the token of what was claimed from now on."""
        for one in claimed:
            self.of_attempt = one.get("span_token", "")

    async def post(
        self, path: str, body: bytes, content_type: str = "application/json", is_admin: bool = False
    ) -> bytes:
        """One request; anything but a success ends the run."""
        headers = ""
        if self.admin:
            headers = f"Authorization: Bearer {self.admin if is_admin else self.own}\r\n"
        if self.of_attempt and not is_admin:
            headers += f"AGL-Attempts: {self.of_attempt}\r\n"
        status, content = await self.connection.post(path, body, content_type, headers)
        if status >= 300:
            raise SystemExit(f"{path}: {status} {content[:500]!r}")
        return content

    async def enqueue(self, count: int = 1) -> None:
        """Queue rollouts."""
        one = {"input": {"question": "What is six times seven?", "answer": 42}}
        body = json.dumps({"rollouts": [one] * count}).encode()
        await self.post("/v1/agl/queues/rollouts/enqueue", body, is_admin=True)

    async def claim(self) -> dict:
        """Claim one rollout."""
        body = json.dumps({"limit": 1, "worker_id": self.name}).encode()
        (claimed,) = json.loads(await self.post("/v1/agl/queues/rollouts/dequeue", body))
        self.note([claimed])
        return claimed

    async def finish(self, rollout: dict) -> None:
        """Report success."""
        attempt = rollout["attempt"]["attempt_id"]
        path = f"/v1/agl/rollouts/{rollout['rollout_id']}/attempts/{attempt}"
        await self.post(path, b'{"status":"succeeded"}')

    async def wire(self) -> None:
        """As 0.3's client."""
        await self.enqueue()
        rollout = await self.claim()
        place = {
            "rollout_id": rollout["rollout_id"],
            "attempt_id": rollout["attempt"]["attempt_id"],
        }
        for _ in range(SPANS):
            number = json.loads(await self.post("/v1/agl/spans/next", json.dumps(place).encode()))
            await self.post("/v1/agl/spans", span(rollout, number["sequence_id"]))
        await self.finish(rollout)

    async def single(self) -> None:
        """One request per operation."""
        await self.enqueue()
        rollout = await self.claim()
        for _ in range(SPANS):
            await self.post("/v1/agl/spans", span(rollout, 0))
        await self.finish(rollout)

    async def batch(self) -> None:
        """The spans in one request."""
        await self.enqueue()
        rollout = await self.claim()
        await self.post("/v1/agl/spans/batch", spans(rollout))
        await self.finish(rollout)

    async def otlp(self) -> None:
        """The spans in one OTLP request."""
        await self.enqueue()
        rollout = await self.claim()
        await self.post("/v1/traces", protobuf(rollout), "application/x-protobuf")
        await self.finish(rollout)

    async def turn(self) -> None:
        """Spans, finish and the next claim in one request."""
        claim = json.dumps({"limit": 1, "worker_id": self.name}).encode()
        if self.current is None:
            body = b'{"claim":%s}' % claim
        else:
            ids = f"{self.current['rollout_id']}", f"{self.current['attempt']['attempt_id']}"
            body = (
                b'{"spans":%s,"finish":{"rollout_id":"%s","attempt_id":"%s",'
                b'"status":"succeeded"},"claim":%s}'
                % (spans(self.current), ids[0].encode(), ids[1].encode(), claim)
            )
        claimed = json.loads(await self.post("/v1/agl/turn", body))["claimed"]
        self.note(claimed)
        self.current = claimed[0] if claimed else None
        if self.current is None:
            await self.enqueue(32)


def span(rollout: dict, number: int) -> bytes:
    """A span of about 1.3 KB of JSON."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    now, writer = time.time(), ',"writer":"agent"' if "span_token" in rollout else ""
    return (
        f'{{"rollout_id":"{rollout["rollout_id"]}","attempt_id":"{rollout["attempt"]["attempt_id"]}"'
        f',"sequence_id":{number}{writer},"trace_id":"{trace_id}","span_id":"{span_id}","parent_id":null,'
        f'"name":"openai.chat.completion","status":{{"status_code":"OK","description":null}},'
        f'"attributes":{{"gen_ai.request.model":"m","gen_ai.usage.input_tokens":42,'
        f'"gen_ai.usage.output_tokens":7,"gen_ai.prompt.0.content":"{TEXT}"}},'
        f'"events":[],"links":[],"start_time":{now - 0.1},"end_time":{now},'
        f'"context":{{"trace_id":"{trace_id}","span_id":"{span_id}","is_remote":false,'
        f'"trace_state":{{}}}},"parent":null,'
        f'"resource":{{"attributes":{{"service.name":"agent"}},"schema_url":""}}}}'
    ).encode()


def spans(rollout: dict) -> bytes:
    """The spans of one rollout."""
    return b"[" + b",".join(span(rollout, 0) for _ in range(SPANS)) + b"]"


def protobuf(rollout: dict) -> bytes:
    """The same as OTLP."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.otlp_requests import request_of

    from agl.types import Span

    return request_of(
        Span.model_validate_json(span(rollout, number)) for number in range(1, SPANS + 1)
    )


WAYS: dict[str, Callable[[Runner], Awaitable[None]]] = {
    "wire": Runner.wire,
    "single": Runner.single,
    "otlp": Runner.otlp,
    "batch": Runner.batch,
    "turn": Runner.turn,
}


async def measure(url: str, pid: int, way: str, runners: int, seconds: float) -> tuple[float, int]:
    """CPU seconds of the server, and cycles, in about so many seconds."""
    server = psutil.Process(pid)
    host, port = urlsplit(url).hostname, urlsplit(url).port
    loop = asyncio.get_running_loop()
    cycles = 0

    async def run(runner: Runner, until: float) -> None:
        nonlocal cycles
        while time.monotonic() < until:
            await WAYS[way](runner)
            cycles += 1

    connections = [
        (await loop.create_connection(Connection, host, port))[1] for _ in range(runners)
    ]
    admin = urlsplit(url).password
    crew = [Runner(each, f"runner-{n}", admin) for n, each in enumerate(connections)]
    await asyncio.gather(*(runner.begin() for runner in crew))

    async def all_run(length: float) -> None:
        nonlocal cycles
        cycles = 0
        until = time.monotonic() + length
        await asyncio.gather(*(run(runner, until) for runner in crew))

    await all_run(0.5)  # caches
    before = cpu_seconds(server)
    await all_run(seconds)
    used, done = cpu_seconds(server) - before, cycles
    for connection in connections:
        connection.transport.close()
    return used, done


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process and its children."""
    times = [process.cpu_times(), *(child.cpu_times() for child in process.children(True))]
    return sum(each.user + each.system for each in times)


@contextlib.contextmanager
def serve(command: list[str], log: Path, *, is_agl: bool) -> Iterator[tuple[str, int]]:
    """A server process; its address and process id.

    Ours says its address, maybe with a token, once it answers; 0.3's says nothing.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output, stderr=output, cwd=log.parent,
        )  # fmt: skip
        try:
            end = time.monotonic() + 300
            while (url := address(log) if is_agl else answering(port)) is None:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{command}: did not start; {log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def address(log: Path) -> str | None:
    """What our server said when it began to answer."""
    said = re.search(r"^agl store: (http\S+) ", log.read_text(), re.MULTILINE)
    return said[1] if said else None


def answering(port: int) -> str | None:
    """The address of whoever listens on a port."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return f"http://127.0.0.1:{port}"
    return None


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of one round of one way")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runners", type=int, default=32)
    parser.add_argument("--ways", default="wire,single,otlp,batch,turn")
    parser.add_argument("--tree", action="append", type=checkout, default=[], metavar="NAME=FOLDER")
    parser.add_argument("--peer", help="the agl command of an environment with agentlightning 0.3")
    parser.add_argument("--peer-runners", type=int, default=16)
    parser.add_argument("--peer-ways", default="wire,otlp")
    options = parser.parse_args()
    table: dict[tuple[str, str], Figures] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        where = Path(folder)
        ways = options.ways.split(",")
        servers = [("ours", own_command(where / "ours.db"), ways, options.runners)]
        for name, tree in options.tree:
            command = run_from(tree, own_command(where / f"{name}.db"))
            servers.append((name, command, ways, options.runners))
        if options.peer:
            peer = [options.peer, "store", "--backend", "memory", "--log-level", "WARNING"]
            servers.append(("peer", peer, options.peer_ways.split(","), options.peer_runners))
        running = [
            (name, *stack.enter_context(serve(command, log, is_agl=name != "peer")), ways, runners)
            for name, command, ways, runners in servers
            for log in [where / f"{name}.log"]
        ]
        for number in range(options.rounds):
            for way in WAYS:
                # There and back: who comes first is not always the same.
                for name, url, pid, ways, runners in running[:: -1 if number % 2 else 1]:
                    if way not in ways:
                        continue
                    begin = time.monotonic()
                    cpu, cycles = uvloop.run(measure(url, pid, way, runners, options.seconds))
                    figures = table.setdefault((name, way), Figures())
                    figures.cpu_milliseconds.append(cpu * 1000 / max(cycles, 1))
                    figures.cycles_per_second.append(
                        cycles / max(time.monotonic() - begin - 0.5, 0.1)
                    )
    show(table, [name for name, _ in options.tree])


def own_command(path: Path) -> list[str]:
    """How our server is started, on a file."""
    command = [sys.executable, "-c", "import agl.cli; agl.cli.main()", "store"]
    return [*command, "--path", str(path), "--log-level", "WARNING"]


def show(table: dict[tuple[str, str], Figures], trees: list[str]) -> None:
    """One line per server and way; ratios to the peer's way of the wire, or to our own.

    Then ours to each other tree's in the same way: medians over rounds.
    """
    base = table.get(("peer", "wire")) or table.get(("ours", "wire"))
    print("server way      CPU ms/cycle  (min-max)        cycles/s   less CPU  more cycles")
    for (name, way), figures in table.items():
        cpu = statistics.median(figures.cpu_milliseconds)
        rate = statistics.median(figures.cycles_per_second)
        line = f"{name:6} {way:8} {cpu:12.3f}  ({min(figures.cpu_milliseconds):.3f}-"
        line += f"{max(figures.cpu_milliseconds):.3f})".ljust(12) + f" {rate:10.1f}"
        if base:
            line += f" {statistics.median(base.cpu_milliseconds) / cpu:9.1f}x"
            line += f" {rate / statistics.median(base.cycles_per_second):10.1f}x"
        print(line)
    for name in trees:
        for way in (way for server, way in table if server == name):
            pairs = zip(
                table["ours", way].cpu_milliseconds, table[name, way].cpu_milliseconds, strict=True
            )
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            print(
                f"ours to {name}, {way:8} CPU {statistics.median(ratios):.3f}"
                f"  ({ratios[0]:.3f}-{ratios[-1]:.3f})"
            )


if __name__ == "__main__":
    main()
