"""The core where the functions of POSIX are not: on Windows, or nearly."""

from tests.interpreter import python

SCRIPT = """
import asyncio, importlib, logging, os, pkgutil, signal, sys, types
import filelock  # as its Windows half asks for Windows itself
asyncio.run(asyncio.sleep(0))  # as asyncio chooses its loop by the platform, at its first use
import agl

names = [found.name for found in pkgutil.walk_packages(agl.__path__, "agl.")]
for name in names:  # with what others of them need to be imported
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "agl"]:
    del sys.modules[name]
for module, gone in (
    (os, "fork forkpty register_at_fork getuid getgid setsid getpgid setpgid getpgrp killpg wait3 "
         "wait4 waitid pidfd_open pread pwrite mkfifo sysconf sched_getaffinity statvfs uname"),
    (signal, "SIGKILL SIGHUP SIGQUIT SIGSTOP SIGTSTP SIGCONT SIGCHLD SIGUSR1 SIGUSR2 SIGALRM "
             "SIGPIPE pthread_sigmask setitimer sigwait"),
):
    for name in gone.split():
        delattr(module, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
sys.platform = "win32"
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lambda *given: None, LK_NBLCK=2)
for name in names:
    importlib.import_module(name)

import agl

logging.getLogger("agl").addHandler(logging.NullHandler())  # rich would look for a console

@agl.rollout
def agent(task: int) -> float:
    return 1.0

print(agl.Trainer(strategy="shm", run="first").dev(agent, [1]).rollouts)
"""


def test_the_core_is_imported_and_runs_without_the_functions_of_posix(tmp_path):
    done = python("-W", "error", "-c", SCRIPT, cwd=tmp_path)
    assert done.stdout == "{'succeeded': 1}\n", done.stderr
