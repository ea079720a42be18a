"""The proxy in front of model servers."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Any, get_args

from agentlightning._proxy import Workers
from agentlightning.utils.server_launcher import LaunchMode
from agl import LightningStore
from agl.algorithm.gateway import ModelConfig as ModelConfig
from agl.errors import ConfigError
from agl.utils.checks import check_choice, check_numbers
from agl.utils.secrets import learn
from agl_gateway import LLMProxy as _LLMProxy
from agl_gateway.processes import ALONE
from agl_http.addresses import is_loopback

logger = logging.getLogger("agl.compat")

BY_ITSELF = {
    "middlewares": ("rollout_attempt", "stream_conversion"),
    "callbacks": ("opentelemetry",),
}
"""What the proxy does without being asked: it attributes calls, streams, and records."""


class LLMProxy(_LLMProxy):
    """agl's, with 0.3's parameters.

    By hand and on loopback it is open to everybody who reaches it, as in 0.3; ``Trainer`` closes
    it. ``agl.LLMProxy`` always asks for a key or the token of an attempt.

    Args:
        port: Where to listen; None takes a free one.
        model_list: Models and their backends.
        store: Where calls are recorded.
        host: Where to listen; None is 127.0.0.1.
        litellm_config: None; LiteLLM's router is not used.
        num_retries: Rounds over the backends of a model, after the first.
        num_workers: So many processes, at one address; 1 is a thread of this process. With more,
            ``store`` must be a ``LightningStoreServer`` or a client of one.
        launch_mode: ``mp``, ``thread`` or ``asyncio``; it is ``num_workers`` that decides.
        launcher_args: Host, port, mode and workers as one value, instead of them.
        middlewares: Names; ``rollout_attempt`` and ``stream_conversion`` are always on.
        callbacks: Names: ``return_token_ids`` and ``logprobs``, both by default, and of those that
            are given, or of token ids by default, agents get what they did not ask for, too;
            ``opentelemetry`` is always on.
        **agls: Parameters that only ``agl.LLMProxy`` has: ``api_key``, ``tracker``, ...

    Raises:
        ConfigError: An argument that this proxy does not take.
    """

    def __init__(
        self,
        port: int | None = None,
        model_list: list[ModelConfig] | None = None,
        store: LightningStore | None = None,
        host: str | None = None,
        litellm_config: dict[str, Any] | None = None,
        num_retries: int = 0,
        num_workers: int = 1,
        launch_mode: str = "mp",
        launcher_args: Any = None,
        middlewares: Sequence[Any] | None = None,
        callbacks: Sequence[Any] | None = None,
        **agls: Any,
    ) -> None:
        if launcher_args is not None:
            if (port, host, num_workers, launch_mode) != (None, None, 1, "mp"):
                raise ConfigError(
                    "LLMProxy: give either launcher_args, or host, port, num_workers and "
                    "launch_mode"
                )
            host, port = launcher_args.host, launcher_args.port
            num_workers, launch_mode = launcher_args.n_workers, launcher_args.launch_mode
        check_choice("LLMProxy", get_args(LaunchMode), launch_mode=launch_mode)
        check_numbers("LLMProxy", whole=True, least=1, num_workers=num_workers)
        agls.setdefault("shown", ("return_token_ids",))
        if callbacks is not None:
            agls["callbacks"] = agls["shown"] = _names("callbacks", callbacks)
        if litellm_config:
            raise ConfigError(
                "LLMProxy: litellm_config is not supported: LiteLLM's router is not used; give "
                "model_list, and num_retries directly"
            )
        if left := _names("middlewares", middlewares or ()):
            raise ConfigError(
                f"LLMProxy: middlewares={left!r} is not supported: the proxy has none. To see "
                "messages, read the spans that it records: agl spans"
            )
        if num_workers > 1 and (given := [name for name in ALONE if agls.get(name)]):
            raise ConfigError(
                f"LLMProxy: {given[0]} needs one process that knows of all calls; leave "
                f"num_workers={num_workers} out"
            )
        self.num_workers = num_workers
        self._workers: Workers | None = None
        self.model_list: list[ModelConfig] = list(model_list or ())
        """The user's list, as it was given."""
        self._added: dict[str, ModelConfig] = {}
        where = host or getattr(store, "host", None) or "127.0.0.1"
        is_open = is_loopback(where) and not agls.get("api_key")
        super().__init__(
            port,
            model_list,
            store,
            host,
            num_retries=num_retries,
            open=agls.pop("open", is_open),
            **agls,
        )

    async def start(self) -> None:
        """Serve; see agl's ``LLMProxy``. Several processes write to the store over HTTP.

        Raises:
            ConfigError: The store is not served, and so is out of reach for other processes.
        """
        if self.api_key is None and not self.is_running():
            logger.warning(
                "the LLM proxy on %s asks for no key, as in 0.3: everybody on this machine may "
                "call on your account. Use agl.LLMProxy to close it",
                self.host,
            )
        if self.num_workers == 1:
            await super().start()
        elif self._workers is None:
            self._settings()  # refuses what cannot be done
            sock = self.address.bind()
            self.address.port = sock.getsockname()[1]
            workers = self._workers = Workers(sock, self.num_workers, self._settings)
            try:
                await asyncio.to_thread(workers.start)
            except BaseException:
                await self.stop()
                raise
            logger.info("LLM proxy on %s, %s processes", self.address.url(), self.num_workers)

    def initialize(self) -> None:
        """Do nothing: there is nothing of LiteLLM to set up."""

    async def restart(self, *, _port: int | None = None) -> None:
        """Stop and start, perhaps on another port."""
        await self.stop()
        if _port is not None:
            self.address.port = _port
        await self.start()

    def close_to_others(self) -> None:
        """From the next start on ask for a key, or for the token of an attempt."""
        if self.api_key is None and not self.is_running():
            self.api_key = secrets.token_urlsafe(24)
            learn(self.api_key)

    # --- several processes

    def _settings(self) -> dict[str, Any]:
        store = self.get_store()
        if store is None or not store.capabilities.get("zero_copy"):
            raise ConfigError(
                f"LLMProxy: {self.num_workers} processes write to the store over HTTP, and a "
                f"{type(store).__name__} is not served; wrap it in LightningStoreServer, use "
                "strategy='cs', or leave num_workers out"
            )
        return {
            "store": store.otlp_traces_endpoint().removesuffix("/v1/traces"),
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
        return [] if self._workers is None else self._workers.ask(what, *args, **named)

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


def _names(what: str, given: Sequence[Any]) -> list[str]:
    for each in given:
        if not isinstance(each, str):
            raise ConfigError(
                f"LLMProxy: {what} takes names, and got {each!r}: the proxy runs no code of "
                "LiteLLM. It attributes, streams and records calls by itself"
            )
    return [name for name in given if name not in BY_ITSELF[what]]
