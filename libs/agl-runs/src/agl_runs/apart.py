"""A run whose algorithm, or whose runners, have an environment of their own.

``environment`` in ``algorithm`` or ``runner`` of a file is the folder of a virtual environment. The
two sides of the run are then processes, each of its own environment, which share the store alone:
the algorithm serves it, and the runners, who have agents, tracer and graders, are its clients.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agl.cli.shared import note
from agl.errors import ConfigError
from agl.plugins.recorder import RunRequest
from agl_runs.config.file import ConfigFile, as_yaml, configured
from agl_runs.config.overrides import parse_yaml
from agl_runs.config.sides import SIDES, role_of

POLL_SECONDS = 0.1
LONGEST_END_SECONDS = 60.0
"""Runners that take longer lose what they are about."""


def pythons_of(file: ConfigFile) -> dict[str, Path]:
    """Side -> the Python that runs it; empty where this process is one side, or runs both.

    Raises:
        ConfigError: There is no such environment, or it has no agl-runs.
    """
    if role_of(file.config.strategy) != "both":
        return {}
    pythons = {side: _python_of(file, side, at) for side, at in file.environments.items()}
    strategy = file.config.strategy
    name = strategy.get("type", "cs") if isinstance(strategy, dict) else strategy
    if pythons and name != "cs":
        raise ConfigError(f"{file.where()} an environment needs strategy cs, got {name!r}")
    return pythons and {side: pythons.get(side, Path(sys.executable)) for side in SIDES}


def _python_of(file: ConfigFile, side: str, folder: str) -> Path:
    where = file.where(side, "environment")
    python = file.path.resolve().parent / folder / "bin" / "python"
    if not python.exists():
        raise ConfigError(f"{where}: {folder!r} is no virtual environment: it has no bin/python")
    tried = subprocess.run([python, "-c", f"import {__name__}"], capture_output=True, text=True)
    if tried.returncode:
        why = tried.stderr.strip().rpartition("\n")[2]
        raise ConfigError(
            f"{where}: {folder!r} cannot run agl ({why}). In a clone of agl, have it install what "
            f"the {side} needs: {python} install.py agl-runs agl-server ..."
        )
    return python


def run_apart(file: ConfigFile, run: RunRequest, pythons: dict[str, Path], *, ui: bool) -> None:
    """Run both sides until the algorithm has ended; its exit code is that of this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    sides: dict[str, Any] = {}
    is_over = is_told = False

    def forward(number: int, frame: object) -> None:
        for process in sides.values():
            process.send_signal(number)

    def end_runners(number: int, frame: object) -> None:
        nonlocal is_over
        is_over = True
        sides["runner"].terminate()

    handlers = {signal.SIGINT: forward, signal.SIGTERM: forward, signal.SIGUSR1: end_runners}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    command = "from agl.cli import main; main()"
    words = ["-c", command, "run", "--side", *(["--debug"] if "--debug" in sys.argv else [])]
    try:
        for side, python in pythons.items():
            env = {"AGL_SERVER_PORT": port, **os.environ, "AGL_CURRENT_ROLE": side}
            # A session of its own: Ctrl+C reaches each through ``forward``, and once.
            options: dict[str, Any] = {"env": env, "start_new_session": True, "text": True}
            sides[side] = subprocess.Popen([python, *words], stdin=subprocess.PIPE, **options)
        said = as_yaml(  # a value of a file may be a date, which JSON has not
            {
                "parent": os.getpid(),
                "path": str(file.path),
                "read_from": str(file.read_from or ""),
                "values": file.values,
                "folder": str(run.folder),
                "run": {"run_id": run.run_id, "resume": run.resume, "force": run.force},
                "ui": ui,
                "runner": sides["runner"].pid,
            }
        )
        for process in sides.values():
            # One that has ended already is seen below.
            with suppress(BrokenPipeError), process.stdin as out:
                out.write(said)
        while sides["algorithm"].poll() is None and (is_over or not sides["runner"].poll()):
            if sides["runner"].poll() == 0 and not is_told:  # as max_rollouts says
                sides["algorithm"].send_signal(signal.SIGUSR1)
                is_told = True
            time.sleep(POLL_SECONDS)
        code, side = sides["algorithm"].poll(), "algorithm"
        if code is None:
            note("the runners have ended, and so does the algorithm")
            code, side = sides["runner"].poll(), "runner"
        if code in (1, 2):  # its error stands above
            note(f"that was the {side}'s side, in the environment of {pythons[side]}")
    finally:
        for process in sides.values():
            process.terminate()
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if code:
        raise SystemExit(code if code > 0 else 128 - code)


class _EndsRunners:
    """Has the other side end before the store that it asks goes away."""

    def __init__(self, parent: int, runner: int) -> None:
        self.parent, self.runner = parent, runner

    async def on_run_end(self) -> None:
        import psutil

        if os.getppid() == self.parent:
            os.kill(self.parent, signal.SIGUSR1)
        end = time.monotonic() + LONGEST_END_SECONDS
        while psutil.pid_exists(self.runner) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


def read_side() -> tuple[ConfigFile, RunRequest, list[object]]:
    """What ``run_apart`` tells the process of a side: file, run, hooks of it.

    This process ends when its parent does.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # so the strategy knows that it may take it
    said = parse_yaml(sys.stdin.read(), "agl run --side")
    threading.Thread(target=_end_with, args=(said["parent"],), daemon=True).start()
    read_from = Path(said["read_from"]) if said["read_from"] else None
    file = configured([(Path(said["path"]), said["values"])], (), read_from)
    hooks: list[object] = [
        *(["ui"] if said["ui"] else []),
        _EndsRunners(said["parent"], said["runner"]),
    ]
    return file, replace(RunRequest(**said["run"]), folder=Path(said["folder"])), hooks


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
