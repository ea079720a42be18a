"""``isolation: process``: each attempt in a process of its own, behind a wall of the kernel's."""

import asyncio
import json
import logging
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from agl.agent.base import LitAgent
from agl.errors import ConfigError
from agl.runner.sandbox import Findings
from agl.tracer.base import Tracer
from agl.utils.checks import check_numbers
from agl_sandbox import filesystem_view, probe, shipping, syscalls
from agl_sandbox.fork_server import CallFailedError, ForkServerClient, ForkServerGoneError
from agl_sandbox.forked_worker import MAX_SOCKETS, OnMessage, encode, receive
from agl_sandbox.forwarding import address_of, routes_to, targets_of
from agl_sandbox.output import Output
from agl_sandbox.sandbox import JsonSandbox, name_of

logger = logging.getLogger("agl.sandbox")

START_SECONDS = 120.0
"""Longest that the clean process may take to import the agent."""
PROBE_SECONDS = 30.0
UIDS = range(1_900_000_000, 2_100_000_000)
"""User ids that nobody else uses; each attempt gets one of them if the runner is root."""
OWN_VARIABLES = ("HOME", "TMPDIR", "PWD", "LC_CTYPE")
"""Variables that we, bubblewrap and Python set for each attempt."""
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from agl_sandbox.child_setup import main; main(int(sys.argv[2]))"
)
WITH_USER = (
    *(probe.READ_FILE, probe.READ_ENVIRONMENT, probe.READ_MEMORY, probe.SIGNAL),
    probe.USE_DESCRIPTOR,
)
"""What is closed to another user."""
WITH_NETWORK = (probe.CONNECT, probe.ABSTRACT_SOCKET)
"""What is open to those who may use the network."""


