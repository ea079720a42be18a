"""Child processes end with the block, and with the process that started them, however that ends."""

import asyncio
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import until

from agl_models.processes.child_process import child, tail
from agl_models.processes.model_process import is_healthy

# A process with a child of its own, as a server with workers; both write their ids.
FAMILY = (
    "import os, subprocess, sys, time\n"
    "inner = ('import os, sys, time; open(sys.argv[1], chr(119)).write(str(os.getpid())); '\n"
    "         'time.sleep(60)')\n"
    "subprocess.Popen([sys.executable, '-c', inner, sys.argv[1] + '/inner'])\n"
    "open(sys.argv[1] + '/outer', 'w').write(str(os.getpid()))\n"
    "time.sleep(60)\n"
)


async def ids(folder):
    found = [folder / "outer", folder / "inner"]
    await until(lambda: all(path.exists() and path.read_text() for path in found))
    return [int(path.read_text()) for path in found]


def alive(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return False


async def gone(numbers):
    async with asyncio.timeout(15.0):
        await until(lambda: not any(map(alive, numbers)))


async def test_a_server_of_a_model_gets_no_token_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_SERVER_TOKEN", "secret-long-enough")
    program = "import os; print('token', repr(os.environ.get('AGL_SERVER_TOKEN')))"
    async with child([sys.executable, "-c", program], tmp_path / "log") as process:
        await process.wait()
    assert tail(tmp_path / "log").endswith("token ''")


async def test_the_whole_family_ends_with_the_block(tmp_path):
    async with child([sys.executable, "-c", FAMILY, str(tmp_path)], tmp_path / "log"):
        family = await ids(tmp_path)
        assert all(map(alive, family))
    await gone(family)


async def test_the_whole_family_ends_when_its_parent_is_killed(tmp_path):
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from agl_models.processes.child_process import child\n"
        "async def main():\n"
        "    folder = Path(sys.argv[1])\n"
        "    async with child([sys.executable, '-c', sys.argv[2], sys.argv[1]], folder / 'log'):\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tmp_path), FAMILY)
    )
    family = await ids(tmp_path)
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    await gone(family)


async def test_one_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("agl_models.processes.child_process.GRACE_SECONDS", 0.3)
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY
    command = [sys.executable, "-c", program, str(tmp_path)]
    async with child(command, tmp_path / "log"):
        family = await ids(tmp_path)
    await gone(family)


@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
async def test_exit_codes_and_the_end_of_the_log_are_there(tmp_path, program, code):
    log = tmp_path / "logs/one.log"
    said = "import sys; print('out'); print('why', file=sys.stderr); sys.stdout.flush(); "
    program = said + program
    async with child([sys.executable, "-c", program], log) as process:
        assert await process.wait() == code
    assert {"out", "why"} <= {*tail(log).split()}


@pytest.mark.parametrize(
    ("answer", "is_well"), [(b"HTTP/1.1 200 OK\r\n\r\n", True), (b"garbage\r\n\r\n", False)]
)
def test_server_of_this_machine_is_asked_past_a_proxy(monkeypatch, answer, is_well):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(is_healthy, f"http://127.0.0.1:{server.getsockname()[1]}")
        server.settimeout(60)
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)
        assert asked.result() is is_well
