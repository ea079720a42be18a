"""The ASGI application: which address does what, whose call it is, and how it ends."""

import asyncio
import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from agl.errors import StoreUnavailableError
from agl.semconv import CLIENT_GONE
from agl.store.base import LightningStore
from agl_gateway.asgi import JSON, Interruptible, Reply, Tracker, read_body
from agl_gateway.attempts import Attempts, OpenAttempt
from agl_gateway.backends import Backend
from agl_gateway.call_limits import CallLimits
from agl_gateway.dialect import TOKENIZE, Completions, Dialect, Exchange, dumps
from agl_gateway.dialects.messages import CountTokens, Messages
from agl_gateway.dialects.responses import Responses
from agl_gateway.errors import NOT_JSON, BrokenOffError, ClientGoneError, ErrorKind, RefusedError
from agl_gateway.forward import relay
from agl_gateway.processes import Processes
from agl_gateway.recorder import Recorder, read_spans
from agl_gateway.records import BYTES_PER_TOKEN, CallRecord, Origin
from agl_gateway.response_history import ResponseHistory
from agl_gateway.upstream import Failover, Upstream, deadline_of
from agl_http.layers import Receive, Scope, Send
from agl_http.metrics import CONTENT_TYPE, RequestMetrics
from agl_http.tokens import token_in

logger = logging.getLogger("agl.gateway")

DIALECTS: dict[str, Dialect] = {
    "chat/completions": Dialect(),
    "completions": Completions(),
    "messages": Messages(),
    "messages/count_tokens": CountTokens(),
    "responses": Responses(),
}
"""End of an address, without ``/v1/`` -> what is spoken there."""

STORE_SECONDS = 10.0
"""Longest that an answer to a runner that is not ours waits for its record to be stored."""

ADDRESS = re.compile(
    r"(?:/rollout/(?P<rollout>[^/]+)/attempt/(?P<attempt>[^/]+)(?:/token/(?P<token>[^/]+))?)?"
    r"(?:/v1){0,2}/(?P<what>.+)"  # Anthropic's client adds one
)


IMAGE = re.compile(rb'(?<="url":")data:[^"]*')


class _Counted(msgspec.Struct):
    count: int


@dataclass(slots=True)
class _Request:
    headers: dict[bytes, bytes]
    receive: Receive
    reply: Reply
    origin: Origin


