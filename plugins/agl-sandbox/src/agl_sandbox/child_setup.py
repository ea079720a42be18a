"""What happens behind a wall.

``process`` runs ``python -I -c ... child_setup.main(fd)``: a clean process imports the agent; then,
for each attempt, it forks the first process of fresh namespaces, which mounts what the agent may
see, gives up its rights, and runs the agent. In a container of ``docker`` ``main_in_container``
runs one attempt, which is spoken of over the standard streams.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from agl.agent.base import LitAgent
from agl.emitter import emit_reward
from agl.tracer.base import Tracer
from agl.types import Attempt, AttemptedRollout
from agl_sandbox import linux, probe, shipping, syscalls
from agl_sandbox.forked_worker import Ask, answer_call, encode, failure_of, receive, serve
from agl_sandbox.forwarding import Forwarder
from agl_sandbox.linux import Mount, Namespace, die_with_parent
from agl_sandbox.sandbox import run_attempt

MB = 1024 * 1024
FILES_PER_MB = 256
"""Most files for each MB of ``disk_mb``: an empty file counts as much as a page of memory."""


def main(descriptor: int) -> NoReturn:
    """Be the clean process; does not return.

    Args:
        descriptor: Number of the socket to the runner, which first sends the setup of
            ``ProcessSandbox``, and gets ``ready`` or ``error``.
    """
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        setup = receive(control.recv)
        agent, tracer = shipping.unpack(setup["shipment"])
        _warm_up(tracer)
    except BaseException as error:
        control.sendall(encode({"error": failure_of(error)}))
        os._exit(1)
    control.sendall(encode({"ready": True}))
    enclosure: Enclosure | None = None
    if setup["namespaces"]:
        network = Namespace(0) if setup["network"] else Namespace.NET
        enclosure = Enclosure(Namespace.MNT | Namespace.IPC | Namespace.PID | network)

    def work(payload: Any, ask: Ask) -> Any:
        if enclosure is not None:
            enclosure.forget()
            disk_mb = setup["limits"]["disk_mb"]
            _mount(setup["own_folders"], payload["hosts"], disk_mb, payload["uid"])
        _limit(setup["limits"])
        _change_user(payload["uid"])
        os.umask(0o077)
        return _probe_or_run(payload, ask, lambda: (agent, tracer))

    serve(control, work, enclosure and enclosure.make)


def _probe_or_run(
    payload: Mapping[str, Any], ask: Ask, load: Callable[[], tuple[LitAgent[Any], Tracer]]
) -> Any:
    """Try what a probe tries, or run the agent, in the folder of the attempt."""
    os.environ.update(HOME=payload["folder"], TMPDIR=payload["folder"])
    os.chdir(payload["folder"])
    if "probe" in payload:
        return probe.try_all(payload["probe"])
    return run_attempt(*load(), payload["attempt"], ask)


def _listen(addresses: Sequence[Sequence[Any]]) -> list[socket.socket]:
    """Listen on the host and the port that each of these begins with."""
    sockets: list[socket.socket] = []
    for host, port, *_ in addresses:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets.append(socket.create_server((host, port), family=family))
    return sockets


class Enclosure:
    """Puts the process that is forked next into fresh namespaces, as the first one there.

    When that process ends, the kernel ends all others in its namespace.
    """

    def __init__(self, fresh: Namespace) -> None:
        self._fresh = fresh
        self._own = [(k, os.open(f"/proc/self/ns/{k.name}".lower(), os.O_RDONLY)) for k in fresh]

    def forget(self) -> None:
        """Be unable to go back."""
        for _, descriptor in self._own:
            os.close(descriptor)

    @contextlib.contextmanager
    def make(self, details: Any) -> Generator[list[socket.socket]]:
        """Be in fresh namespaces within the block, and go back.

        Args:
            details: ``listen``: host and port of each socket; ``addresses``: further ones of the
                loopback device.
        """
        linux.unshare(self._fresh)
        if Namespace.NET in self._fresh:
            linux.bring_up_loopback(details["addresses"])
        yield _listen(details["listen"])
        for kind, descriptor in self._own:
            linux.enter(kind, descriptor)


def _warm_up(tracer: Tracer) -> None:
    """Load here what each child would load at its first use, with an attempt that does nothing."""
    attempt = Attempt(
        rollout_id="", attempt_id="", sequence_id=1, start_time=0.0, status="preparing"
    )
    rollout = AttemptedRollout(
        rollout_id="", input=None, start_time=0.0, status="preparing", attempt=attempt
    )
    llm = {"resource_type": "llm", "endpoint": "http://localhost:1/v1", "model": ""}
    packed = {"rollout": rollout.model_dump(mode="json"), "resources": {"llm": llm}}
    run_attempt(_Nothing(), tracer, packed, lambda message: {"numbers": {}})


class _Nothing(LitAgent[Any]):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        emit_reward(0.0)
        return 0.0


def _mount(
    own_folders: Sequence[str], hosts: Mapping[str, str], disk_mb: int, uid: int | None
) -> None:
    """Mount what the agent may see and write; called in the first process of fresh namespaces."""
    linux.mount("", "/", flags=Mount.REC | Mount.SLAVE)
    quiet = Mount.NOSUID | Mount.NODEV
    linux.mount("proc", "/proc", "proc", quiet | Mount.NOEXEC)
    # One for all folders, so that they share its limits; in the end the first folder hides it.
    own = own_folders[0]
    options = f"size={disk_mb}m,nr_inodes={disk_mb * FILES_PER_MB},mode=0755"
    linux.mount("tmpfs", own, "tmpfs", quiet, options)
    if hosts:
        below = f"{own}/hosts"
        with open(below, "w") as file:
            file.write("127.0.0.1 localhost\n::1 localhost\n")
            file.writelines(f"{address} {name}\n" for name, address in hosts.items())
        os.chmod(below, 0o444)
        linux.mount(below, "/etc/hosts", flags=Mount.BIND)
    with contextlib.suppress(OSError):  # which only root may
        terminals = "newinstance,ptmxmode=0666,mode=0620"
        linux.mount("devpts", "/dev/pts", "devpts", Mount.NOSUID | Mount.NOEXEC, terminals)
    for number, path in reversed([*enumerate(own_folders)]):
        os.mkdir(part := f"{own}/{number}", 0o700)
        if uid is not None:
            os.chown(part, uid, uid)
        linux.mount(part, path, flags=Mount.BIND)
    if "/tmp" not in own_folders:  # the imports could write there
        linux.mount("", "/tmp", flags=Mount.REMOUNT | Mount.BIND | Mount.RDONLY | quiet)


def _limit(limits: Mapping[str, Any]) -> None:
    with open("/proc/self/statm") as file:
        has_bytes = int(file.read().split()[0]) * resource.getpagesize()
    memory_mb, file_mb = limits["memory_mb"], limits["file_mb"]
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory_mb and memory_mb * MB + has_bytes),
        (resource.RLIMIT_FSIZE, file_mb and file_mb * MB),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_MEMLOCK, 64 * 1024),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        if value is not None:
            hard = resource.getrlimit(kind)[1]
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (least, least))


def _change_user(uid: int | None) -> None:
    if uid is not None:
        os.fchown(1, uid, uid)  # so that it can be opened as /dev/stderr
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    linux.drop_capabilities()
    linux.forbid_new_privileges()
    syscalls.forbid()
    linux.let_itself_be_read()
    die_with_parent()  # which a change of user takes back


# --- in a container


def main_in_container() -> NoReturn:
    """Take one call from the standard input, answer on the standard output, and end."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the agent prints is no part of the answer

    def send(frame: bytes) -> None:
        outgoing.write(frame)
        outgoing.flush()

    answer_call(_work_in_container, lambda: receive(incoming.read), send)


def _work_in_container(payload: Mapping[str, Any], ask: Ask) -> Any:
    if payload["forward"]:
        _forward(payload["forward"])
    return _probe_or_run(payload, ask, lambda: shipping.unpack(payload["shipment"]))


def _forward(routes: list[list[Any]]) -> None:
    """Lead ports of this container to Unix sockets of the runner, in a process of its own.

    Args:
        routes: Host, port and path of each.
    """
    sockets = _listen(routes)
    if os.fork() != 0:
        for sock in sockets:
            sock.close()
        return
    die_with_parent()
    connects = [partial(asyncio.open_unix_connection, path) for *_, path in routes]

    async def serve() -> None:
        await Forwarder(connects).start(sockets)
        await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    finally:
        os._exit(1)
