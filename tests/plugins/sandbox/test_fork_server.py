"""A fork server gives each call a process of its own, and nothing of a call outlives it."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil
import pytest

from agl_sandbox import fork_server, forked_worker
from agl_sandbox.fork_server import CallFailedError, ForkServer, ForkServerGoneError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

STATE: list[int] = []
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="finds what has left its group")


def work(payload: Any, ask: Callable[[Any], Any]) -> Any:
    """What the fork servers of these tests do: the function here that the payload names."""
    return globals()[payload["do"]](payload, ask)


@pytest.fixture
async def calls():
    with contextlib.closing(ForkServer(work)) as one:
        yield one


async def is_well(calls: ForkServer) -> bool:
    """Whether it still gives a call a fresh process."""
    return (await calls.call({"do": "remember", "text": ""}))[1] == 1


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(pid: int) -> bool:
    """Whether a process ends, within some seconds."""
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:  # noqa: ASYNC110 (of no child of ours)
        await asyncio.sleep(0.01)
    return not is_alive(pid)


async def all_gone(pids: list[int]) -> bool:
    return len(pids) == 3 and all([await gone(pid) for pid in pids])


def remember(payload: Any, ask: Any) -> Any:
    STATE.append(1)
    return [os.getpid(), len(STATE), payload["text"]]


def count_up(payload: Any, ask: Callable[[Any], Any]) -> int:
    number = 0
    for _ in range(3):
        number = ask(number)
    return number


async def test_what_the_work_asks_is_answered_on_the_callers_loop(calls):
    asked: list[int] = []

    async def answer(message: Any) -> Any:
        asked.append(message)
        return message + 10

    assert await calls.call({"do": "count_up"}, on_message=answer) == 30
    assert asked == [0, 10, 20]


def print_much(payload: Any, ask: Any) -> None:
    os.write(1, b"one\r\x1b[2Kforged\ntwo\n")
    with open(2, "wb", closefd=False) as error:
        error.write(b"x" * 150_000)


async def test_what_a_call_prints_is_copied_by_line_and_has_an_end(calls, capsys):
    await calls.call({"do": "print_much"})
    first, second, long, last = capsys.readouterr().err.splitlines()
    assert (first, second) == ("grader | one\\r\\x1b[2Kforged", "grader | two")
    assert long.startswith("grader | xxx")
    assert len(long) < 100_000
    assert last == "grader | (what it prints after 100000 bytes is left out)"


def long_text(payload: Any, ask: Any) -> str:
    return payload["text"] * 2


async def test_megabytes_pass_in_both_directions(calls):
    text = "x" * 3_000_000 + "snow \N{SNOWMAN} \ud83d"  # half an emoji, as models write
    assert await calls.call({"do": "long_text", "text": text}) == text * 2


def evaluate(payload: Any, ask: Any) -> Any:
    return eval(payload["code"])


def own_socket() -> socket.socket:
    """The one on which the caller listens."""
    for number in range(3, 4096):
        try:
            sock = socket.socket(fileno=os.dup(number))
            sock.getpeername()
        except OSError:
            continue
        return sock
    raise AssertionError("the work has no socket")


def garbage(payload: Any, ask: Any) -> None:
    own_socket().sendall(payload["bytes"].encode("latin-1"))
    time.sleep(60)


def close_socket(payload: Any, ask: Any) -> None:
    own_socket().shutdown(socket.SHUT_RDWR)
    time.sleep(60)


def flood(payload: Any, ask: Any) -> None:
    sock = own_socket()
    while True:
        sock.sendall(forked_worker.encode({"message": "x" * 10_000}))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"do": "evaluate", "code": "object()"}, "JSON cannot hold it: .*object"),
        ({"do": "close_socket"}, "gave no answer"),
        ({"do": "garbage", "bytes": "\xff\xff\xff\xff and so on"}, "4294967295 bytes; at most"),
        ({"do": "garbage", "bytes": "\0\0\0\4\x80ab\n"}, "no JSON"),
        ({"do": "garbage", "bytes": "\0\0\0\2[]"}, "expected a JSON object, got a list"),
        ({"do": "garbage", "bytes": "\0\0\0\2{}"}, "no result"),
        ({"do": "garbage", "bytes": f"\0\1\0\0{'[' * 0x10000}"}, "nested deeper"),
    ],
)
async def test_a_call_that_goes_wrong_is_one_failed_call(calls, payload, says):
    with pytest.raises(CallFailedError, match=says):
        await calls.call(payload, timeout=30)
    assert await is_well(calls)


async def test_a_child_cannot_say_more_than_the_limit(calls, monkeypatch):
    monkeypatch.setattr(fork_server, "MAX_CALL_BYTES", 1_000_000)
    heard = 0

    async def answer(message: Any) -> None:
        nonlocal heard
        heard += len(message)

    with pytest.raises(CallFailedError, match="more than 1000000 bytes"):
        await calls.call({"do": "flood"}, on_message=answer, timeout=30)
    assert heard <= 1_000_000


async def test_a_payload_that_json_cannot_hold_is_refused_at_once(calls):
    with pytest.raises(forked_worker.FrameError, match="set is not JSON serializable"):
        await calls.call({"do": "remember", "text": {1}})


def leave_descendants(payload: Any, ask: Callable[[Any], Any]) -> Any:
    """Leave a child in the group, one with a session of its own, and one without parents."""
    sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
    pids = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            os.execv(sleep[0], sleep)
        os.write(writing, str(pid).encode())
        os._exit(0)
    os.wait()
    pids.append(int(os.read(reading, 20)))
    ask(pids)
    if payload["then"] == "return":
        return pids
    if payload["then"] == "die":
        os._exit(7)
    if payload["then"] == "kill the keeper":
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(300)
    return pids


@linux_only
@pytest.mark.parametrize("then", ["return", "die", "kill the keeper", "timeout", "cancel"])
async def test_nothing_that_a_call_started_outlives_it(calls, then):
    pids: list[int] = []
    told = asyncio.Event()

    async def hear(message: Any) -> None:
        pids.extend(message)
        # They ran, or this test would prove nothing.
        assert all(psutil.pid_exists(pid) for pid in pids)
        told.set()

    payload = {"do": "leave_descendants", "then": then}
    # A busy machine may not get so far before the first deadline.
    for timeout in (3, 12, 48, 192) if then == "timeout" else (None,):
        call = asyncio.create_task(calls.call(payload, on_message=hear, timeout=timeout))
        hearing = asyncio.create_task(told.wait())
        await asyncio.wait([call, hearing], return_when=asyncio.FIRST_COMPLETED)
        hearing.cancel()
        if told.is_set():
            break
    if then == "cancel":
        call.cancel()
    await asyncio.wait([call])
    # Already now, without waiting for it:
    assert len(pids) == 3
    assert [pid for pid in pids if is_alive(pid)] == []
    if then == "return":
        assert call.result() == pids
    elif then == "cancel":
        assert call.cancelled()
    else:
        assert isinstance(call.exception(), TimeoutError if then == "timeout" else CallFailedError)
    assert await is_well(calls)


def answer_and_stay(payload: Any, ask: Any) -> None:
    own_socket().sendall(forked_worker.encode({"result": os.getpid()}))
    time.sleep(300)


async def test_a_child_that_answers_and_goes_on_is_ended(calls):
    assert await gone(await calls.call({"do": "answer_and_stay"}))


def ancestors(payload: Any, ask: Callable[[Any], Any]) -> None:
    keeper = psutil.Process(os.getppid())
    ask([os.getpid(), keeper.pid, keeper.ppid()])
    time.sleep(300)


async def test_a_killed_fork_server_takes_its_calls_along_and_is_told(calls):
    pids: list[int] = []

    async def kill_fork_server(message: Any) -> None:
        pids.extend(message)
        os.kill(pids[-1], signal.SIGKILL)

    with pytest.raises((ForkServerGoneError, CallFailedError)):
        await calls.call({"do": "ancestors"}, on_message=kill_fork_server)
    if sys.platform == "linux":
        assert await all_gone(pids)
    with pytest.raises(ForkServerGoneError, match="is gone"):
        await calls.call({"do": "remember", "text": ""})


async def test_a_cancelled_call_reads_as_cancelled_where_its_fork_server_is_gone_too(calls):
    async def kill_and_cancel(message: Any) -> None:
        os.kill(message[-1], signal.SIGKILL)
        call.cancel()

    call = asyncio.create_task(calls.call({"do": "ancestors"}, on_message=kill_and_cancel))
    await asyncio.wait([call])
    assert call.cancelled()
    assert calls.is_gone


async def test_closing_ends_the_calls(calls):
    pids: list[int] = []
    told = asyncio.Event()

    async def hear(message: Any) -> None:
        pids.extend(message)
        told.set()

    call = asyncio.create_task(calls.call({"do": "ancestors"}, on_message=hear))
    await told.wait()
    await asyncio.to_thread(calls.close)
    with pytest.raises(CallFailedError):
        await call
    assert await all_gone(pids)


PARENT = """
import asyncio, os
from agl_sandbox.fork_server import ForkServer
def work(payload, ask):
    ask([os.getpid(), os.getppid()])
    os.read(os.pipe()[0], 1)
