"""``LLMProxy``: the gateway as a component, with 0.3's interface."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agl.algorithm.gateway import Gateway, ModelConfig
from agl.errors import ConfigError, NotSupportedError
from agl.plugins.build import build_component
from agl.plugins.schema import validate
from agl.types import LLM, ProxyLLM
from agl.utils.checks import check_numbers
from agl.utils.secrets import learn
from agl_gateway.address import Address
from agl_gateway.asgi import Tracker
from agl_gateway.backends import Backends
from agl_gateway.budget import Budget, Budgets
from agl_gateway.dialect import EXTENSIONS
from agl_http.addresses import is_loopback
from agl_http.server import ServerThread
from agl_http.tokens import tokens_of

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_gateway.app import GatewayApp
    from agl_gateway.call_limits import CallLimits
    from agl_gateway.pause import PauseControl
    from agl_gateway.processes import Processes
    from agl_gateway.replay import Replay
    from agl_gateway.upstream import Upstream

logger = logging.getLogger("agl.gateway")

T = TypeVar("T")


class LLMProxy(Gateway):
    """An OpenAI-compatible address in front of model servers, which records every call.

    Chat completions and completions are forwarded to the backend of the model that they name, as
    streams where the agent asks for one; Anthropic's messages and OpenAI's Responses are translated
    for it. Each call of an attempt leaves exactly one span, also when it fails: messages, answer,
    token ids, log-probabilities, times. Backends are asked for token ids and log-probabilities, and
    agents get only what they asked for themselves.

    Whose call it is stands in the address (``/rollout/ID/attempt/ID/v1``, see
    ``ProxyLLM.get_base_url``) or in the headers ``x-rollout-id`` and ``x-attempt-id``; the header
    ``x-agl-agent`` may name the agent. Other calls are forwarded and not recorded.

    Calls of an unknown or finished attempt are refused. A proxy with a key puts a token into the
    address of each attempt, which opens that attempt only; the proxy's own key opens every address.

    Records are written in the background, five seconds later at most: an answer never waits for the
    store, and what the agent recorded before a call is stored before it. Where the store falls 48
    MiB behind, new calls wait. Before a runner reports the final status of an attempt it asks the
    proxy to end it: calls in flight are broken off, and everything is stored. Who makes attempts by
    hand calls ``await llm_proxy.flush()`` before reading spans. The store takes spans of ended
    attempts too; what is lost are the last moments of a proxy that is killed, and so the attempts
    that ran then fail: the runner finds no proxy, or one that has not served for as long.

    Args:
        port: Where to listen; None or 0: a free one, at the first ``as_resource`` or ``start``.
        model_list: Models and their backends in LiteLLM's form: ``model_name``, and
            ``litellm_params`` with ``model`` (a prefix ``hosted_vllm/`` or ``openai/`` is
            dropped), ``api_base`` and optionally ``api_key``. Entries of one name, or addresses in
            a list as ``api_base``, are replicas; an attempt stays with one of them unless that is
            far busier. ``forced_parameters`` are set in every request by mode of the rollout,
            ``send_seed`` gives calls the seeds of their rollouts, ``max_tokens`` limits answers
            whose agent does not, and ``price`` counts for budgets. With the prefix of another
            provider (``anthropic/``, ``azure/``, ...) LiteLLM's library, an extra, calls the model.
        store: Where calls are recorded; needed before ``start``.
        host: Where to listen; None is where the store is served if other machines reach that, and
            127.0.0.1 otherwise.
        num_retries: When a replica cannot be reached or answers 429, 502, 503 or 504, the others
            are tried at once; so many further rounds follow, after waits as long as
            ``Retry-After`` says and the client's deadline allows.
        callbacks: What backends are asked for: "return_token_ids", "logprobs", and, of vLLM servers
            that know it, "weight_versions". OpenAI's own servers are asked for none of them.
        api_key: Opens every address; part of ``as_resource``. None makes a random one.
        max_body_bytes: Larger requests are refused with status 413.
        run_budget: Limits of everything that is forwarded, as ``{"calls": 1000, "tokens":
            2_000_000, "cost": 5.0}``: calls over it get 429, and algorithms end with what they
            have. Costs come from ``price`` in the model list.
        attempt_budget: The same for each attempt.
        max_pause_seconds: How long calls wait at a paused model before they get 503.
        record: A folder, for a recording of every answer of the backends.
        replay: The folder of a recording that answers in the place of backends.
        open: Everybody who reaches the proxy may call, for any attempt; on loopback only.
        tracker: Where metrics go besides ``/metrics``: a backend of agl-metrics, or its name.
        shown: Names of ``callbacks`` whose answers agents get, too, where they did not ask.

    Raises:
        ConfigError: An argument that this proxy does not take, a wrong model list, or no
            recording.
    """

    def __init__(
        self,
        port: int | None = None,
        model_list: list[ModelConfig] | None = None,
        store: "LightningStore | None" = None,
        host: str | None = None,
        *,
        num_retries: int = 0,
        callbacks: Sequence[str] = ("return_token_ids", "logprobs"),
        api_key: str | None = None,
        max_body_bytes: int = 64 * 2**20,
        run_budget: Budget | None = None,
        attempt_budget: Budget | None = None,
        max_pause_seconds: float = 600.0,
        record: str | None = None,
        replay: str | None = None,
        open: bool = False,
        tracker: Any = None,
        shown: Sequence[str] = (),
    ) -> None:
        if unknown := [name for name in (*callbacks, *shown) if name not in EXTENSIONS]:
            raise ConfigError(
                f"LLMProxy callbacks: unknown name {unknown[0]!r}; expected any of "
                f"{', '.join(EXTENSIONS)}. Calls are always recorded"
            )
        check_numbers("LLMProxy", whole=True, least=0, num_retries=num_retries)
        check_numbers("LLMProxy", above=0, max_pause_seconds=max_pause_seconds)
        if record is not None and replay is not None:
            raise ConfigError("LLMProxy: record and replay are two things; give one of them")
        self._follows_store = not host
        self.host = host or "127.0.0.1"
        self.address = Address(self.host, port or 0)
        self.num_retries = num_retries
        self.callbacks, self.shown = tuple(callbacks), tuple(shown)
        self.max_body_bytes = max_body_bytes
        if open and (api_key or not is_loopback(self.host)):
            raise ConfigError(
                "LLMProxy: open=True lets everybody call on your account, so it is for loopback "
                "and without api_key; leave one of them out"
            )
        self.api_key = None if open else api_key or secrets.token_urlsafe(24)
        learn(self.api_key)
        self._store: LightningStore | None = None
        about: dict[str, Any] = {"group": "agl.metrics", "expected_type": Tracker}
        self._tracker = build_component(tracker, where="tracker", **about) if tracker else None
        limits = {"run_budget": run_budget, "attempt_budget": attempt_budget}
        self._budgets = Budgets(**validate(Budgets, limits, "LLMProxy:"))
        self._max_pause_seconds = max_pause_seconds
        self._record = record
        self._has_recorded = False
        self._replay: Replay | None = None
        if replay is not None:
            from agl_gateway import replay as recordings

            self._replay = recordings.Replay(Path(replay))
        self._call_limits: CallLimits | None = None
        self._app: GatewayApp | None = None
        self._server: ServerThread | None = None
        self.processes: Processes | None = None
        """Those of ``agl gateway`` that serve as one, where there are several."""
        self._serving_since: float | None = None
        """``time.monotonic()`` since when every lost call is known, stops in between included."""
        self._lost: Counter[str] = Counter()
        """Attempt id -> how many of its calls will never be stored, whichever start had them."""
        complete = self._replay.add_models if self._replay else list[ModelConfig]
        self._backends = Backends(model_list or (), complete)
        if store is not None:
            self.set_store(store)

    def get_store(self) -> "LightningStore | None":
        return self._store

    def set_store(self, store: "LightningStore") -> None:
        """See ``Gateway``.

        Raises:
            ConfigError: Other machines reach the store, and the proxy, as it is open, is for this.
        """
        self._store = store
        host = getattr(store, "host", None)  # of a server, whose runners may be elsewhere
        if host and self._follows_store and not is_loopback(host) and not self.is_running():
            if self.api_key is None:
                raise ConfigError(
                    f"LLMProxy: other machines reach the store at {host!r}, but no proxy with "
                    "open=True; leave open out, or give host='127.0.0.1'"
                )
            self.host = self.address.host = host

    def update_model_list(self, model_list: list[ModelConfig]) -> None:
        """See ``Gateway``. Holds for the next request, and for the next try of a call.

        Requests in flight keep their backend, and end in peace.
        """
        self._backends.replace(model_list)

    def add_model(self, entry: ModelConfig) -> None:
        self._backends.add(entry)

    def remove_model(self, model_name: str) -> None:
        self._backends.remove(model_name)

    def check_free(self, model_name: str) -> None:
        self._backends.check_free(model_name)

    @property
    def port(self) -> int:
        """0 before one was chosen."""
        return self.address.port

    async def start(self) -> None:
        """Serve; returns when requests are taken. While it runs this does nothing.

        Raises:
            ConfigError: There is no store, or the port is in use.
        """
        if self.is_running():
            return
        if self._store is None:
            raise ConfigError(
                "LLMProxy has no store to record calls in; pass store=, or call set_store first"
            )
        from agl_gateway.app import GatewayApp
        from agl_gateway.call_limits import CallLimits

        if (several := self.processes) is None:
            sock, more = self.address.bind(), ()
        else:
            sock, more, self._serving_since = several.shared, [several.own], several.since
        try:
            upstream = self._open_upstream()
        except ConfigError:
            sock.close()
            raise
        app = GatewayApp(
            CallLimits(self._backends, self._max_pause_seconds, self._budgets, self._present_store),
            upstream,
            self._present_store,
            self.callbacks,
            self.num_retries,
            self.api_key,
            self.max_body_bytes,
            self._serving_since or time.monotonic(),
            self._lost,
            tracker=self._tracker,
            shown=self.shown,
            processes=several,
        )
        server = ServerThread(app, self.host, sock=sock, more=more)
        self.address.port = await asyncio.to_thread(server.start)
        self._app, self._server, self._call_limits = app, server, app.call_limits
        self._serving_since = app.serving_since
        logger.info("LLM proxy on %s", self.address.url())

    async def stop(self) -> None:
        """Let calls in flight finish for a few seconds, write what is pending, and end."""
        server, app, self._server, self._app = self._server, self._app, None, None
        if server is not None:
            await asyncio.to_thread(server.stop)
        if overridden := self.overridden:
            counts = ", ".join(f"{name} of {m!r} {n}x" for (m, name), n in overridden.items())
            logger.info("agents asked in vain for parameters that are forced: %s", counts)
        if app is not None and app.recorder.num_pending:
            self._serving_since = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def is_running(self) -> bool:
        return self._server is not None and self._server.running

    async def flush(self) -> None:
        if self._app is not None and self.is_running():
            await self._inside(self._app.recorder.flush())

    async def pause(self, model: str | None = None, *, refuse: bool = False) -> None:
        await self._inside(self._pause_control(model).pause(model, refuse))

    async def resume(self, model: str | None = None) -> None:
        await self._inside(self._pause_control(model).resume(model))

    async def drain(self, model: str | None = None) -> None:
        await self._inside(self._pause_control(model).drain(model))

    def spent_budget(self) -> str | None:
        return self._budgets.spent

    @property
    def overridden(self) -> dict[tuple[str, str], int]:
        """Model and parameter -> calls in which an agent asked for another than the forced value.

        Since the last start.
        """
        return {} if self._call_limits is None else dict(self._call_limits.overridden)

    @property
    def num_unattributed(self) -> int:
        return 0 if self._call_limits is None else self._call_limits.num_unattributed

    async def replay_stopped(self) -> str:
        """Return when a replay has stopped because a request differs; what the difference is."""
        if self._replay is None:
            await asyncio.Event().wait()
        assert self._replay is not None
        return await asyncio.wrap_future(self._replay.stopped)

    @property
    def model_names(self) -> list[str]:
        return self._backends.names

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: dict[str, Any] | None = None,
    ) -> LLM:
        """See ``Gateway``.

        Raises:
            ConfigError: An unknown model, several models and none named, or one id.
        """
        names = self.model_names
        model = self._backends.default() if model is None else model
        if model is None or model not in names:
            asked = "no model was named" if model is None else f"model {model!r} is not served"
            raise ConfigError(
                f"LLMProxy.as_resource: {asked}; served models: {', '.join(names) or 'none'}"
            )
        resource = ProxyLLM(
            endpoint=f"{self.address.url()}/v1",
            model=model,
            api_key=self.api_key,
            asks_for_token=self.api_key is not None,
            sampling_parameters=sampling_parameters or {},
        )
        if rollout_id is None and attempt_id is None:
            return resource
        if rollout_id and attempt_id and self.api_key and self._store is not None:
            with contextlib.suppress(NotSupportedError):  # it is elsewhere; the key does as well
                tokens = tokens_of(self._store)
                resource = resource.opened(tokens.issue("model", rollout_id, attempt_id))
        return resource.of_attempt(rollout_id, attempt_id)

    def _present_store(self) -> "LightningStore":
        assert self._store is not None  # start() has seen to that
        return self._store

    def _open_upstream(self) -> "Upstream":
        """What answers calls: the backends, written down if that can be, or a recording."""
        if self._replay is not None:
            return self._replay
        from agl_gateway.upstream import HttpUpstream

        if self._record is None:
            return HttpUpstream()
        from agl_gateway.replay import Recording

        recording = Recording(HttpUpstream(), Path(self._record), resume=self._has_recorded)
        self._has_recorded = True
        return recording

    def _pause_control(self, model: str | None) -> "PauseControl":
        """What holds calls back, if the proxy runs and the model is served."""
        if self._call_limits is None or not self.is_running():
            raise ConfigError("LLMProxy does not run; await start() first")
        if model is not None and model not in self.model_names:
            names = ", ".join(self.model_names) or "none"
            raise ConfigError(f"LLMProxy: model {model!r} is not served; served models: {names}")
        return self._call_limits.pause_control

    async def _inside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the event loop of the running proxy."""
        assert self._app is not None
        future = asyncio.run_coroutine_threadsafe(work, self._app.recorder.loop)
        return await asyncio.wrap_future(future)
