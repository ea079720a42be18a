"""``isolation: docker``: each attempt in a container of its own."""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

from agl.agent.base import LitAgent
from agl.errors import ConfigError
from agl.runner.report import SandboxedAgentError
from agl.runner.sandbox import Findings
from agl.tracer.base import Tracer
from agl.types import Failure
from agl.utils.checks import check_numbers
from agl_processes.tree import describe_exit
from agl_sandbox import probe, shipping
from agl_sandbox.fork_server import CallFailedError, ClosedError, converse
from agl_sandbox.forked_worker import OnMessage, encode
from agl_sandbox.forwarding import Routes, address_of, routes_to, targets_of
from agl_sandbox.output import Output
from agl_sandbox.sandbox import JsonSandbox, name_of

logger = logging.getLogger("agl.sandbox")

FOLDER = "/tmp"
"""The folder of an attempt in its container."""
SOCKETS = "/run/agl"
"""Where a container finds the sockets that lead to its models."""
REMOVAL_SECONDS = 30.0
"""How long the program may take to remove a container that has ended."""
NOBODY = "65534:65534"
BOOT = "from agl_sandbox.child_setup import main_in_container; main_in_container()"
PUBLIC_VARIABLES = (
    *("PATH", "LANG", "HOME", "HOSTNAME", "TMPDIR", "TERM", "LC_CTYPE"),
    *("GPG_KEY", "PYTHON_VERSION", "PYTHON_SHA256"),  # of Python's images
)
"""Variables whose values may be the runner's, too: they tell nothing about it."""


