"""Runs Python scripts in processes that have imported torch already: ``run([script, *arguments])``.

``-m`` and a module, or ``-c`` and a text, may stand for the script.

A process of its own takes four CPU seconds to import torch and transformers. Here a server, one per
worker of the tests, imports once what others wrote, and forks for each script; nothing of ours is
imported before. This is no place for runs that must differ in what a process draws as it starts,
which is the seed of hashes.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

OTHERS = (
    *("torch", "transformers.models.llama.modeling_llama", "openai", "aiohttp", "uvicorn"),
    *("pydantic", "opentelemetry.sdk.trace", "yaml"),
)

_starting = threading.Lock()
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

    def wait(self, timeout: float = 250.0) -> int:
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
    cwd: object = ".",
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Process:
    """What ``subprocess.Popen([python, *options, *command])`` starts."""
    words = [str(each) for each in command]
    job = {"command": words, "cwd": str(Path(str(cwd)).absolute()), "env": {**(env or os.environ)}}
    told, status = os.pipe()
    files = [stdout.fileno(), stderr.fileno(), status]
    with _starting:  # two threads would each make a server, and one would be dropped
        server, _ = _server(*options)
    socket.send_fds(server, [json.dumps(job).encode()], files)
    os.close(status)
    return Process(told)


def run(
    command: Sequence[object],
    *,
    cwd: object = ".",
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> "subprocess.CompletedProcess[str]":
    """What ``subprocess.run`` gives, its output captured as text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(command, stdout=out, stderr=err, cwd=cwd, env=env, options=options)
        code = process.wait()
        texts = [file.seek(0) or file.read() for file in (out, err)]
    return subprocess.CompletedProcess([*map(str, command)], code, *texts)


@functools.cache
def _server(*options: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """The way to a server, which ends with its other end; and the server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, *options, __file__, str(theirs.fileno())]
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
    return ours, server


def _serve(jobs: socket.socket) -> None:
    for name in OTHERS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    while True:
        job, files, *_ = socket.recv_fds(jobs, 2**20, 3)
        if not job:
            return None
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for a script ends by himself
        if os.fork() == 0:
            jobs.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            script = os.fork()
            if script == 0:
                return _become(files, **json.loads(job))
            os.write(files[2], f"{script}\n".encode())
            _, ended, used = os.wait4(script, 0)
            code, seconds = os.waitstatus_to_exitcode(ended), used.ru_utime + used.ru_stime
            with contextlib.suppress(BrokenPipeError):
                os.write(files[2], f"{code} {seconds}\n".encode())
            os._exit(0)
        for file in files:
            os.close(file)


def _become(files: list[int], command: list[str], cwd: str, env: dict[str, str]) -> None:
    os.setsid()
    with open(os.devnull) as nothing:
        for number, file in enumerate([nothing.fileno(), *files[:2]]):
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


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _serve(given)
