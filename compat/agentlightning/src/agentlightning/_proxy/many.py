"""An LLM proxy that has several processes where they are asked for."""

import asyncio
import logging
from typing import Any

from agentlightning._proxy.workers import Workers
from agl.algorithm.gateway import ModelConfig
from agl.errors import ConfigError
from agl_gateway import LLMProxy

logger = logging.getLogger("agl.compat")

IN_ONE = ("run_budget", "attempt_budget", "record", "replay", "tracker")
"""What one process has to know of all calls."""
TRACES = "/v1/traces"


class ManyWorkers(LLMProxy):
    """agl's proxy; with ``num_workers`` above 1, this object governs so many processes.

    They write to the store over HTTP, so it must be one that is served.
    """

    def __init__(self, *args: Any, num_workers: int = 1, **options: Any) -> None:
        self.num_workers = num_workers
        self._workers: Workers | None = None
        self.model_list: list[ModelConfig] = []
        """The user's list, as it was given."""
        self._added: dict[str, ModelConfig] = {}
        if num_workers > 1 and (given := [name for name in IN_ONE if options.get(name)]):
            raise ConfigError(
                f"LLMProxy: {given[0]} needs one process that knows of all calls; leave "
                f"num_workers={num_workers} out"
            )
        super().__init__(*args, **options)

    async def start(self) -> None:
        """Serve; see ``agl.LLMProxy``.

        Raises:
            ConfigError: The store is not served, and so is out of reach for other processes.
        """
        if self.num_workers == 1:
            await super().start()
        elif self._workers is None:
            settings = self._settings()
            sock = self.address.bind()
            self.address.port = sock.getsockname()[1]
            workers = self._workers = Workers(sock, self.host, self.num_workers, settings)
            try:
                await asyncio.to_thread(workers.start)
            except BaseException:
                await self.stop()
                raise
            logger.info("LLM proxy on %s, %s processes", self.address.url(), self.num_workers)

    def _settings(self) -> dict[str, Any]:
        store = self.get_store()
        if store is None or not store.capabilities.get("zero_copy"):
            raise ConfigError(
                f"LLMProxy: {self.num_workers} processes write to the store over HTTP, and a "
                f"{type(store).__name__} is not served; wrap it in LightningStoreServer, use "
                "strategy='cs', or leave num_workers out"
            )
        return {
            "store": store.otlp_traces_endpoint().removesuffix(TRACES),
            "model_list": self.model_list,
            "added": list(self._added.values()),
            "host": self.host,
            "num_retries": self.num_retries,
            "callbacks": list(self.callbacks),
            "shown": list(self.shown),
            "max_body_bytes": self.max_body_bytes,
            "max_pause_seconds": self._max_pause_seconds,
            "api_key": self.api_key,
            "open": self.api_key is None,
        }

    async def stop(self) -> None:
        workers, self._workers = self._workers, None
        if workers is None:
            await super().stop()
        else:
            await asyncio.to_thread(workers.stop)

    def is_running(self) -> bool:
        return super().is_running() if self._workers is None else self._workers.is_running()

    def _ask(self, what: str, *args: Any, **named: Any) -> list[Any]:
        if self._workers is None:
            return []
        self._workers.settings |= {
            "model_list": self.model_list,
            "added": list(self._added.values()),
        }
        return self._workers.ask(what, *args, **named)

    def update_model_list(self, model_list: list[ModelConfig]) -> None:
        super().update_model_list(model_list)
        self.model_list = list(model_list)
        self._ask("update_model_list", model_list)

    def add_model(self, entry: ModelConfig) -> None:
        super().add_model(entry)
        self._added[entry["model_name"]] = entry
        self._ask("add_model", entry)

    def remove_model(self, model_name: str) -> None:
        super().remove_model(model_name)
        self._added.pop(model_name, None)
        self._ask("remove_model", model_name)

    async def _each(self, what: str, *args: Any, **named: Any) -> None:
        await asyncio.to_thread(self._ask, what, *args, **named)

    async def flush(self) -> None:
        await super().flush() if self._workers is None else await self._each("flush")

    async def pause(self, model: str | None = None, *, refuse: bool = False) -> None:
        if self._workers is None:
            await super().pause(model, refuse=refuse)
        else:
            await self._each("pause", model, refuse=refuse)

    async def resume(self, model: str | None = None) -> None:
        await super().resume(model) if self._workers is None else await self._each("resume", model)

    async def drain(self, model: str | None = None) -> None:
        await super().drain(model) if self._workers is None else await self._each("drain", model)

    @property
    def num_unattributed(self) -> int:
        return super().num_unattributed + sum(self._ask("num_unattributed"))
