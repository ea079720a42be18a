"""Settings of a server, as one value that can be passed around."""

from dataclasses import dataclass
from typing import Literal

from agl.errors import ConfigError

LaunchMode = Literal["thread", "mp", "asyncio"]


@dataclass(frozen=True)
class PythonServerLauncherArgs:
    """Where and how a server runs; taken as ``launcher_args`` by servers.

    Args:
        port: Port to bind; None picks a free one.
        host: Address to bind; None is loopback.
        n_workers: Worker processes.
        launch_mode: ``thread``: a thread of this process; ``mp``: a process of its own;
            ``asyncio``: the running event loop.
    """

    port: int | None = None
    host: str | None = None
    n_workers: int = 1
    launch_mode: LaunchMode = "thread"

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port}: expected a number from 0 to 65535, or None")
        if self.n_workers < 1:
            raise ConfigError(f"n_workers={self.n_workers}: expected at least 1")
        if self.launch_mode not in ("thread", "mp", "asyncio"):
            raise ConfigError(
                f"launch_mode={self.launch_mode!r}: expected 'thread', 'mp' or 'asyncio'"
            )