@dataclass(eq=False)
class GatewayApp:
    """Serves model calls in every dialect, and the list of models; for options see ``LLMProxy``."""

    call_limits: CallLimits
    """What every call passes; they know the backends."""
    upstream: Upstream
    get_store: Callable[[], LightningStore]
    callbacks: tuple[str, ...]
    num_retries: int
    api_key: str | None
    max_body_bytes: int
    serving_since: float
    """``time.monotonic()`` since when every lost call is in ``lost``."""
    lost: Counter[str]
    """Attempt id -> how many of its calls will never be stored."""
    tracker: Tracker | None = None
    shown: tuple[str, ...] = ()
    processes: Processes | None = None
    recorder: Recorder = field(init=False)
    """Exists while the application is being served."""

    def __post_init__(self) -> None:
        self._authorization = f"Bearer {self.api_key}".encode() if self.api_key else b""
        self._attempts = Attempts(self.get_store)
        self._history = ResponseHistory()
        self._handlers: dict[str, tuple[str, Callable[[_Request], Awaitable[None]]]] = {
            "models": ("GET", self._list_models),
            "end": ("POST", self._end_attempt),
            "flush": ("POST", self._flush),
            "metrics": ("GET", partial(self._show_metrics, self._counts)),
            "messages/count_tokens": ("POST", self._count_tokens),
        }
        self._requests = RequestMetrics()
        if self.tracker is not None:
            self._requests = self.tracker.watch_requests()
            if self.tracker.has_prometheus():
                show = partial(self._show_metrics, self.tracker.exposition)
                self._handlers["prometheus"] = ("GET", show)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        begin, reply = time.perf_counter(), Reply(send)
        match = ADDRESS.fullmatch(scope["path"])
        what = match["what"] if match else ""
        try:
            await self._http(scope, receive, reply, match)
        finally:
            # Whose address it is does not count, nor one that is not there, so that there are few.
            route = f"/v1/{what}" if what in DIALECTS or what in self._handlers else "none"
            seconds, status = time.perf_counter() - begin, reply.status or CLIENT_GONE
            if reply.is_counted:
                self._requests.observe(scope["method"], route, status, seconds)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.recorder = Recorder(self.get_store, self.lost)
        async with aclosing(self.upstream):
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await self.recorder.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(
        self, scope: Scope, receive: Receive, reply: Reply, match: re.Match[str] | None
    ) -> None:
        path: str = scope["path"]
        what = match["what"] if match else ""
        dialect = DIALECTS.get(what)
        try:
            of_attempt = ((match and match["attempt"]) or "", self.max_body_bytes)
            if self.processes and await self.processes.pass_on(scope, receive, reply, *of_attempt):
                return
            if match is None or (dialect is None and what not in self._handlers):
                if path == "/health":
                    await reply.whole(200, b'{"status":"ok"}')
                    return
                known = ", ".join(f"/v1/{what}" for what in (*DIALECTS, "models"))
                raise RefusedError(
                    404,
                    f"no such address: {scope['method']} {path}; the gateway serves {known}, also "
                    "under /rollout/ROLLOUT_ID/attempt/ATTEMPT_ID",
                )
            method, handler = self._handlers.get(what, ("POST", None))
            if scope["method"] != method:
                raise RefusedError(405, f"{path} takes {method}, not {scope['method']}")
            headers = dict(scope["headers"])
            request = _Request(headers, receive, reply, await self._origin(headers, match))
            if handler is not None:
                await handler(request)
            elif dialect is not None:
                await self._call(dialect, request)
        except RefusedError as refused:
            await _refuse(reply, refused, dialect or DIALECTS["chat/completions"])
        except ClientGoneError as gone:  # of a request that is no call, and so has no record
            logger.info("%s: %s", path, gone)

    def _counts(self) -> tuple[bytes, str]:
        return self._requests.text().encode(), CONTENT_TYPE

    async def _show_metrics(
        self, exposition: Callable[[], tuple[bytes, str]], request: _Request
    ) -> None:
        """Counts and durations of requests, for Prometheus."""
        if request.origin.rollout_id:
            raise RefusedError(403, "metrics are of all attempts; ask at /v1/metrics, with the key")
        body, content_type = exposition()
        await request.reply.whole(200, body, [(b"content-type", content_type.encode())])

    async def _origin(self, headers: dict[bytes, bytes], match: re.Match[str]) -> Origin:
        key = headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
        rollout_id = match["rollout"] or headers.get(b"x-rollout-id", b"").decode("latin-1")
        attempt_id = match["attempt"] or headers.get(b"x-attempt-id", b"").decode("latin-1")
        agent_name = headers.get(b"x-agl-agent", b"").decode("latin-1")
        if bool(rollout_id) != bool(attempt_id):
            raise RefusedError(
                400,
                "a call needs both x-rollout-id and x-attempt-id, or neither; got "
                f"{rollout_id or None!r} and {attempt_id or None!r}",
            )
        has_key = bool(self.api_key) and hmac.compare_digest(key, self._authorization)
        if self.api_key and not has_key:
            await self._authorize(match["token"] or token_in(key), rollout_id, attempt_id)
        traceparent = headers.get(b"traceparent", b"")
        return Origin(rollout_id, attempt_id, agent_name, traceparent, has_key)

    async def _authorize(self, token: str, rollout_id: str, attempt_id: str) -> None:
        if not rollout_id:
            raise RefusedError(
                401,
                "wrong or missing API key; use the api_key of the LLM resource, or the one that "
                "`agl gateway` printed",
                "invalid_api_key",
            )
        if not token or not await self._attempts.opens(token, rollout_id, attempt_id):
            raise RefusedError(
                401,
                f"the token in the address, or the API key, is not that of attempt {attempt_id!r}; "
                "take both from the LLM resource that the runner gives to the agent",
                "invalid_token",
            )

    async def _list_models(self, request: _Request) -> None:
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "agl"}
            for name in self.call_limits.backends.names
        ]
        await request.reply.whole(200, dumps({"object": "list", "data": data}))

    async def _end_attempt(self, request: _Request) -> None:
        """Answer when every call of this attempt is stored; it can make no more.

        The answer says since when calls are known here, as another gateway may have been killed
        during the attempt, and how many the store has refused.
        """
        origin = request.origin
        if not origin.rollout_id:
            raise RefusedError(
                400, "which attempt? POST /rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/end"
            )
        await self._attempts.end(origin.rollout_id, origin.attempt_id)
        self._history.forget(origin.attempt_id)
        await self.recorder.end(origin.attempt_id)
        said = {
            "serving_seconds": time.monotonic() - self.serving_since,
            "lost_calls": self.lost[origin.attempt_id],
        }
        await request.reply.whole(200, dumps(said))

    async def _flush(self, request: _Request) -> None:
        """Answer when calls that have been answered are stored.

        All of an attempt, or at the bare address all. A runner says in ``ended`` when spans of its
        attempt ended, by the clock here and at most so much (``slack``) too late: then those before
        the first of them, and the answer says how many of the spans may be stored before the next
        call. With no spans, it only asks what the clock says.
        """
        body = await read_body(request.receive, self.max_body_bytes)
        try:
            spans = read_spans(body or b"{}")
        except msgspec.DecodeError as error:
            raise RefusedError(400, f"expected {{'ended': [SECONDS, ...]}}: {error}") from None
        said = await self.recorder.place(request.origin.attempt_id, spans)
        await request.reply.whole(200, dumps(said))

    async def _store_now(self, attempt_id: str) -> None:
        """Return when the calls of an attempt are stored; a store that is away gets them later."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.recorder.flush(attempt_id), STORE_SECONDS)

    async def _count_tokens(self, request: _Request) -> None:
        """Answer how many tokens a message would have, by the model's server or by an estimate."""
        body = await read_body(request.receive, self.max_body_bytes)
        exchange = DIALECTS["messages/count_tokens"].read(body)
        strict = self._choose(exchange.model, request.origin).settings.strict
        failover = self._failover(exchange, request, time.time())
        try:
            with (
                closing(failover),
                closing(await self.upstream.open(failover, exchange, TOKENIZE, ())) as answer,
            ):
                why = f"{TOKENIZE} answered {answer.status}"
                if answer.status == 200:
                    counted = msgspec.json.decode(await answer.read(), type=_Counted)
                    return await request.reply.whole(200, dumps({"input_tokens": counted.count}))
        except RefusedError as refused:
            if refused.status >= 500:
                raise
            why = refused.message
        except (BrokenOffError, *NOT_JSON) as error:
            why = f"{TOKENIZE}: {error}"
        if strict:
            raise RefusedError(
                404,
                f"nobody counts tokens of model {exchange.model!r} ({why}), and the model is "
                "strict: no estimate will do",
            )
        size = len(IMAGE.sub(b"", exchange.request))
        said = {"input_tokens": size // BYTES_PER_TOKEN, "is_estimate": True}
        return await request.reply.whole(200, dumps(said))

    def _failover(self, exchange: Exchange, request: _Request, start_time: float) -> Failover:
        return Failover(
            lambda tried: self._choose(exchange.model, request.origin, tried),
            self.num_retries,
            lambda: deadline_of(request.headers, start_time),
            request.origin.attempt_id,
        )

    async def _call(self, dialect: Dialect, request: _Request) -> None:
        origin, reply = request.origin, request.reply
        if origin.has_key and origin.rollout_id:
            # A runner of ours would have given the attempt's token to its agent, and would ask at
            # the end whether all calls are stored. Others, as 0.3's, end the attempt without that.
            reply.before_last = partial(self._store_now, origin.attempt_id)
        interruptible = Interruptible(request.receive)
        attempt: OpenAttempt | None = None
        store_away: StoreUnavailableError | None = None
        record = CallRecord(origin, dialect.operation)
        entered: Exchange | None = None

        def end(error: str | None, kind: ErrorKind = "infrastructure", /) -> None:
            # Called before the last byte goes out: who has an answer and then flushes, finds it.
            if record.end(error, kind):
                try:
                    if entered is not None:
                        self.call_limits.after(record, entered)
                finally:
                    if origin.rollout_id and dialect.operation:
                        self.recorder.add(record)

        try:
            if origin.rollout_id:
                try:
                    attempt = await self._attempts.take(origin.rollout_id, origin.attempt_id)
                except StoreUnavailableError as error:
                    store_away = error
            body = await read_body(request.receive, self.max_body_bytes)
            exchange = dialect.read(body, self._history, origin.attempt_id)
            exchange.shown = self.shown
            record.request = exchange.request
            if store_away is not None:
                # Only now: with what was asked in its record, a later answer makes good for it.
                why = f"attempt {origin.attempt_id!r} cannot be looked up now: {store_away}"
                raise RefusedError(503, why)
            # Refuses an unknown model before anything else.
            record.provider = self._choose(exchange.model, origin).provider
            async with interruptible:
                if attempt is not None:
                    attempt.calls.add(interruptible)
                await self.recorder.room()
                await self.call_limits.before(record, exchange, attempt)
                entered = exchange
                with closing(self._failover(exchange, request, record.start_time)) as failover:
                    answer = await self.upstream.open(
                        failover, exchange, dialect.path, self.callbacks
                    )
                    with closing(answer):
                        await relay(answer, exchange, record, reply, end, dialect.error)
        except (RefusedError, msgspec.DecodeError, RecursionError) as error:
            # A field is read where there is need of it; what it says then may be no JSON.
            refused = error
            if not isinstance(refused, RefusedError):
                refused = RefusedError(400, f"the request body is not valid JSON: {error}")
            if origin.rollout_id and attempt is None and store_away is None:
                raise  # there is no such attempt, or it has ended
            record.status_code = refused.status
            end(refused.message, refused.kind)
            if reply.is_started:
                assert entered is not None
                await reply.end(entered.broken(refused.status, refused.message))
            else:
                await _refuse(reply, refused, dialect)
        except ClientGoneError as gone:
            end(*record.client_gone(str(gone)))
        except asyncio.CancelledError:
            end("the gateway stopped before the answer was complete")
            raise
        except Exception as error:
            logger.exception("a model call failed inside the gateway")
            end(f"the gateway failed: {error!r}")
            if reply.is_started:
                raise
            await _refuse(reply, RefusedError(500, f"the gateway failed: {error!r}"), dialect)
        finally:
            if attempt is not None:
                attempt.calls.discard(interruptible)

    def _choose(self, model: object, origin: Origin, tried: Collection[Backend] = ()) -> Backend:
        backends = self.call_limits.backends
        if isinstance(model, str):
            backend = backends.choose(model, origin.attempt_id or None, tried)
            if backend is not None:
                return backend
        served = f"served models: {', '.join(backends.names) or 'none yet'}"
        if not isinstance(model, str):
            raise RefusedError(400, f"the request has no 'model'; {served}")
        raise RefusedError(404, f"unknown model {model!r}; {served}", "model_not_found")


async def _refuse(reply: Reply, refused: RefusedError, dialect: Dialect) -> None:
    more = ((name.encode(), value.encode("latin-1")) for name, value in refused.headers.items())
    await reply.whole(refused.status, dialect.error(refused), [*JSON, *more])