class _Clean(NamedTuple):
    """An interpreter that has imported the agent, and forks for attempts."""

    client: ForkServerClient
    process: subprocess.Popen[bytes]
    output: Output

    def end(self) -> None:
        """End it and all its calls, and wait for it."""
        self.client.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ProcessSandbox(JsonSandbox):
    """Runs each attempt in a process that sees no other, has no network, and ends whole.

    An attempt gets a fresh fork of a clean interpreter that has imported the agent, an empty folder
    as its home and working folder, which is deleted, and an environment with nothing of the
    runner's. Where bubblewrap is installed it also has namespaces of its own: it sees only its own
    processes, reads only the system and the folders that Python imports from, writes only to its
    folder, and reaches only its models' addresses. Where the runner is root, it has a user of its
    own. What this promises is tried before agents run, and the run is refused where it is not so.

    Args:
        memory_mb: Most address space of each of its processes (RLIMIT_AS), beyond what the agent
            has after its import; None for no limit, as Java needs, which reserves more than it
            uses.
        processes: Most processes and threads; with namespaces, or a user of its own.
        files: Most open files.
        file_mb: Largest file, in MB; None for no limit.
        disk_mb: Most that its folder, ``/tmp`` and ``/dev/shm`` hold together, in at most 256 files
            for each MB; with namespaces.
        cpu_seconds: Most CPU time of each of its processes; None for no limit.
        env: Names of environment variables that agents get, beside PATH and LANG.
        read: Further folders and files that agents may read; with namespaces.
        hide: Folders and files that agents may not read, in those that they may; refused without
            namespaces. What is open to its owner alone, or begins with a dot, is hidden anyhow,
            but for modules and what ``read`` names.
        connect: Further addresses, as ``host:port`` or URL, that agents may reach; without
            namespaces they reach all.
        network: Whether agents may use the network as they like.
        strict: Refuse to run where bubblewrap is missing or cannot work, or where anything at all
            is open that was tried.

    Raises:
        ConfigError: This is no Linux, an option makes no sense or names no file, ``hide`` or
            ``strict`` asks for more than there is, or the module of the agent starts a run when it
            is imported.
    """

    def __init__(
        self,
        memory_mb: int | None = 2048,
        processes: int = 64,
        files: int = 256,
        file_mb: int | None = 256,
        disk_mb: int = 512,
        cpu_seconds: int | None = None,
        env: Sequence[str] = (),
        read: Sequence[str] = (),
        hide: Sequence[str] = (),
        connect: Sequence[str] = (),
        network: bool = False,
        strict: bool = False,
    ) -> None:
        if shipping.is_inside:
            raise ConfigError(
                "the module of the agent starts a run when it is imported, and a sandbox imports "
                'it; put what runs under `if __name__ == "__main__":`'
            )
        if sys.platform != "linux":
            raise ConfigError("isolation 'process' needs Linux; here, use 'docker' or 'none'")
        always = {"processes": processes, "files": files, "disk_mb": disk_mb}
        optional = {"memory_mb": memory_mb, "file_mb": file_mb, "cpu_seconds": cpu_seconds}
        check: Any = partial(check_numbers, "isolation 'process'", whole=True, least=1)
        check(**always)
        check(optional=True, **optional)
        self._limits: dict[str, int | None] = {**always, **optional}
        self._env = [*env]
        self._read = _existing("read", read)
        self._hide = _existing("hide", hide)
        self._shown = filesystem_view.shown_paths(self._read)
        self._connect = [address_of(address) for address in connect]
        self._network = network
        self._strict = strict
        self._clean: _Clean | None = None
        self._bwrap, why_not = self._find_bwrap()
        if why_not and strict:
            raise ConfigError(f"isolation 'process' with strict: {why_not}")
        if why_not and hide:
            raise ConfigError(
                f"isolation 'process' cannot hide {[*hide]}: {why_not}. Install it, or move what "
                "agents may not read to where their user cannot"
            )
        if why_not:
            logger.warning(
                "isolation 'process' has no namespaces: %s. Agents see this machine's processes, "
                "files and network as any user does; the options read, connect and disk_mb have "
                "no effect",
                why_not,
            )
        if not syscalls.is_known():
            logger.warning(
                "isolation 'process' has no filter for system calls on %s, only on x86_64 and "
                "aarch64",
                platform.machine(),
            )
        if network and not why_not:
            logger.warning("isolation 'process' with network: agents reach what this machine does")
        self._has_user = os.getuid() == 0
        if self._has_user and not self._bwrap:
            _check_others_may_read()
        if not self._has_user and not self._bwrap:  # all that its user runs would count
            self._limits["processes"] = None

    # --- the contract

    async def start(self, agent: LitAgent[Any], tracer: Tracer) -> None:
        self._shipment = shipping.pack(agent, tracer)
        self._launching = asyncio.Lock()
        clean = await self._running()
        with probe.open_targets([*self._environment(), *OWN_VARIABLES]) as targets:
            try:
                findings: Findings = await self._call(
                    clean.client, {"probe": targets}, [], None, PROBE_SECONDS
                )
            except (CallFailedError, ForkServerGoneError, TimeoutError) as error:
                self.close()
                raise ConfigError(f"isolation 'process' does not work here: {error}") from error
        self._judge(findings)
        self.findings = findings

    async def run(self, attempt: dict[str, Any], on_message: OnMessage) -> Any:
        clean = await self._running()
        try:
            targets = [*self._connect, *targets_of(attempt["resources"])]
            return await self._call(
                clean.client, {"attempt": attempt}, targets, on_message, None, name_of(attempt)
            )
        except ForkServerGoneError as error:
            raise CallFailedError(f"its sandbox is gone: {error}") from error

    def close(self) -> None:
        clean, self._clean = self._clean, None
        if clean is not None:
            clean.end()
            clean.output.close()

    # --- one call

    async def _call(
        self,
        client: ForkServerClient,
        payload: dict[str, Any],
        targets: Sequence[tuple[str, int]],
        on_message: OnMessage | None,
        timeout: float | None,
        name: str = "probe",
    ) -> Any:
        has_loopback = self._bwrap and not self._network
        routes = routes_to(targets if has_loopback else ())
        if len(routes.listen) > MAX_SOCKETS:
            raise ConfigError(
                f"isolation 'process': this attempt's models and the option connect have "
                f"{len(routes.listen)} addresses, and a wall has room for {MAX_SOCKETS}. Put the "
                "models behind one gateway, or set network, which opens all addresses"
            )
        uid = secrets.choice(UIDS) if self._has_user else None
        forwarder = routes.forwarder()
        folder = filesystem_view.HOME if self._bwrap else tempfile.mkdtemp(prefix="agl-attempt-")
        try:
            if uid is not None and not self._bwrap:
                os.chown(folder, uid, uid)
            return await client.call(
                {**payload, "uid": uid, "folder": folder, "hosts": routes.hosts},
                timeout=timeout,
                on_message=on_message,
                details={"listen": [*routes.listen], "addresses": routes.addresses},
                on_sockets=forwarder.start if self._bwrap else None,
                name=name,
            )
        finally:
            forwarder.close()
            if not self._bwrap:  # in a thread: an agent may have made many files
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    # --- the start

    async def _running(self) -> "_Clean":
        """The clean interpreter; started where there is none, by one attempt for all."""
        async with self._launching:
            if self._clean is not None and self._clean.client.is_gone:
                gone, self._clean = self._clean, None
                await asyncio.to_thread(gone.end)
                gone.output.close()
            if self._clean is None:
                self._clean = await self._launch()
            return self._clean

    async def _launch(self) -> "_Clean":
        """Start a clean interpreter, and wait until it has the agent."""
        clean, control = self._spawn()
        setup = {
            "shipment": self._shipment,
            "namespaces": self._bwrap is not None,
            "network": self._network,
            "own_folders": filesystem_view.own_folders(self._shown),
            "limits": self._limits,
        }
        answer: dict[str, Any] = {}
        try:
            control.settimeout(START_SECONDS)
            control.sendall(encode(setup))
            answer = await asyncio.to_thread(receive, control.recv)
            control.settimeout(None)
        except (EOFError, OSError) as error:
            answer = {"error": {"message": f"{error}. What it wrote stands above"}}
        finally:
            if "ready" not in answer:  # also when its attempt is cancelled
                await asyncio.to_thread(clean.end)
                clean.output.close()
        if failure := answer.get("error"):
            raise ConfigError(
                "isolation 'process': the agent cannot be imported behind the wall: "
                f"{failure.get('type', '')}: {failure['message']}\n{failure.get('traceback', '')}"
            )
        return clean

    def _spawn(self) -> tuple["_Clean", socket.socket]:
        wrapper: list[str] = []
        if self._bwrap is not None:
            hidden = [*self._hide, *filesystem_view.private_paths(self._shown, self._read)]
            hidden += filesystem_view.visible_files(probe.written_files(), self._shown, hidden)
            wrapper = [*self._bwrap, *filesystem_view.hiding_options(hidden), "--"]
        ours, theirs = socket.socketpair()
        output = Output("sandbox")
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        with theirs, output.writing as writing:
            boot = [sys.executable, "-I", "-u", "-c", BOOT, paths, str(theirs.fileno())]
            process = subprocess.Popen(
                [*wrapper, *boot],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=self._environment(),
                pass_fds=[theirs.fileno()],
            )
        return _Clean(ForkServerClient(ours), process, output), ours

    def _environment(self) -> dict[str, str]:
        names = ("PATH", "LANG", *self._env)
        return {name: os.environ[name] for name in names if name in os.environ}

    def _judge(self, findings: Findings) -> None:
        """Refuse what is open and should not be; warn of what is open."""
        is_open = {what: how for what, how in findings.items() if how != probe.CLOSED}
        promised = {*findings} - {probe.WRITE_LEFT_OPEN}
        if not self._bwrap:
            promised = {probe.OWN_ENVIRONMENT, *(WITH_USER if self._has_user else ())}
        if self._network:
            promised -= {*WITH_NETWORK}
        broken = promised & set(is_open)
        if broken or (self._strict and is_open):
            self.close()
            wrong = "; ".join(f"{what} ({is_open[what]})" for what in sorted(is_open))
            raise ConfigError(
                "isolation 'process': the wall does not hold: from behind it, an agent can "
                f"{wrong}. Nothing was run"
            )
        if is_open:
            wrong = "; ".join(sorted(is_open))
            logger.warning("isolation 'process': from behind the wall, an agent can %s", wrong)

    # --- bubblewrap

    def _find_bwrap(self) -> tuple[list[str] | None, str]:
        """The command that namespaces begin with, or why there is none."""
        program = shutil.which("bwrap")
        if program is None:
            return None, "bubblewrap is not installed (the package 'bubblewrap' brings bwrap)"
        command = [program, *filesystem_view.base_options(self._shown, network=self._network)]
        tried = subprocess.run(
            [*command, "--", sys.executable, "-I", "-S", "-c", ""],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if tried.returncode != 0:
            return None, f"bubblewrap does not work here: {tried.stderr.strip()[:300]}"
        return command, ""


def _existing(option: str, paths: Sequence[str]) -> list[Path]:
    """The paths from the root."""
    absolute = [Path(path).expanduser().absolute() for path in paths]
    for path in absolute:
        if not path.exists():
            raise ConfigError(
                f"isolation 'process': {option} names {str(path)!r}, which does not exist"
            )
    return absolute


def _check_others_may_read() -> None:
    """Refuse where another user cannot import what this one can."""
    for entry in sys.path:
        path = Path(entry).absolute()
        for folder in (path, *path.parents):
            if folder.exists() and not folder.stat().st_mode & 0o001 and folder.is_dir():
                raise ConfigError(
                    f"isolation 'process' gives agents a user of their own, who cannot import from "
                    f"{path}, as {folder} is its owner's alone. Install bubblewrap, move the "
                    "project, or do not run as root"
                )
