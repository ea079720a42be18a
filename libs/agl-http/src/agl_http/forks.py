"""What a forked process shall have no copy of, such as the socket that a server listens on."""

import os
import weakref
from typing import Protocol


class Forgetting(Protocol):
    """Something of which a forked process shall have no copy."""

    def forget(self) -> None:
        """Close this process's copy; it may be closed already."""
        ...


_held: "weakref.WeakSet[Forgetting]" = weakref.WeakSet()


def forget_in_forks(held: Forgetting) -> None:
    """Have ``held.forget`` called in processes that are forked from this one."""
    _held.add(held)


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
