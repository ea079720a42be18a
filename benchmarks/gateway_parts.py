"""What the gateway's benchmarks are made of: a quick mock of a model server, and a quick client.

Both are bare protocols on uvloop, so that what is measured is the gateway.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

NUM_TOKENS = 48
"""Of an answer: 3 KB with token ids and log-probabilities."""
NUM_CHUNKS = 64
SOURCE = Path(__file__).parent


def request_body(stream: bool = False, note: str = "") -> bytes:
    """A call of an agent: 2 KB, of which our gateway asks for ids and log-probabilities.

    Args:
        stream: Whether the answer shall be one.
        note: For the mock: ``pace-5`` waits 5 ms before each chunk, ``die`` ends the connection
            in the middle of the answer.
    """
    content = f"[{note}] What is in the kitchen? " + "The agent looks around. " * 60
    messages = [
        {"role": "system", "content": "You are helpful. " * 20},
        {"role": "user", "content": content},
    ]
    fields: dict[str, Any] = {"model": "mock", "messages": messages, "temperature": 0.7}
    return json.dumps(fields | ({"stream": True} if stream else {})).encode()


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _logprobs(count: int) -> dict[str, Any]:
    token = {"token": " word", "logprob": -0.123, "bytes": None, "top_logprobs": []}
    return {"content": [token] * count}


def _completion(extended: bool) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "word " * NUM_TOKENS},
        "logprobs": _logprobs(NUM_TOKENS) if extended else None,
        "finish_reason": "stop",
    }
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "mock"}
    usage = {"prompt_tokens": 64, "completion_tokens": NUM_TOKENS, "total_tokens": 112}
    if extended:
        choice["token_ids"] = list(range(1000, 1000 + NUM_TOKENS))
    ids = {"prompt_token_ids": list(range(2000, 2064))} if extended else {}
    return _dumps({**answer, "choices": [choice], "usage": usage, **ids})


def _chunks(extended: bool) -> list[bytes]:
    chunks: list[bytes] = []
    for number in range(NUM_CHUNKS):
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": "word "} if number else {"role": "assistant", "content": ""},
            "logprobs": _logprobs(1) if extended and number else None,
            "finish_reason": "stop" if number == NUM_CHUNKS - 1 else None,
        }
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
        if extended and number:
            choice["token_ids"] = [1000 + number]
        ids = {"prompt_token_ids": list(range(64))} if extended and not number else {}
        chunks.append(b"data: " + _dumps({**chunk, "choices": [choice], **ids}) + b"\n\n")
    return [*chunks, b"data: [DONE]\n\n"]


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_WHOLE = {kind: _HEAD % len(_completion(kind)) + _completion(kind) for kind in (False, True)}
_STREAM = {
    kind: [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in _chunks(kind)]
    for kind in (False, True)
}
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_PACE = re.compile(rb"pace-(\d+)")


class Mock(asyncio.Protocol):
    """A model server that has every answer ready."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport: Any = transport
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self.buffer, 0, end)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self.buffer) < size:
                return
            body, self.buffer = self.buffer[end + 4 : size], self.buffer[size:]
            self._answer(body)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        if self.task is not None:
            self.task.cancel()

    def _answer(self, body: bytes) -> None:
        extended, dies = b'"return_token_ids":true' in body, b"[die" in body
        if b'"stream": true' in body or b'"stream":true' in body:
            pace = _PACE.search(body)
            stream = self._stream(extended, dies, int(pace[1]) / 1000 if pace else 0.0)
            self.task = asyncio.get_running_loop().create_task(stream)
        elif dies:
            self.transport.write(_WHOLE[extended][:1000])
            self.transport.close()
        else:
            self.transport.write(_WHOLE[extended])

    async def _stream(self, extended: bool, dies: bool, pace: float) -> None:
        self.transport.write(_STREAM_HEAD)
        for number, chunk in enumerate(_STREAM[extended]):
            if pace:
                await asyncio.sleep(pace)
            if dies and number == NUM_CHUNKS // 2:
                self.transport.close()
                return
            self.transport.write(chunk)
        self.transport.write(b"0\r\n\r\n")


async def serve_mock() -> None:
    """Serve on a free port, which is printed, until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Mock, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Outcome(NamedTuple):
    """What a client saw of a call."""

    status: int
    """0 when the connection ended before the answer."""
    is_whole: bool
    first_seconds: float
    """To the first byte of the body."""
    seconds: float
    body: bytes


class Connection(asyncio.Protocol):
    """A kept connection that makes one call after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport: Any = transport
        self.done: asyncio.Future[None] | None = None

    async def call(self, request: bytes, cut_after: int | None = None) -> Outcome:
        """Send a request and take the answer, or hang up after so many bytes of its body."""
        self.data, self.end, self.size = bytearray(), -1, -1
        self.first, self.cut_after = 0.0, cut_after
        self.done = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self.transport.write(request)
        await self.done
        seconds = time.perf_counter() - start
        status = int(self.data[9:12]) if self.end >= 0 else 0
        body = bytes(self.data[self.end + 4 :])
        return Outcome(status, self._is_whole(), self.first - start, seconds, body)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.data += data
        if self.end < 0:
            self.end = self.data.find(b"\r\n\r\n")
            if self.end < 0:
                return
            length = _LENGTH.search(self.data, 0, self.end)
            self.size = self.end + 4 + int(length[1]) if length else -1
        if not self.first and len(self.data) > self.end + 4:
            self.first = time.perf_counter()
        if self.cut_after is not None and len(self.data) - self.end > self.cut_after:
            self.transport.abort()
        elif self._is_whole():
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._finish()

    def _is_whole(self) -> bool:
        if self.end < 0:
            return False
        return (
            len(self.data) >= self.size if self.size >= 0 else self.data.endswith(b"\r\n0\r\n\r\n")
        )

    def _finish(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


async def connect(port: int) -> Connection:
    """A connection to this machine."""
    _, protocol = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return protocol


def http_request(port: int, path: str, body: bytes) -> bytes:
    """A post as clients send it."""
    head = (
        f"POST {path}/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\nauthorization: Bearer none\r\n"
        f"user-agent: bench\r\naccept: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Child:
    """A program in a process of its own that prints what it is when it is ready.

    Args:
        command: What to run.
        log: Where its errors go.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.start = time.perf_counter()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=output, cwd=log.parent
            )
        self._cost = psutil.Process(self.process.pid)

    def ready(self) -> Any:
        """What it printed as JSON, in the first line that is JSON."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line[:1] in b"{0123456789":
                self.ready_seconds = time.perf_counter() - self.start
                return json.loads(line)
        raise SystemExit(f"{self.process.args} did not start; see its log")

    def cpu_seconds(self) -> float:
        """So far, with its children's."""
        times = [process.cpu_times() for process in self._all()]
        return sum(each.user + each.system for each in times)

    def memory_mb(self) -> float:
        """Resident now, with its children's."""
        return sum(process.memory_info().rss for process in self._all()) / 1e6

    def stop(self) -> None:
        """End it and its children."""
        for process in reversed(self._all()):
            process.terminate()
        self.process.wait(20)

    def _all(self) -> list[psutil.Process]:
        return [self._cost, *self._cost.children(recursive=True)]


def start_mock(folder: Path) -> tuple[Child, int]:
    """The mock in a process of its own, and its port."""
    child = Child([sys.executable, str(SOURCE / "gateway_parts.py")], folder / "mock.log")
    return child, child.ready()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve_mock())