class DockerSandbox(JsonSandbox):
    """Runs each attempt in a container without network, but to its models.

    The image needs Python with agl-core, agl-sandbox and the agent's module; an attempt costs what
    ``docker run`` and these imports do. The agent travels by the name that it has in its
    module: what was set on the object after the import is lost.

    Args:
        image: The image.
        docker: The program; ``podman`` takes the same commands.
        python: Python in the image.
        memory_mb: Most memory of a container.
        processes: Most processes and threads.
        disk_mb: Most that its folder ``/tmp`` holds; all else is read-only.
        cpus: How many processors it may use; None for all.
        env: Names of environment variables that agents get.
        connect: Further addresses, as ``host:port`` or URL, that agents may reach.
        network: A network of docker's that containers are put in; without it they reach their
            models' addresses and ``connect`` only.

    Raises:
        ConfigError: There is no such program, or an option makes no sense.
    """

    def __init__(
        self,
        image: str,
        docker: str = "docker",
        python: str = "python",
        memory_mb: int = 2048,
        processes: int = 256,
        disk_mb: int = 512,
        cpus: float | None = None,
        env: Sequence[str] = (),
        connect: Sequence[str] = (),
        network: str | None = None,
    ) -> None:
        check = partial(check_numbers, "isolation 'docker'")
        check(whole=True, least=1, memory_mb=memory_mb, processes=processes, disk_mb=disk_mb)
        check(optional=True, above=0, cpus=cpus)
        if shutil.which(docker) is None:
            raise ConfigError(
                f"isolation 'docker': there is no program {docker!r} here. Install it, or use "
                "isolation 'process', which needs none"
            )
        self._image = image
        self._docker = docker
        self._python = python
        self._limits = ["--memory", f"{memory_mb}m", "--pids-limit", str(processes)]
        self._limits += ["--tmpfs", f"{FOLDER}:rw,nosuid,nodev,size={disk_mb}m"]
        self._limits += ["--cpus", f"{cpus:g}"] if cpus is not None else []
        self._env = [*env]
        self._connect = [address_of(address) for address in connect]
        self._network = network

    async def start(self, agent: LitAgent[Any], tracer: Tracer) -> None:
        await asyncio.to_thread(self._check_daemon)
        self._shipment = shipping.pack(agent, tracer, by_name=True)
        with probe.open_targets([*PUBLIC_VARIABLES, *self._env], has_own=True) as targets:
            try:
                findings: Findings = await self._call({"probe": targets}, [], None)
            except CallFailedError as error:
                raise ConfigError(
                    f"isolation 'docker': a container of image {self._image!r} does not work: "
                    f"{error}. It needs {self._python!r} with agl-core and agl-sandbox; what it "
                    "wrote stands above"
                ) from error
        is_open = {what: how for what, how in findings.items() if how != probe.CLOSED}
        # Containers in a network may reach what that leads to.
        if set(is_open) - ({probe.CONNECT} if self._network else set()):
            wrong = "; ".join(f"{what} ({how})" for what, how in is_open.items())
            raise ConfigError(
                f"isolation 'docker': the wall does not hold: from behind it, an agent can {wrong}"
            )
        self.findings = findings

    async def run(self, attempt: dict[str, Any], on_message: OnMessage) -> Any:
        targets = [*self._connect, *targets_of(attempt["resources"])]
        payload = {"attempt": attempt, "shipment": self._shipment}
        return await self._call(payload, targets, on_message, name_of(attempt))

    def close(self) -> None:
        """See ``Sandbox.close``; no container outlives its attempt."""

    def command(self, name: str, routes: Routes, sockets: str) -> list[str]:
        """What runs one attempt.

        Args:
            sockets: The folder with the sockets that lead there.
        """
        options = ["run", "--rm", "--interactive", "--init", "--name", name, *self._limits]
        options += ["--read-only", "--user", NOBODY, "--cap-drop", "ALL"]
        options += ["--security-opt", "no-new-privileges", "--network", self._network or "none"]
        options += ["--volume", f"{sockets}:{SOCKETS}"] if routes.listen else []
        for variable in self._env:
            options += ["--env", variable]
        for host, address in routes.hosts.items():
            options += ["--add-host", f"{host}:{address}"]
        return [self._docker, *options, self._image, self._python, "-I", "-c", BOOT]

    async def _call(
        self,
        payload: Mapping[str, Any],
        targets: Sequence[tuple[str, int]],
        on_message: OnMessage | None,
        who: str = "probe",
    ) -> Any:
        routes = routes_to(() if self._network else targets)
        if routes.addresses:
            raise ConfigError(
                f"isolation 'docker': a container cannot be led to {routes.addresses[0]}; give the "
                "host's name, or a network of docker's"
            )
        name = f"agl-{secrets.token_hex(8)}"
        with (
            tempfile.TemporaryDirectory(
                prefix="agl-sockets-", ignore_cleanup_errors=True
            ) as folder,
            contextlib.closing(routes.forwarder()) as forwarder,
        ):
            os.chmod(folder, 0o755)
            await forwarder.start(_sockets(folder, len(routes.listen)))
            forward = [(*each, f"{SOCKETS}/{number}") for number, each in enumerate(routes.listen)]
            frame = encode({"payload": {**payload, "forward": forward, "folder": FOLDER}})
            command = self.command(name, routes, folder)
            with contextlib.closing(Output(who)) as output:
                return await self._converse(name, command, frame, on_message, output.writing)

    async def _converse(
        self,
        name: str,
        command: Sequence[str],
        frame: bytes,
        on_message: OnMessage | None,
        output: BinaryIO,
    ) -> Any:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": output}
        with output:
            process = await asyncio.create_subprocess_exec(
                *command, **pipes, start_new_session=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        has_ended = False
        try:
            result = await converse(process.stdout, process.stdin, frame, on_message)
            has_ended = True
            return result
        except ClosedError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5)
                has_ended = True
            how = describe_exit(process.returncode or 0)
            if process.returncode == 125:  # docker's own: nothing of the container has run
                failure = Failure(boundary="resources", type="docker", message=how)
                raise SandboxedAgentError(failure) from None
            raise CallFailedError(f"its container gave no answer: {how}") from None
        finally:
            if not has_ended:
                await self._command("kill", name)
            try:  # podman removes the container in this process; a kill would leave half of it
                await asyncio.wait_for(process.wait(), REMOVAL_SECONDS)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await self._command("rm", "--force", name)
            with contextlib.suppress(TimeoutError):  # a process that it left may hold its pipe
                await asyncio.wait_for(process.communicate(), 5)

    async def _command(self, *words: str) -> None:
        """Run a command on a container."""
        nothing = subprocess.DEVNULL
        running = await asyncio.create_subprocess_exec(
            self._docker, *words, stdout=nothing, stderr=nothing
        )
        await running.wait()

    def _check_daemon(self) -> None:
        """Refuse at once where containers cannot be run."""
        command = [self._docker, "version", "--format", "{{.Server.Version}}"]
        version = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if version.returncode != 0:
            raise ConfigError(
                f"isolation 'docker': {self._docker!r} cannot run containers: "
                f"{version.stderr.strip()[:300] or 'it says nothing'}. Start its daemon, join the "
                "group that may use it, or use isolation 'process', which needs none"
            )


def _sockets(folder: str, count: int) -> list[socket.socket]:
    """Listening sockets in a folder, each named by its number."""
    sockets = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for number, sock in enumerate(sockets):
        sock.bind(f"{folder}/{number}")
        os.chmod(f"{folder}/{number}", 0o666)
        sock.listen()
    return sockets