async def main():
    fork_server = ForkServer(work)
    async def hear(pids):
        print(*pids, fork_server._pid, flush=True)
    await fork_server.call(1, on_message=hear)
asyncio.run(main())
"""


@linux_only
def test_a_fork_server_dies_with_its_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(psutil.pid_exists, pids))
        process.kill()
        assert asyncio.run(all_gone(pids))


def descriptors(payload: Any, ask: Any) -> Any:
    os.write(payload["file"], b"from the child")
    return [os.read(0, 100).decode(), os.path.realpath(f"/proc/self/fd/{payload['file']}")]


@linux_only
async def test_open_files_of_the_parent_are_not_there(tmp_path):
    path = tmp_path / "secret"
    with path.open("w+b", buffering=0) as file:
        file.write(b"from the parent")
        with contextlib.closing(ForkServer(work)) as calls:
            got = await calls.call({"do": "descriptors", "file": file.fileno()})
    assert got == ["", os.devnull]
    assert path.read_bytes() == b"from the parent"


@contextlib.contextmanager
def listening(details: Any) -> Iterator[list[socket.socket]]:
    yield [socket.create_server(("127.0.0.1", 0)) for _ in range(details)]


async def test_the_caller_gets_the_sockets_of_an_enclosure(monkeypatch):
    async def take(sockets: list[socket.socket]) -> None:
        for one in sockets:
            ports.append(one.getsockname()[1])
            one.close()

    monkeypatch.setattr(fork_server, "serve", partial(forked_worker.serve, enclose=listening))
    with contextlib.closing(ForkServer(work)) as server:
        for number in (0, 1, 3):
            ports: list[int] = []
            asked = {"do": "remember", "text": ""}
            await server.call(asked, details=number, on_sockets=take)
            assert len({*ports} - {0}) == number
