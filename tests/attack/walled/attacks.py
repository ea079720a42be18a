"""An agent that does what its task says: attacks, and honest work.

Imported by the interpreter behind the wall, too; so nothing here is a test. An attack returns what
it gained, and raises where it is refused.
"""

import contextlib
import ctypes
import errno
import gc
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import agl

MB = 1024 * 1024
SHARED = os.pipe()
"""Left open by an import, as libraries do; all attempts have it."""


@agl.rollout
def agent(task: Any, resources: agl.NamedResources) -> float:
    """Do one attack; its gain is an object span."""
    gained = ATTACKS[task["do"]](task, resources)
    agl.emit_object({"gained": gained})
    return 1.0


def read_file(task: Any, resources: Any) -> str:
    return Path(task["path"]).read_text()


def read_environment(task: Any, resources: Any) -> int:
    return len(Path(f"/proc/{task['pid']}/environ").read_bytes())


def read_memory(task: Any, resources: Any) -> str:
    """The ELF header of the first thing that the runner has mapped."""
    address = int(Path(f"/proc/{task['pid']}/maps").read_text().split("-")[0], 16)
    with open(f"/proc/{task['pid']}/mem", "rb") as memory:
        memory.seek(address)
        return memory.read(4).hex()


def trace(task: Any, resources: Any) -> str:
    """Attach to a process as a debugger does."""
    attach, detach = 16, 17
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(attach, task["pid"], None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(task["pid"], 0)
    libc.ptrace(detach, task["pid"], None, None)
    return "attached"


def find_secret(task: Any, resources: Any) -> str:
    """Look for a variable in all that this process was started with."""
    name = task["name"]
    if name in os.environ:
        return os.environ[name]
    found = [line for line in Path("/proc/self/environ").read_bytes().split(b"\0") if line]
    return next(line.decode() for line in found if line.startswith(name.encode()))


def find_store(task: Any, resources: Any) -> str:
    """Look for the store among the objects of this process."""
    wanted = ("InMemoryLightningStore", "SqliteLightningStore", "LightningStoreClient", "Trainer")
    return next(type(o).__name__ for o in gc.get_objects() if type(o).__name__ in wanted)


def find_descriptor(task: Any, resources: Any) -> str:
    """Look for an open file of the runner's."""
    for name in os.listdir("/proc/self/fd"):
        if os.path.realpath(f"/proc/self/fd/{name}") == task["path"]:
            return os.pread(int(name), 100, 0).decode()
    raise FileNotFoundError(task["path"])


def leave_note(task: Any, resources: Any) -> list[str]:
    """Leave a file wherever one can be written."""
    left: list[str] = []
    for folder in (os.getcwd(), os.environ.get("HOME", "/"), *FOLDERS):
        try:
            Path(folder, task["name"]).write_text("from a neighbour")
            left.append(folder)
        except OSError:
            continue
    return left


def find_note(task: Any, resources: Any) -> str:
    places = (os.getcwd(), os.environ.get("HOME", "/"), *FOLDERS)
    return next(Path(p, task["name"]).read_text() for p in places if Path(p, task["name"]).exists())


FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev", "/run", "/")


def write_file(task: Any, resources: Any) -> int:
    return Path(task["path"]).write_text("changed")


def connect(task: Any, resources: Any) -> str:
    with socket.create_connection((task.get("host", "127.0.0.1"), task["port"]), timeout=3):
        return "connected"


def connect_unix(task: Any, resources: Any) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(task["address"])
        return "connected"


def send_signal(task: Any, resources: Any) -> str:
    os.kill(task["pid"], task["signal"])
    return "sent"


def see_process(task: Any, resources: Any) -> str:
    for name in os.listdir("/proc"):
        if name.isdigit() and task["mark"].encode() in Path("/proc", name, "cmdline").read_bytes():
            return name
    raise ProcessLookupError(task["mark"])


def fork_often(task: Any, resources: Any) -> int:
    """Have a hundred children at once; they wait until this process ends or lets them go."""
    reading, writing = os.pipe()
    children: list[int] = []
    try:
        for _ in range(100):
            if (pid := os.fork()) == 0:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0)
            children.append(pid)
        return len(children)
    finally:
        os.close(writing)
        for pid in children:
            os.waitpid(pid, 0)


def allocate(task: Any, resources: Any) -> int:
    return len(bytearray(task["mb"] * MB))


def allocate_shared(task: Any, resources: Any) -> int:
    import mmap

    with mmap.mmap(-1, task["mb"] * MB) as shared:
        return len(shared)


