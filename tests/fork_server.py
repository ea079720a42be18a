"""Runs Python scripts in processes that have imported torch already: ``run([script, *arguments])``.

``-m`` and a module, or ``-c`` and a text, may stand for the script.

A process of its own takes four CPU seconds to import torch and transformers. Here a server, one for
all workers of a run of tests, imports once what others wrote, and forks for each script; nothing of
ours is imported before. This is no place for runs that must differ in what a process draws as it
starts, which is the seed of hashes.

``python -IS fork_server.py script *arguments`` is a program that does the same: it hands on the
signals that it gets, and the script ends with it.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

OTHERS = (
    *("torch", "transformers.models.llama.modeling_llama", "peft", "openai", "anthropic"),
    *("aiohttp", "uvicorn", "pydantic", "opentelemetry.sdk.trace", "yaml"),
)

FOLDER = "AGL_TEST_FORKS"
"""Variable with the folder of the servers' sockets; who makes it ends them as it ends."""
_servers: list["subprocess.Popen[bytes]"] = []
"""Those that this process has started: one that is dropped fails the test that runs then."""
cpu_seconds = 0.0
"""Of all scripts that ended, each with what it waited for."""


class Process:
    """A script that runs, in a session of its own."""

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def has_ended(self) -> bool:
        return bool(select.select([self._status], [], [], 0)[0])

    def wait(self, timeout: float | None = 250.0) -> int:
        """The code that it ends with, as that of ``subprocess``."""
        if not select.select([self._status], [], [], timeout)[0]:
            os.killpg(self.pid, signal.SIGKILL)
            self._status.close()  # left open, it would fail the test that runs then
            raise TimeoutError(f"{self.pid} did not end in {timeout} seconds")
        global cpu_seconds
        with self._status as status:
            code, seconds = status.readline().split()
        cpu_seconds += float(seconds)
        return int(code)


def start(
    command: Sequence[object],
    *,
    stdout: IO[str],
    stderr: IO[str],
    stdin: IO[str] | None = None,
    cwd: object = ".",
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Process:
    """What ``subprocess.Popen([python, *options, *command])`` starts."""
    words = [str(each) for each in command]
    job = {"command": words, "cwd": str(Path(str(cwd)).absolute()), "env": {**(env or os.environ)}}
    told, status = os.pipe()
    with open(os.devnull) as nothing, _connected(*options) as server:
        given = (stdin or nothing, stdout, stderr)
        files = [*(file.fileno() for file in given), status]
        socket.send_fds(server, [json.dumps(job).encode()], files)
    os.close(status)
    return Process(told)


def run(
    command: Sequence[object],
    *,
    cwd: object = ".",
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    timeout: float = 250.0,
) -> "subprocess.CompletedProcess[str]":
    """What ``subprocess.run`` gives, its output captured as text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(command, stdout=out, stderr=err, cwd=cwd, env=env, options=options)
        code = process.wait(timeout)
        texts = [file.seek(0) or file.read() for file in (out, err)]
    return subprocess.CompletedProcess([*map(str, command)], code, *texts)


def program(place: Path, *words: object) -> Path:
    """A file that is executed as Python with these words before its own."""
    command = shlex.join(map(str, [sys.executable, "-IS", __file__, *words]))
    place.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    place.chmod(0o755)
    folder()
    return place


def folder() -> Path:
    """That of the servers; whoever asks first owns it, and those that it starts find it."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = made = tempfile.mkdtemp(prefix="agl-forks-")
        owner = socket.socket(socket.AF_UNIX)
        owner.bind(f"{made}/owner")
        owner.listen(100)

        def end(pid: int) -> None:
            if pid == os.getpid():
                owner.close()
                shutil.rmtree(made, ignore_errors=True)

        atexit.register(end, os.getpid())
    return Path(os.environ[FOLDER])


def _connected(*options: str) -> socket.socket:
    """A way to the server whose Python has these options."""
    place = folder() / ("server" + "".join(options))
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as jobs:
                jobs.bind(str(place))
                jobs.listen(100)
                command = [sys.executable, *options, __file__, "--serve", str(jobs.fileno())]
                _servers.append(subprocess.Popen(
                    command, pass_fds=[jobs.fileno()], start_new_session=True, cwd="/",
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                ))  # fmt: skip
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(str(place))
    return server


def _serve(jobs: socket.socket) -> None:
    owner = socket.socket(socket.AF_UNIX)
    owner.connect(str(folder() / "owner"))
    gc.disable()
    for name in OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for a script ends by himself
    while owner not in select.select([jobs, owner], [], [])[0]:
        sender, _ = jobs.accept()
        with sender:
            job, files, *_ = socket.recv_fds(sender, 2**20, 4)
        if job and os.fork() == 0:
            jobs.close()
            owner.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            script = os.fork()
            if script == 0:
                _become(files, **json.loads(job))
                return
            for file in files[:3]:
                os.close(file)
            _watch(script, files[3])
        for file in files:
            os.close(file)


def _watch(script: int, status: int) -> NoReturn:
    """Say the number of a script, and at its end how it was; it ends with who listens."""
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{script}\n".encode())
    poll = select.poll()
    poll.register(status, 0)
    poll.register(os.pidfd_open(script), select.POLLIN)
    if poll.poll()[0][0] == status:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script, signal.SIGKILL)
    _, ended, used = os.wait4(script, 0)
    code, seconds = os.waitstatus_to_exitcode(ended), used.ru_utime + used.ru_stime
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{code} {seconds}\n".encode())
    os._exit(0)


def _become(files: list[int], command: list[str], cwd: str, env: dict[str, str]) -> None:
    os.setsid()
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    program, *arguments = command
    try:
        if program == "-m":
            module, *arguments = arguments
            sys.argv[:], sys.path[0] = [module, *arguments], cwd
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif program == "-c":
            code, *arguments = arguments
            sys.argv[:], sys.path[0] = [program, *arguments], ""
            del sys.modules["__main__"].__file__
            exec(code, {"__name__": "__main__"})
        else:
            sys.argv[:], sys.path[0] = command, str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    # What Python does as it ends, but for freeing all that torch made, which takes a second.
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def _stand_in(command: list[str]) -> int:
    """Be a script that runs elsewhere."""
    while command[0] in ("-u", "-B"):
        del command[0]
    files = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    process = start(command, **files)  # pyright: ignore
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: process.send_signal(number))
    code = process.wait(None)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        with socket.socket(fileno=int(sys.argv[2])) as given:
            _serve(given)
    else:
        sys.exit(_stand_in(sys.argv[1:]))
