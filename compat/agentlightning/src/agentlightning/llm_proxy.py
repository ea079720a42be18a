"""The proxy in front of model servers."""

import logging
import secrets
from collections.abc import Sequence
from typing import Any, get_args

from agentlightning._proxy.many import ManyWorkers
from agentlightning.utils.server_launcher import LaunchMode
from agl import LightningStore
from agl.algorithm.gateway import ModelConfig as ModelConfig
from agl.errors import ConfigError
from agl.utils.checks import check_choice, check_numbers
from agl.utils.secrets import learn
from agl_http.addresses import is_loopback

logger = logging.getLogger("agl.compat")

BY_ITSELF = {
    "middlewares": ("rollout_attempt", "stream_conversion"),
    "callbacks": ("opentelemetry",),
}
"""What the proxy does without being asked: it attributes calls, streams, and records."""


class LLMProxy(ManyWorkers):
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
        if left := _names("middlewares", middlewares or ()):
            raise ConfigError(
                f"LLMProxy: middlewares={left!r} is not supported: the proxy has none. To see "
                "messages, read the spans that it records: agl spans"
            )
        is_open = is_loopback(host or "127.0.0.1") and not agls.get("api_key")
        super().__init__(
            port,
            model_list,
            store,
            host,
            litellm_config=litellm_config,
            num_retries=num_retries,
            num_workers=num_workers,
            open=agls.pop("open", is_open),
            **agls,
        )

    async def start(self) -> None:
        """Serve; see agl's ``LLMProxy``."""
        if self.api_key is None and not self.is_running():
            logger.warning(
                "the LLM proxy on %s asks for no key, as in 0.3: everybody on this machine may "
                "call on your account. Use agl.LLMProxy to close it",
                self.host,
            )
        await super().start()

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


def _names(what: str, given: Sequence[Any]) -> list[str]:
    for each in given:
        if not isinstance(each, str):
            raise ConfigError(
                f"LLMProxy: {what} takes names, and got {each!r}: the proxy runs no code of "
                "LiteLLM. It attributes, streams and records calls by itself"
            )
    return [name for name in given if name not in BY_ITSELF[what]]