def write_much(task: Any, resources: Any) -> int:
    with open("much", "wb") as file:
        for _ in range(task["mb"]):
            file.write(bytes(MB))
    size = os.path.getsize("much")
    os.remove("much")
    return size


def write_many(task: Any, resources: Any) -> int:
    """Fill the folder with files that are each small enough."""
    names = [f"many-{number}" for number in range(task["mb"])]
    try:
        for name in names:
            Path(name).write_bytes(bytes(MB))
        return len(names)
    finally:
        for name in names:
            Path(name).unlink(missing_ok=True)


def write_beside(task: Any, resources: Any) -> int:
    """Fill the folders that one may write to, each not beyond its limit."""
    names = [
        Path(folder, f"part-{os.getpid()}-{n}") for n in (1, 2) for folder in (".", "/dev/shm")
    ]
    try:
        return sum(name.write_bytes(bytes(task["mb"] * MB)) for name in names)
    finally:
        for name in names:
            name.unlink(missing_ok=True)


def make_empty_files(task: Any, resources: Any) -> int:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for number in range(task["count"]):
            Path(folder, str(number)).touch()
        return task["count"]


def keep_in_segment(task: Any, resources: Any) -> str:
    """Memory of System V's, which stays when it is let go of."""
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, task["mb"] * MB, 0o1600)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    libc.shmctl(segment, 0, None)  # IPC_RMID
    return "kept"


def keep_in_memfd(task: Any, resources: Any) -> int:
    with os.fdopen(os.memfd_create("kept"), "wb") as file:
        return file.write(bytes(MB))


def open_many(task: Any, resources: Any) -> int:
    files: list[int] = []
    try:
        for _ in range(task["count"]):
            files.append(os.open(os.devnull, os.O_RDONLY))
        return len(files)
    finally:
        for file in files:
            os.close(file)


def spin(task: Any, resources: Any) -> str:
    began = time.process_time()
    while time.process_time() - began < task["seconds"]:
        pass
    return "done"


def become_root(task: Any, resources: Any) -> int:
    os.setuid(0)
    return os.getuid()


def mount(task: Any, resources: Any) -> str:
    """Mount something over a folder, and take it away again."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", task["path"].encode(), b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    libc.umount(task["path"].encode())
    return "mounted"


def open_vsock(task: Any, resources: Any) -> str:
    """A kind of socket that belongs to no namespace."""
    with socket.socket(socket.AF_VSOCK):
        return "opened"


def make_user_namespace(task: Any, resources: Any) -> str:
    """Become root in a namespace of one's own; in a process with one thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = 0
    for _ in range(20):
        if (pid := os.fork()) == 0:
            failed = libc.unshare(0x10000000)
            os._exit(ctypes.get_errno() if failed else 0)
        number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if number == 0:
            return "made"
        if number != errno.EINVAL:  # which comes now and then, with one thread, too
            break
    raise OSError(number, "unshare")


def list_descriptors(task: Any, resources: Any) -> list[str]:
    """What is open in this process, by kind."""
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}") != os.devnull:
                found.append(os.readlink(f"/proc/self/fd/{name}").split(":")[0])
    return sorted(set(found))


def stay(task: Any, resources: Any) -> None:
    """Leave a child with a session of its own, and never return."""
    sleeping = ["/bin/sh", "-c", "sleep 300; true", task["mark"]]
    os.posix_spawn(sleeping[0], sleeping, dict(os.environ), setsid=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    time.sleep(task["seconds"])


def ask_model(task: Any, resources: Any) -> str:
    """Honest work."""
    llm = resources["llm"]
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "the capital of Norway"}]}'
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read().decode()


def work_honestly(task: Any, resources: Any) -> str:
    """What agents do: files of their own, threads, programs, modules that nobody has imported."""
    import concurrent.futures
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(f"{folder}/own.db")
        database.execute("CREATE TABLE t AS SELECT 42 AS n")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(str, range(10)))
        database.close()
    Path("notes.txt").write_text("mine")
    with open("/dev/urandom", "rb") as noise, open("/dev/null", "wb") as nothing:
        nothing.write(noise.read(10))
    Path("/dev/stderr").write_text("as shells do\n")
    if task.get("terminal"):
        for descriptor in os.openpty():
            os.close(descriptor)
    said = subprocess.run(["cat", "notes.txt"], capture_output=True, text=True, check=True)
    return said.stdout


ATTACKS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and name != "agent"
}
