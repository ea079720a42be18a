"""The few system calls of Linux that Python 3.11 has no functions for."""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from enum import IntFlag

LIBC = ctypes.CDLL(None, use_errno=True)
"""Loaded once, as each call has two processes that need it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_IFF_UP_AND_RUNNING = 0x41


class Namespace(IntFlag):
    """What ``unshare`` makes anew; called as in ``/proc/PID/ns``, in capitals."""

    MNT = 0x00020000
    IPC = 0x08000000
    PID = 0x20000000
    NET = 0x40000000


class Mount(IntFlag):
    """Flags of ``mount``."""

    RDONLY = 1
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    REMOUNT = 32
    BIND = 4096
    REC = 16384
    SLAVE = 1 << 19


def unshare(namespaces: Namespace) -> None:
    """Move this process into fresh namespaces; for pids, its children."""
    _check(LIBC.unshare(int(namespaces)), "unshare")


def enter(namespaces: Namespace, descriptor: int) -> None:
    """Move this process into namespaces that exist; for pids, its children."""
    _check(LIBC.setns(descriptor, int(namespaces)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """See ``mount(2)``."""
    texts = [text.encode() or None for text in (source, target, kind)]
    _check(LIBC.mount(*texts, int(flags), options.encode() or None), f"mount {target}")


def die_with_parent() -> None:
    """Be killed when the parent dies; on Linux. A change of user takes it back."""
    if sys.platform == "linux":
        LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def forbid_new_privileges() -> None:
    """Let no program that is started from now on get more rights than this process has."""
    _check(LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def let_itself_be_read() -> None:
    """Own its files in /proc, which a change of user takes away."""
    _check(LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def drop_capabilities() -> None:
    """Keep no right of root."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(LIBC.capset(header, struct.pack("=6I", *[0] * 6)), "capset")


def bring_up_loopback(addresses: list[str]) -> None:
    """Give a fresh network namespace 127.0.0.0/8, ::1 and further IPv4 addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_AND_RUNNING))
        for number, address in enumerate(addresses):
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
                packed = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(sock, request, struct.pack("16s16s8x", f"lo:{number}".encode(), packed))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
