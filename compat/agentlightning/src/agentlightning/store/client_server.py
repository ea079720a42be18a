"""The store over HTTP."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentlightning.store.threading import guarded
from agl import LightningStore, LightningStoreServer as _LightningStoreServer
from agl.env import DEFAULT_HOST, LightningEnvVar, resolve_str_env_var
from agl.errors import ConfigError
from agl.utils.checks import check_choice, check_numbers
from agl_http.addresses import is_loopback

if TYPE_CHECKING:
    from agentlightning.store._client import LightningStoreClient as LightningStoreClient

logger = logging.getLogger("agl.compat")

API_V1_PREFIX = "/v1"
API_AGL_PREFIX = "/agl"
API_V1_AGL_PREFIX = "/v1/agl"


class LightningStoreServer(_LightningStoreServer):
    """agl's, with 0.3's parameters.

    On loopback it is open to everybody who reaches it, as in 0.3, unless ``AGL_SERVER_TOKEN`` is
    set; on any other host it needs that token. ``agl.LightningStoreServer`` always has one.

    Args:
        store: What is served.
        host: Where to listen; None for 127.0.0.1.
        port: None for 4747; 0 for a free one.
        cors_allow_origins: Origins whose web pages may call; ``*`` for all.
        launch_mode: ``thread`` or ``asyncio``; both serve from a thread.
        launcher_args: Host and port as one value, instead of them.
        n_workers: 1.
        tracker: Where metrics go; see agl-metrics.
        **agls: Parameters that only ``agl.LightningStoreServer`` has: ``token``, ...

    Raises:
        ConfigError: An option cannot be honoured.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str | None = None,
        port: int | None = None,
        cors_allow_origins: Sequence[str] | str | None = None,
        launch_mode: str = "thread",
        launcher_args: Any = None,
        n_workers: int = 1,
        tracker: Any = None,
        **agls: Any,
    ) -> None:
        if launcher_args is not None:
            if (host, port, launch_mode) != (None, None, "thread"):
                raise ConfigError(
                    "LightningStoreServer: give either launcher_args, or host, port and launch_mode"
                )
            host, port = launcher_args.host, launcher_args.port or 0
            launch_mode, n_workers = launcher_args.launch_mode, launcher_args.n_workers
        check_choice("LightningStoreServer", ("thread", "asyncio"), launch_mode=launch_mode)
        check_numbers("LightningStoreServer", whole=True, least=1, most=1, n_workers=n_workers)
        host = host or DEFAULT_HOST
        token = agls.get("token") or resolve_str_env_var(LightningEnvVar.AGL_SERVER_TOKEN)
        is_open = agls.pop("open", is_loopback(host) and not token)
        super().__init__(
            guarded(store), host, port, cors_allow_origins, tracker=tracker, open=is_open, **agls
        )
        if is_open:
            logger.warning(
                "the store server on %s asks for no token, as in 0.3: everybody on this machine "
                "may do everything. Set AGL_SERVER_TOKEN to close it",
                host,
            )

    @property
    def store(self) -> LightningStore:
        """What is served; in another process, the client of it."""
        return self.target

    async def run_forever(self) -> None:
        """Start, and serve until the task is cancelled."""
        await self.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self.stop()
