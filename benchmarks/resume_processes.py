"""The processes of a run that ``resume.py`` starts, finds and kills."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psutil
from resume_scenes import Scene

from agl_http.server import bind
from agl_runs.folders import known_run
from agl_testing.echo_llm import EchoLLM

AGL = (sys.executable, "-c", "from agl.cli import main; main()")
TOKENS = dict.fromkeys(("AGL_SERVER_TOKEN", "AGL_GATEWAY_TOKEN"), "a-token-of-the-scene")
RESTART_SECONDS = 0.1
GONE_SECONDS = 60.0


class Service:
    """A command that is started again when it dies, as a service manager does.

    Args:
        name: Of the victim.
        port: Of 127.0.0.1.
        command: Of ``agl``, with its options.
        log: Gets what it writes.
    """

    def __init__(self, name: str, port: int, command: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        self.url = f"http://127.0.0.1:{port}"
        self.command = [*AGL, *command, "--port", str(port)]
        self._stopped = threading.Event()
        self.process = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command, stdout=log, stderr=log, env={**os.environ, **TOKENS}
            )

    def _keep(self) -> None:
        self.process.wait()
        while not self._stopped.wait(RESTART_SECONDS):
            self.process = self._start()
            self.process.wait()

    def stop(self) -> None:
        """Let it end in order, for good."""
        self._stopped.set()
        self.process.terminate()
        self._thread.join()


class Life:
    """One start of a run, until it ends or is killed.

    Args:
        scene: Of the run.
        out: Its folder.
        options: For the scene's script.
        services: Beside it.
        log: Gets what it writes; None takes that of the run.
    """

    def __init__(
        self,
        scene: Scene,
        out: Path,
        options: dict[str, Any],
        services: Sequence[Service] = (),
        log: Path | None = None,
    ) -> None:
        self.script, self.services = str(scene.script), services
        with (log or log_of(out)).open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, self.script, str(out), json.dumps(options)],
                stdout=file,
                stderr=file,
                env={**os.environ, **(TOKENS if services else {}), **scene.environment},
            )

    def kill(self, names: Sequence[str], chance: random.Random) -> list[str]:
        """Kill one of each of these victims, where there is one; which of them there were."""
        found = self._find()
        killed: list[str] = []
        for name in names:
            if found.get(name):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                    chance.choice(found[name]).kill()
                    killed.append(name)
        return killed

    def _find(self) -> dict[str, list[psutil.Process]]:
        found: dict[str, list[psutil.Process]] = {}
        for service in self.services:
            with contextlib.suppress(psutil.NoSuchProcess):
                found[service.name] = [psutil.Process(service.process.pid)]
        with contextlib.suppress(psutil.NoSuchProcess):
            algorithm = psutil.Process(self.process.pid)
            found["algorithm"] = [algorithm]
            for each in algorithm.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if name := self._name(each):
                        found.setdefault(name, []).append(each)
        return found

    def _name(self, process: psutil.Process) -> str | None:
        command = process.cmdline()
        if self.script in command:  # forked
            return "supervisor" if process.ppid() == self.process.pid else "runner"
        if "agl_models.processes.guard" in command:
            return None
        if "agl_unsloth.training" in command:
            return "training"
        return "model server" if "serve" in command else None


@contextlib.contextmanager
def services(out: Path) -> Generator[list[Service]]:
    """A block with a store server and a gateway of their own, beside the run in a folder.

    The gateway serves a model that is not trained, which every rollout asks once.
    """
    with (
        EchoLLM() as llm,
        bind("127.0.0.1", 0, listen=False) as of_store,
        bind("127.0.0.1", 0, listen=False) as of_gateway,
    ):
        ports = [sock.getsockname()[1] for sock in (of_store, of_gateway)]
        out.mkdir(parents=True, exist_ok=True)
        log = log_of(out).with_suffix(".services.log")
        store = Service("store", ports[0], ["store", "--path", str(out / "store.db")], log)
        model = ["--model", f"judge={llm.url}", "--store", store.url]
        started = [store, Service("gateway", ports[1], ["gateway", *model], log)]
        try:
            yield started
        finally:
            for service in reversed(started):
                service.stop()


def log_of(out: Path) -> Path:
    """Where the processes of a run write."""
    return out.with_suffix(".log")


def count_starts(out: Path) -> int:
    """How many starts of the run have begun."""
    known = known_run(out / "run")
    return 0 if known is None else known[1]


def wait_until_gone(out: Path) -> None:
    """Wait for what is left of a killed run: its supervisor ends the runners.

    Raises:
        RuntimeError: Something is still there after a minute.
    """
    until = time.monotonic() + GONE_SECONDS
    while left := [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if any(_is_of(out, part) for part in each.info["cmdline"] or ())
    ]:
        if time.monotonic() > until:
            raise RuntimeError(f"{out}: processes {left} of a killed run are still there")
        time.sleep(0.1)


def _is_of(out: Path, argument: str) -> bool:
    # The server of the store, which stays, has that file as an argument.
    return f"{argument}/".startswith(f"{out}/") and not argument.endswith("store.db")
