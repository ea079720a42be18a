"""How servers run."""

import logging
from dataclasses import dataclass, fields
from typing import Literal

from agl.errors import ConfigError

LaunchMode = Literal["thread", "mp", "asyncio"]
TAKEN = ("port", "host", "launch_mode", "n_workers", "log_level")


@dataclass
class PythonServerLauncherArgs:
    """Where and how a server runs: ``launcher_args`` of ``LightningStoreServer`` and ``LLMProxy``.

    Beyond host, port, mode and workers, only defaults are taken.

    Raises:
        ConfigError: Another one is given.
    """

    port: int | None = None
    host: str | None = None
    access_host: str | None = None
    launch_mode: LaunchMode = "asyncio"
    n_workers: int = 1
    healthcheck_url: str | None = None
    log_level: int = logging.INFO
    access_log: bool = False
    startup_timeout: float = 60.0
    kill_unhealthy_server: bool = True
    thread_join_timeout: float = 10.0
    process_join_timeout: float = 10.0
    timeout_keep_alive: int = 30

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in TAKEN and value != field.default:
                raise ConfigError(
                    f"PythonServerLauncherArgs: {field.name}={value!r} is not supported; leave it "
                    "out: servers say when they are ready, and end when they are told to"
                )
