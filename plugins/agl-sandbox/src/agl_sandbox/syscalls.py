"""A filter for system calls: what an agent's own work never needs, and walls are broken with.

Namespaces hide what is outside; these calls reach what they do not hide, or make it reachable:
namespaces of an agent's own, in which it has root's rights, programs for the kernel, and kinds of
sockets that belong to no namespace (``AF_VSOCK`` leads to the host of a virtual machine).
"""

import ctypes
import errno
import platform
import struct

from agl_sandbox.linux import LIBC

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_NAMESPACES = 0x7E020000
"""All flags of ``clone`` that make namespaces."""
_X32 = 0x40000000
"""Numbers from here on are those of another interface to the same calls."""
_SOCKETS = (1, 2, 10, 16)
"""Unix, IPv4, IPv6, and netlink, by which programs look at their addresses."""

_EVERYWHERE = {"io_uring": (425, 426, 427), "mounting": (428, 429, 430, 431, 432, 433, 442)}
_CLONE3 = 435
"""Its flags lie in memory, where a filter cannot look; the C library then takes ``clone``."""
_BY_MACHINE = {
    # architecture; socket; clone; then shmget, msgget, memfd_create: memory that no limit counts,
    # in the place of which /dev/shm does; then unshare, setns, mount, umount2, pivot_root, add_key,
    # request_key, keyctl, perf_event_open, open_by_handle_at, init_module, finit_module,
    # kexec_load, bpf, userfaultfd
    "x86_64": (
        0xC000003E, 41, 56, (29, 68, 319),
        (272, 308, 165, 166, 155, 248, 249, 250, 298, 304, 175, 313, 246, 321, 323),
    ),
    "aarch64": (
        0xC00000B7, 198, 220, (194, 186, 279),
        (97, 268, 40, 39, 41, 217, 218, 219, 241, 265, 105, 273, 104, 280, 282),
    ),
}  # fmt: skip


def _program() -> bytes | None:
    """The filter for this machine, if its numbers are known."""
    numbers = _BY_MACHINE.get(platform.machine())
    if numbers is None:
        return None
    architecture, socket, clone, absent, forbidden = numbers
    deny = _ERROR | errno.EPERM
    code = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _ERROR | errno.ENOSYS),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, _ERROR | errno.ENOSYS),
    ]
    for number in (_CLONE3, *_EVERYWHERE["io_uring"], *absent):
        code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERROR | errno.ENOSYS)]
    for number in (*forbidden, *_EVERYWHERE["mounting"]):
        code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, deny)]
    code += [
        _step(_EQUAL, clone, 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_BIT, _NAMESPACES, 0, 1),
        _step(_RETURN, deny),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, socket, 0, 2 + len(_SOCKETS)),
        _step(_LOAD, _FIRST_ARGUMENT),
        *(_step(_EQUAL, kind, len(_SOCKETS) - n, 0) for n, kind in enumerate(_SOCKETS)),
        _step(_RETURN, _ERROR | errno.EAFNOSUPPORT),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(code)


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


_PROGRAM = _program()


def is_known() -> bool:
    """Whether there is a filter for this machine."""
    return _PROGRAM is not None


def forbid() -> None:
    """Forbid these calls to this process and all that it starts; nothing where none is known.

    Raises:
        OSError: The kernel takes no such filter.
    """
    if _PROGRAM is None:
        return
    code = ctypes.create_string_buffer(_PROGRAM, len(_PROGRAM))
    packed = struct.pack("@HP", len(_PROGRAM) // 8, ctypes.addressof(code))
    if LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, packed, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no filter for system calls")
