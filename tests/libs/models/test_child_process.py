"""Child processes end with the block, and with the process that started them, however that ends."""

import asyncio
import os
import signal
import sys
import time

import pytest

from agl_models.processes.child_process import child, tail

# A process with a child of its own, as a server with workers; both write their ids.
FAMILY = (
    "import os, subprocess, sys, time\n"
    "inner = ('import os, sys, time; open(sys.argv[1], chr(119)).write(str(os.getpid())); '\n"
    "         'time.sleep(60)')\n"
    "subprocess.Popen([sys.executable, '-c', inner, sys.argv[1] + '/inner'])\n"
    "open(sys.argv[1] + '/outer', 'w').write(str(os.getpid()))\n"
    "time.sleep(60)\n"
)


def _ids(folder):
    found = [folder / "outer", folder / "inner"]
    while not all(path.exists() and path.read_text() for path in found):
        time.sleep(0.05)
    return [int(path.read_text()) for path in found]


def alive(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ids(folder):
    return await asyncio.to_thread(_ids, folder)


async def gone(numbers):
    return await asyncio.to_thread(_gone, numbers)


def _gone(numbers, seconds=15.0):
    deadline = time.monotonic() + seconds
    while any(map(alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, numbers))


async def test_the_whole_family_ends_with_the_block(tmp_path):
    async with child([sys.executable, "-c", FAMILY, str(tmp_path)], tmp_path / "log"):
        family = await ids(tmp_path)
        assert all(map(alive, family))
    assert await gone(family)


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
    assert await gone(family)


async def test_one_that_ignores_sigterm_is_killed(tmp_path):
    program = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(sys.argv[1] + '/outer', 'w').write(str(os.getpid()))\n"
        "open(sys.argv[1] + '/inner', 'w').write(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    async with child(command, tmp_path / "log", grace_seconds=0.3):
        family = await ids(tmp_path)
    assert await gone(family)


@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
async def test_exit_codes_and_the_end_of_the_log_are_there(tmp_path, program, code):
    log = tmp_path / "logs/one.log"
    program = (
        f"import sys; print('out'); print('why', file=sys.stderr); sys.stdout.flush(); {program}"
    )
    async with child([sys.executable, "-c", program], log) as process:
        assert await process.wait() == code
    assert "why" in tail(log)
    assert "out" in tail(log)
